#!/usr/bin/env bash
# Build a grid of kernel variants, check and time it on the GPU of this machine; OUT_DIR/GRID.txt is the table.
#
#   research/tuning/run.sh OUT_DIR                    the grid "focus": the sizes of the cards and of large calls
#   research/tuning/run.sh OUT_DIR wide               longer rows, float32, rows of no whole number of packs
#   research/tuning/run.sh OUT_DIR focus --dry-run    further options go to 'python -m research.tuning'
set -euo pipefail

if [[ ${1:--} == -* ]]; then
  echo "usage: research/tuning/run.sh OUT_DIR [GRID [options of python -m research.tuning]]" >&2
  exit 2
fi
out=$(realpath -m "$1")
grid=${2:-focus}
cd "$(dirname "$0")/../.."
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
export TORCHINDUCTOR_CACHE_DIR=/tmp/mini_kv_tuning_inductor TRITON_CACHE_DIR=/tmp/mini_kv_tuning_triton
mkdir -p "$out"
"$python" -u -m research.tuning "$out" --grid "$grid" "${@:3}" 2>&1 | tee "$out/$grid.txt"
