"""Proportions with exact bounds."""

from __future__ import annotations

from mini_kv.core.record import Record
from mini_kv.core.rules.student_t import incomplete_beta

CONFIDENCE = 0.95


class Proportion(Record, frozen=True, kw_only=True):
    """``events`` of ``trials``, with exact one-sided 95 % bounds (Clopper and Pearson 1934)."""

    events: int
    trials: int
    rate: float | None
    lower: float
    upper: float


def proportion(events: int, trials: int) -> Proportion:
    """Return a proportion with its exact bounds."""
    return Proportion(
        events=events,
        trials=trials,
        rate=events / trials if trials else None,
        lower=_bound(events, trials, upper=False),
        upper=_bound(events, trials, upper=True),
    )


def _bound(events: int, trials: int, *, upper: bool) -> float:
    # P(X <= k) = I_{1-p}(n-k, k+1): the bound is the p at which what was seen has probability 5 %.
    if trials == 0 or (upper and events == trials):
        return 1.0 if upper else 0.0
    if not upper and events == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if upper:
            seen = 1.0 - incomplete_beta(events + 1, trials - events, middle)
            low, high = (middle, high) if seen > 1.0 - CONFIDENCE else (low, middle)
        else:
            seen = incomplete_beta(events, trials - events + 1, middle)
            low, high = (low, middle) if seen > 1.0 - CONFIDENCE else (middle, high)
    return 0.5 * (low + high)
