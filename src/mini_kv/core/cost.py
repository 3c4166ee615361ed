"""What an operator must move and compute at the least: the base of GB/s, FLOP/s and ceilings."""

from __future__ import annotations

from mini_kv.core.record import Record


class Cost(Record, frozen=True, kw_only=True):
    """Compulsory traffic of one call: each input byte read once, each output byte written once."""

    bytes_moved: int
    flops: int
