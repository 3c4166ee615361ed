#!/usr/bin/env bash
# Measure the regression gate's false alarms and its power on this machine's GPU.
#
#   scripts/run_gate_study.sh OUT_DIR                 about 450 s of GPU time; writes gate_study_{raw,summary}.json
#   STUDY_BUDGET=120 scripts/run_gate_study.sh OUT    a shorter one, with wider bounds
#   STUDY_DEVICE=cpu scripts/run_gate_study.sh OUT    the script's own logic, on a machine without a GPU
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: scripts/run_gate_study.sh OUT_DIR}
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
exec "$python" scripts/gate_study.py measure --output "$out" --device "${STUDY_DEVICE:-cuda}" \
  --processes "${STUDY_PROCESSES:-120}" --wave "${STUDY_WAVE:-12}" --budget "${STUDY_BUDGET:-430}"
