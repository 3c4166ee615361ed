#!/usr/bin/env bash
# Profile one rmsnorm candidate on the fixed case, [1024, 4096] in float16.
#
#   scripts/profile_rmsnorm.sh v2_vectorized              a folder below candidates/rmsnorm, or any path
#   scripts/profile_rmsnorm.sh v2_vectorized --json       further options go to 'mini-kv profile'
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:--} == -* ]]; then
  echo "usage: scripts/profile_rmsnorm.sh CANDIDATE [options of mini-kv profile]" >&2
  exit 2
fi
candidate=$1
shift
if [ -d "candidates/rmsnorm/$candidate" ]; then candidate=candidates/rmsnorm/$candidate; fi
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m mini_kv profile --task tasks/rmsnorm.yaml --candidate "$candidate" \
  --case bench_1024x4096_f16 "$@"
