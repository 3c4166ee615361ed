"""The paired test over pairs of fresh processes: sees the slowdowns that a single batch cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from mini_kv.core import student_t
from mini_kv.core.results import CaseComparison, Decision, PairedTest, Regression
from mini_kv.core.statistics import mean, std
from mini_kv.regression.decisions import Policy, sum_up

# exp() of more than this overflows; a bound that wide says nothing anyway.
_MAX_LOG_RATIO = 700.0


class PairedSlowdown(NamedTuple):
    """Mean log-ratio over pairs, its one-sided bounds at the asked level, and P(no slowdown)."""

    mean: float
    lower: float
    upper: float
    p_value: float


def paired_slowdown(log_ratios: Sequence[float], alpha: float) -> PairedSlowdown:
    """Test whether the candidate is slower over pairs of fresh processes: one-sided t on log-ratios.

    ``log_ratios`` holds ``log(candidate / baseline)`` of net times, one a pair of processes (the unit of
    replication). Returns the mean, its lower and upper one-sided ``1 - alpha`` bounds (``lower > 0``
    where ``p_value < alpha``) and the p-value of "no slower". Raises ``ValueError`` for fewer than two
    pairs, non-finite ratios, or an alpha outside 0..0.5.
    """
    if len(log_ratios) < 2:
        raise ValueError(f"a paired test needs two pairs or more, not {len(log_ratios)}")
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha lies between 0 and 0.5, not at {alpha}")
    center = mean(log_ratios)
    degrees = len(log_ratios) - 1
    error = std(log_ratios) / math.sqrt(len(log_ratios))
    if error == 0.0:
        return PairedSlowdown(center, center, center, 0.0 if center > 0.0 else 1.0)
    reach = student_t.quantile(1.0 - alpha, degrees) * error
    p_value = student_t.survival(center / error, degrees)
    return PairedSlowdown(center, center - reach, center + reach, p_value)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted by Holm's step-down method (Holm 1979), by name; NaN counts as 1."""
    known = {name: value if 0.0 <= value <= 1.0 else 1.0 for name, value in p_values.items()}
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(known, key=lambda name: known[name])):
        highest = max(highest, min(1.0, (len(known) - rank) * known[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def add_pairs(
    regression: Regression, log_ratios: Mapping[str, Sequence[float]], policy: Policy
) -> Regression:
    """Return the regression with the paired test's word on every case it has pairs for.

    A case that passed so far and is significantly slower (Holm over the cases tested) becomes SLOWER, a
    warning with its interval; one whose pairs are no numbers becomes PASS_WITH_WARNING. Graver decisions
    stay, with the test's figures beside them.
    """
    tests: dict[str, PairedSlowdown] = {}
    unusable: dict[str, str] = {}
    for name, values in log_ratios.items():
        try:
            tests[name] = paired_slowdown(values, policy.paired_alpha)
        except ValueError as error:
            unusable[name] = str(error)
    adjusted = holm({name: test.p_value for name, test in tests.items()})

    def judged(case: CaseComparison) -> CaseComparison:
        name = case.case_id
        if name in tests:
            return _with_pairs(case, tests[name], len(log_ratios[name]), adjusted[name], policy)
        return _without_pairs(case, unusable[name]) if name in unusable else case

    cases = tuple(judged(case) for case in regression.cases)
    if cases == regression.cases:
        return regression
    return sum_up(cases, regression.baseline, regression.baseline_sha256)


def _without_pairs(case: CaseComparison, why: str) -> CaseComparison:
    if case.decision is not Decision.PASS:
        return case
    message = f"The paired test could not be made ({why}). {case.message}"
    return msgspec.structs.replace(
        case, decision=Decision.PASS_WITH_WARNING, code="PAIRS_UNUSABLE", message=message
    )


def _with_pairs(
    case: CaseComparison, test: PairedSlowdown, pairs: int, adjusted: float, policy: Policy
) -> CaseComparison:
    ratio, lower, upper = (math.exp(min(value, _MAX_LOG_RATIO)) for value in test[:3])
    paired = PairedTest(
        pairs=pairs, ratio=ratio, lower=lower, upper=upper, p_value=test.p_value, adjusted_p_value=adjusted
    )
    case = msgspec.structs.replace(case, paired=paired)
    passed = case.decision in (Decision.PASS, Decision.PASS_WITH_WARNING)
    if not (passed and adjusted < policy.paired_alpha and ratio >= 1.0 + policy.min_paired_slowdown):
        return case
    message = (
        f"Slower by {ratio - 1.0:.1%} in net time over {pairs} pairs of fresh processes "
        f"({1.0 - 2.0 * policy.paired_alpha:.0%} interval {lower - 1.0:+.1%} to {upper - 1.0:+.1%}, "
        f"adjusted p {adjusted:.2g}). {case.message}"
    )
    return msgspec.structs.replace(case, decision=Decision.SLOWER, code="PAIRED_SLOWER", message=message)
