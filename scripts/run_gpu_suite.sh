#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: every shipped candidate is verified through CUDA, profiled,
# compared and calibrated, the evidence is packed, and the first failure stops the run with its exit code.
#
#   scripts/run_gpu_suite.sh OUT_DIR            all of it
#   SUITE_DEVICE=cpu scripts/run_gpu_suite.sh   the script's own logic, on a machine without a GPU
#   SUITE_STEPS="doctor verify" ...             only these steps
#
# Steps: doctor, verify, cold, tests, cage, calibrate, zoo, pack; and the studies of research/, which make the
# evidence: profile (with the comparisons), sweep, honest, peers, study.
# Each packs what it made at once, so that a later failure loses nothing. Uses the checkout's .venv where there
# is one, else python3.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-artifacts/gpu-suite}
device=${SUITE_DEVICE:-cuda}
steps=${SUITE_STEPS:-doctor verify cold tests cage profile sweep calibrate zoo honest peers study pack}
artifacts=${SUITE_ARTIFACTS:-artifacts/gpu-suite-attempts}
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out"

pairs=(
  "vector_add vector_add/v0_naive"
  "vector_add vector_add/v1_vectorized"
  "fused_bias_relu fused_bias_relu/v0_naive"
  "fused_bias_relu fused_bias_relu/v0_classic"
  "fused_bias_relu fused_bias_relu/v1_vectorized"
  "rmsnorm rmsnorm/v0_naive"
  "rmsnorm rmsnorm/v1_block_reduce"
  "rmsnorm rmsnorm/v2_vectorized"
)

say() { printf '\n== %s\n' "$*"; }
mini_kv() { "$python" -m mini_kv "$@"; }
pack() { # NAME FOLDER [tar options]
  local name=$1 folder=$2
  shift 2
  tar -czf "$out/$name.tar.gz" "$@" -C "$folder" .
}
# Whole, logs included: an attempt without one of its files cannot be promoted.
pack_attempts() { pack attempts "$artifacts" --exclude ./profiles --exclude ./comparisons --exclude '*.db*'; }
wants() { [[ " $steps " == *" $1 "* ]]; }

verify() { # TASK CANDIDATE
  say "verify $1 with $2 on $device"
  mini_kv verify --task "tasks/$1.yaml" --candidate "candidates/$2" --device "$device" \
    --artifacts "$artifacts" --json >"$out/last_verdict.json" || { status=$?; show_verdict; exit "$status"; }
  show_verdict
}

show_verdict() {
  "$python" - "$out/last_verdict.json" <<'PY'
import json, sys
try:
    verdict = json.load(open(sys.argv[1]))
except ValueError:
    sys.exit("no verdict was printed")
attempt = verdict["attempt"]
print(f"exit code {attempt['exit_code']}  {attempt['elapsed_s']:.1f} s  stages {attempt['stage_elapsed_s']}")
for axis in attempt["axes"]:
    print(f"  {axis['name']:<11} {axis['status']:<11} {axis['code'] or ''} {axis['message'] or ''}")
for finding in attempt["findings"]:
    print(f"  {finding['code']}: {finding['message']}")
    for line in finding["evidence"]:
        print("   ", line[-3000:])
for case in verdict["cases"]:
    if case["status"] != "PASS":
        print(f"  case {case['case_id']}: {case['status']} {case['code']} {case['message']}")
for case in verdict["benchmark"]:
    side, reference = case["candidate"], case["reference"]
    if side and reference:
        print(
            f"  {case['case_id']:<24} P50 {side['p50_us']:9.2f} net {side['net_p50_us']:9.2f} "
            f"floor {side['floor_us']:.2f} exposed {side['launch_exposed']} cv {side['robust_cv']:.4f} | "
            f"reference {reference['p50_us']:9.2f} cv {reference['robust_cv']:.4f} | "
            f"{case['speedup']:.3f}x  {case['gb_per_s'] or 0:.0f} GB/s  "
            f"{case['percent_of_copy_bandwidth'] or 0:.1f} %  {'stable' if case['stable'] else 'UNSTABLE'}"
        )
    for finding in case["findings"]:
        print(f"    {finding['code']}: {finding['message']}")
PY
}

if wants doctor; then
  say doctor
  mini_kv doctor
fi
if wants verify; then
  for pair in "${pairs[@]}"; do
    # shellcheck disable=SC2086
    verify $pair
  done
  mini_kv leaderboard --artifacts "$artifacts"
  pack_attempts
fi
if wants cold; then
  say "cold and warm times of the rmsnorm card"
  rm -rf .build
  for _ in cold warm warm warm; do verify rmsnorm rmsnorm/v1_block_reduce; done
  pack_attempts
fi
if wants tests; then
  say "tests that need a GPU"
  "$python" -m pytest -q -m gpu -p no:cacheprovider tests research/tests || { status=$?; [ "$status" -eq 5 ] || exit "$status"; }
fi
if wants cage; then
  say "the cage and CUDA together"
  "$python" scripts/check_sandbox_gpu.py
fi
if wants profile; then
  research/profiles/run.sh "$out/profile_evidence" "$artifacts"
  pack profile_evidence "$out/profile_evidence"
  pack profiles "$artifacts/profiles" --exclude '*.ncu-rep'
fi
if wants sweep; then
  say "kernel time against size"
  "$python" -m research.sweep "$out/sweep"
fi
if wants calibrate; then
  say calibrate
  mini_kv calibrate --device "$device" --output "$out/calibration.json"
fi
if wants zoo; then
  say "the zoo's GPU members"
  scripts/run_zoo_gpu.sh "$out"
fi
if wants honest; then
  say "honest candidates, and how often one is accused"
  research/honest_runs/run.sh "$out"
fi
if wants peers; then
  research/peers/run.sh "$artifacts-peers"
  pack peers "$artifacts-peers"
fi
if wants study; then
  say "error rates of the gate"
  research/gate_study/run.sh "$out/gate_study"
fi
if wants pack; then
  say pack
  mini_kv rebuild-index --artifacts "$artifacts"
  mini_kv leaderboard --artifacts "$artifacts" --json >"$out/leaderboard.json"
  pack_attempts
  ls -l "$out"
fi
say "suite passed"
