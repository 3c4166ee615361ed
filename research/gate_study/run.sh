#!/usr/bin/env bash
# Measure the regression gate's false alarms and its power on this machine's GPU.
#
#   research/gate_study/run.sh OUT_DIR                 about 465 s on the GPU; writes gate_study_raw.json
#   STUDY_KERNELS=memory_2us,spin_2us research/gate_study/run.sh OUT    some of the kernels
#   STUDY_BUDGET=120 research/gate_study/run.sh OUT    a shorter one, with wider bounds
#   STUDY_DEVICE=cpu research/gate_study/run.sh OUT    the study's own logic, on a machine without a GPU
#
# The decisions need no GPU: python -m research.gate_study summarise OUT_DIR/gate_study_raw.json, or the raw times of
# several sessions; of a kernel that is in more than one, the last named counts.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ${1:--} == -* ]]; then
  echo "usage: research/gate_study/run.sh OUT_DIR" >&2
  exit 2
fi
out=$1
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m research.gate_study measure --raw-only --output "$out" --device "${STUDY_DEVICE:-cuda}" \
  --kernels "${STUDY_KERNELS:-}" \
  --processes "${STUDY_PROCESSES:-176}" --wave "${STUDY_WAVE:-16}" --budget "${STUDY_BUDGET:-450}"
