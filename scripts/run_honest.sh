#!/usr/bin/env bash
# Measure how often honest candidates are accused on this machine's GPU: run_honest.sh OUT writes OUT/honest_runs.json.
#
#   HONEST_BUDGET=150 HONEST_RUNS=240 HONEST_WAVE=25   seconds, runs, processes that start together
#   HONEST_DEVICE=cpu scripts/run_honest.sh OUT        the same on the CPU
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:--} == -* ]]; then
  echo "usage: scripts/run_honest.sh OUT" >&2
  exit 2
fi
out=$1
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
exec "$python" scripts/honest_runs.py measure --output "$out" --device "${HONEST_DEVICE:-cuda}" \
  --runs "${HONEST_RUNS:-240}" --wave "${HONEST_WAVE:-25}" --budget "${HONEST_BUDGET:-130}"
