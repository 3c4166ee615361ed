#!/usr/bin/env bash
# Every candidate compared with its peers: one `mini-kv verify` for each card of tasks/peers, whose benchmark then
# holds the kernel times of both. The attempts are collected for evidence/, and a table is printed.
#
#   research/peers/run.sh OUT_DIR                               the cards whose figures are documented
#   PEERS="rmsnorm_vs_triton bias_relu_vs_eager" ... OUT_DIR    only these
#   PEERS=all ... OUT_DIR                                       every card
#
# Liger's kernel needs the package liger-kernel; where it is missing, the plain Triton kernel stands in for it.
# A case that is unstable, or slower than its peer, is a result. Whatever else goes wrong with a card is told,
# the others still run, and the last such exit code is the script's. Needs a GPU. Uses the checkout's .venv
# where there is one, else python3.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ${1:--} == -* ]]; then
  echo "usage: research/peers/run.sh OUT_DIR" >&2
  exit 2
fi
out=$1
documented="rmsnorm_vs_functional rmsnorm_vs_compile rmsnorm_vs_liger bias_relu_vs_compile vector_add_large"
peers=${PEERS:-$documented}
if [ "$peers" = all ]; then peers=$(basename -s .yaml tasks/peers/*.yaml); fi
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out"
wrong=0

if [[ " ${peers//$'\n'/ } " == *" rmsnorm_vs_liger "* ]] && ! "$python" -c \
  'import importlib.util, sys; sys.exit(importlib.util.find_spec("liger_kernel") is None)'; then
  echo "liger-kernel is not installed: rmsnorm_vs_liger is skipped, rmsnorm_vs_triton runs in its place"
  peers=${peers//rmsnorm_vs_liger/rmsnorm_vs_triton}
fi
# Both may have been asked for.
peers=$(tr ' ' '\n' <<<"$peers" | awk 'NF && !seen[$0]++')

for peer in $peers; do
  printf '\n== %s\n' "$peer"
  status=0
  "$python" -m mini_kv verify --task "tasks/peers/$peer.yaml" --device "${PEERS_DEVICE:-cuda}" \
    --timeout 180 --artifacts "$out" --json >"$out/$peer.verdict" || status=$?
  # A fault before the first stage leaves no verdict; its sentence stands above.
  [ ! -s "$out/$peer.verdict" ] || "$python" - "$out/$peer.verdict" "$out/$peer" <<'PY'
import json, pathlib, sys

verdict = json.load(open(sys.argv[1]))
attempt = verdict["attempt"]
print(f"exit code {attempt['exit_code']}  {attempt['elapsed_s']:.1f} s  {attempt['stage_elapsed_s']}")
for finding in attempt["findings"]:
    print(f"  {finding['code']}: {finding['message']}")
for case in verdict["cases"]:
    if case["status"] != "PASS":
        print(f"  case {case['case_id']}: {case['status']} {case['code']} {case['message']}")
path = pathlib.Path(sys.argv[2]) / attempt["attempt_id"] / "benchmark.json"


def kernel_us(witness):
    return f"{witness['kernel_us']:9.2f}" if witness else "        -"


def copied(case):
    """Percent of the copy bandwidth of the run, by the kernel's own time."""
    witness, moved = case["candidate_kernel"], case["bytes_moved"]
    if not witness or not moved or not copy_gb_per_s:
        return 0.0
    return 100.0 * moved / witness["kernel_us"] / 1e3 / copy_gb_per_s


def ratio(value):
    return f"{value:6.3f}x" if value is not None else "      -"


benchmark = json.load(open(path)) if path.is_file() else {"cases": (), "copy_gb_per_s": None}
copy_gb_per_s = benchmark["copy_gb_per_s"]
for case in benchmark["cases"]:
    candidate, peer = case["candidate"], case["reference"]
    if candidate and peer:
        print(
            f"  {case['case_id']:<24} kernel {kernel_us(case['candidate_kernel'])} us, "
            f"peer {kernel_us(case['reference_kernel'])} us, {ratio(case['kernel_speedup'])}, "
            f"{copied(case):5.1f} % of copy | "
            f"P50 {candidate['p50_us']:9.2f}, peer {peer['p50_us']:9.2f} | "
            f"{'stable' if case['stable'] else 'UNSTABLE'}"
        )
    for finding in case["findings"]:
        print(f"    {finding['code']}: {finding['message']}")
PY
  rm -f "$out/$peer.verdict"
  # 5: a time that does not count, which is told above.
  if [ "$status" -ne 0 ] && [ "$status" -ne 5 ]; then wrong=$status; fi
done

"$python" -m mini_kv rebuild-index --artifacts "$out"
exit "$wrong"
