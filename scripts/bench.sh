#!/usr/bin/env bash
# The project's own benchmarks: how long a verdict, a help text and a checked card take on this machine.
#
#   bash scripts/bench.sh            everything, about two minutes on two quiet cores
#   BENCH_REPEATS=20 bash scripts/bench.sh
#
# Nothing is asserted: what a machine reaches is for people to read.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${MINI_KV_PYTHON_BIN:-.venv/bin/python}"
if [[ ! -x "$python" ]]; then
  echo "bench: there is no $python; run 'make setup' first" >&2
  exit 2
fi
exec "$python" scripts/bench_startup.py --repeats "${BENCH_REPEATS:-10}" "$@"
