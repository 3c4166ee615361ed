"""``compare``: two candidates of one card, gated and timed in one run."""

from __future__ import annotations

from mini_kv.comparison.interleaved_run import CompareRequest, ComparisonVerdict, compare

__all__ = ["CompareRequest", "ComparisonVerdict", "compare"]
