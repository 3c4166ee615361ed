"""The regression gate, pure: current times, a baseline and a policy give a decision with a reason code."""

from __future__ import annotations

from mini_kv.regression.decisions import (
    CurrentMeasurement,
    Policy,
    exit_code,
    needs_confirmation,
    needs_retiming,
)
from mini_kv.regression.gate import compare_benchmarks, decide, why_incomparable
from mini_kv.regression.paired import (
    MIN_PAIRS,
    PairedSlowdown,
    add_pairs,
    holm,
    needs_more_pairs,
    paired_slowdown,
    wants_pairs,
)

__all__ = [
    "MIN_PAIRS",
    "CurrentMeasurement",
    "PairedSlowdown",
    "Policy",
    "add_pairs",
    "compare_benchmarks",
    "decide",
    "exit_code",
    "holm",
    "needs_confirmation",
    "needs_more_pairs",
    "needs_retiming",
    "paired_slowdown",
    "wants_pairs",
    "why_incomparable",
]
