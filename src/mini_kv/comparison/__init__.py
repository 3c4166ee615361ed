"""``compare``: two candidates of one card, gated and timed in one run."""

from __future__ import annotations

from mini_kv.comparison.interleaved_run import Compared, CompareRequest, compare

__all__ = ["CompareRequest", "Compared", "compare"]
