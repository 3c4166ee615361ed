"""Two candidates timed side by side in a pair of fresh processes: what is measured, and its log-ratio."""

from __future__ import annotations

import math
from typing import Literal

from mini_kv.core.record import Record
from mini_kv.core.records.results import Finding

PairName = Literal["a", "b"]


class PairSide(Record, frozen=True, kw_only=True):
    """One side of one pair and case.

    ``samples_us[r][i]`` is sample ``i`` of batch ``r``, microseconds a call. ``p50_us`` and ``floor_us``
    (this process's own empty call) are read through the clock's tick; ``net_us`` is their difference
    plus ``empty_kernel_us``, the part of the empty call that is kernel and not timer.
    """

    label: str
    samples_us: tuple[tuple[float, ...], ...]
    calls_per_sample: int
    launch_exposed: int
    p50_us: float
    floor_us: float
    empty_kernel_us: float
    net_us: float


class PairResult(Record, frozen=True, kw_only=True):
    """One case in one pair of processes; ``first`` is the side that began."""

    case_id: str
    pair: int
    first: PairName
    a: PairSide
    b: PairSide

    @property
    def log_ratio(self) -> float:
        """``log(b / a)`` of the net times: positive where b is slower; NaN where one is no time."""
        usable = 0.0 < self.a.net_us < math.inf and 0.0 < self.b.net_us < math.inf
        return math.log(self.b.net_us / self.a.net_us) if usable else math.nan


class PairLoss(Record, frozen=True, kw_only=True):
    """A case of a pair that gave no ratio, and which side's fault that was."""

    case_id: str
    pair: int
    label: str
    finding: Finding


class PairSet(Record, frozen=True, kw_only=True):
    """``pairs.json``: one set of pairs, whole: what could not be measured stands in ``losses``."""

    schema_version: str
    label_a: str
    label_b: str
    pairs: int
    results: tuple[PairResult, ...]
    losses: tuple[PairLoss, ...]
    elapsed_s: float

    def log_ratios(self) -> dict[str, tuple[float, ...]]:
        """Return ``log(b / a)`` by case, in the pairs' order; cases with no result at all are left out."""
        found: dict[str, list[float]] = {}
        for result in self.results:
            found.setdefault(result.case_id, []).append(result.log_ratio)
        return {name: tuple(values) for name, values in found.items()}
