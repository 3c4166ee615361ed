"""``compare``: two candidates of one card, gated and timed in one run."""

from __future__ import annotations

from mini_kv.comparing.running import Compared, CompareRequest, compare

__all__ = ["CompareRequest", "Compared", "compare"]
