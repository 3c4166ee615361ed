#!/usr/bin/env bash
# Verifies the zoo's GPU members: run_zoo_gpu.sh OUT [NAME ...] writes OUT/zoo_gpu.json.
#
#   ZOO_JOBS=4   members at once; timed and hanging ones always run alone, at the end
set -euo pipefail
if [[ ${1:--} == -* ]]; then
  echo "usage: scripts/run_zoo_gpu.sh OUT [NAME ...]" >&2
  exit 2
fi
out=$1
shift
mkdir -p "$out"
cd "$(dirname "$0")/.."
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
"${PYTHON:-$python}" tests/zoo_harness.py --run cuda "$out/zoo_gpu.json" --jobs "${ZOO_JOBS:-4}" "$@"
