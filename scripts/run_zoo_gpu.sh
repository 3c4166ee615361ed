#!/usr/bin/env bash
# Verifies the zoo's GPU members, one after the other: run_zoo_gpu.sh OUT writes OUT/zoo_gpu.json.
set -euo pipefail
out=${1:?usage: run_zoo_gpu.sh OUT}
mkdir -p "$out"
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" tests/zoo_harness.py --run cuda "$out/zoo_gpu.json"
