"""The regression gate, pure: current times, a baseline and a policy give a decision with a reason code."""

from __future__ import annotations

from mini_kv.regression.decisions import CurrentMeasurement, Policy, exit_code, needs_confirmation
from mini_kv.regression.gate import decide
from mini_kv.regression.paired import PairedSlowdown, add_pairs, holm, paired_slowdown

__all__ = [
    "CurrentMeasurement",
    "PairedSlowdown",
    "Policy",
    "add_pairs",
    "decide",
    "exit_code",
    "holm",
    "needs_confirmation",
    "paired_slowdown",
]
