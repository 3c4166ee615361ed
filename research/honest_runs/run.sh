#!/usr/bin/env bash
# Measure how often honest candidates are accused on this machine's GPU.
#
#   research/honest_runs/run.sh OUT_DIR                writes OUT_DIR/honest_runs.json
#
#   HONEST_BUDGET=150 HONEST_RUNS=240 HONEST_WAVE=25   seconds, runs, processes that start together
#   HONEST_DEVICE=cpu research/honest_runs/run.sh OUT  the same on the CPU
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ${1:--} == -* ]]; then
  echo "usage: research/honest_runs/run.sh OUT_DIR" >&2
  exit 2
fi
out=$1
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m research.honest_runs measure --output "$out" --device "${HONEST_DEVICE:-cuda}" \
  --runs "${HONEST_RUNS:-240}" --wave "${HONEST_WAVE:-25}" --budget "${HONEST_BUDGET:-130}"
