#!/usr/bin/env bash
# Build the focused grid, check and time it on the GPU of this machine: focus.sh OUT_DIR [focus.py options]
set -euo pipefail
cd "$(dirname "$0")"
out=$(realpath -m "${1:?an output folder is needed}")
shift
python=${PYTHON:-python3}
export TORCHINDUCTOR_CACHE_DIR=/tmp/mini_kv_tune_inductor TRITON_CACHE_DIR=/tmp/mini_kv_tune_triton
mkdir -p "$out"
"$python" -u focus.py "$out" "$@" 2>&1 | tee "$out/focus.txt"
