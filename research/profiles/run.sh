#!/usr/bin/env bash
# The Nsight Compute loop for rmsnorm from end to end: every step is profiled, each two neighbours are timed
# in one run, and their profiles compared against that. Reports stay in the archive; OUT_DIR gets what is
# small enough to be kept as evidence:
#
#   OUT_DIR/profiles/<candidate>/profile.json                      the facts, with the hashes that bind them
#   OUT_DIR/profiles/profile_comparison_<before>_to_<after>.json   what changed, and both timed P50s
#   OUT_DIR/comparisons/rmsnorm/<id>/                              the timed comparison
#
#   research/profiles/run.sh OUT_DIR [ARTIFACTS_DIR]
#
# PROFILE_PAIRS (2): pairs of fresh processes behind each comparison's interval. PROFILE_DEVICE (cuda).
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ${1:--} == -* ]]; then
  echo "usage: research/profiles/run.sh OUT_DIR [ARTIFACTS_DIR]" >&2
  exit 2
fi
out=$1
artifacts=${2:-artifacts}
steps=(v0_naive v1_block_reduce v2_vectorized)
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out/profiles" "$out/comparisons/rmsnorm"
field() { "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

folders=()
for step in "${steps[@]}"; do
  printf '\n== profile rmsnorm %s\n' "$step"
  scripts/profile_rmsnorm.sh "$step" --artifacts "$artifacts" --json >"$out/last.json"
  folders+=("$artifacts/profiles/rmsnorm/$(field "$out/last.json" profile_id)")
  kept="$out/profiles/$(field "$out/last.json" candidate_id)"
  mkdir -p "$kept"
  mv "$out/last.json" "$kept/profile.json"
done

for ((i = 1; i < ${#steps[@]}; i++)); do
  before=${steps[i - 1]} after=${steps[i]}
  printf '\n== compare rmsnorm %s and %s\n' "$before" "$after"
  scripts/compare_rmsnorm.sh "$before" "$after" --device "${PROFILE_DEVICE:-cuda}" \
    --artifacts "$artifacts" --pairs "${PROFILE_PAIRS:-2}" --json >"$out/last.json"
  timed=$(field "$out/last.json" folder)
  rm "$out/last.json"
  changes="$out/profiles/profile_comparison_${before}_to_${after}.json"
  "$python" -m mini_kv compare-profiles "${folders[i - 1]}" "${folders[i]}" \
    --comparison "$timed/comparison.json" --json >"$changes"
  "$python" -m mini_kv compare-profiles "${folders[i - 1]}" "${folders[i]}" \
    --comparison "$timed/comparison.json"
  cp -r "$timed" "$out/comparisons/rmsnorm/"
done
