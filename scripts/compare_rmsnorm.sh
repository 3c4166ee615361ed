#!/usr/bin/env bash
# Set the naive rmsnorm (A) against the block-reduce one (B): both gated, both timed, archived.
#
#   scripts/compare_rmsnorm.sh                       v0_naive against v1_block_reduce
#   scripts/compare_rmsnorm.sh v1_block_reduce v2_vectorized --json
#                                                    two folders below candidates/rmsnorm, or any paths;
#                                                    options go to 'mini-kv compare'
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $# -gt 0 && $1 != -* ]] && [[ ${2:--} == -* ]]; then
  echo "usage: scripts/compare_rmsnorm.sh [A B] [options of mini-kv compare]" >&2
  exit 2
fi
names=(v0_naive v1_block_reduce)
if [[ $# -gt 0 && $1 != -* ]]; then
  names=("$1" "$2")
  shift 2
fi
candidates=()
for name in "${names[@]}"; do
  if [ -d "candidates/rmsnorm/$name" ]; then name=candidates/rmsnorm/$name; fi
  candidates+=(--candidate "$name")
done
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m mini_kv compare --task tasks/rmsnorm.yaml "${candidates[@]}" "$@"
