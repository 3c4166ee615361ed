"""The paired test over pairs of fresh processes: sees the slowdowns that a single batch cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.records.regression import CaseComparison, Decision, PairedTest, Regression
from mini_kv.core.rules import student_t
from mini_kv.core.rules.statistics import mean, std
from mini_kv.regression.decisions import Policy, sum_up

# exp() of more than this overflows; a bound that wide says nothing anyway.
_MAX_LOG_RATIO = 700.0

# Two ratios have a spread; fewer have none.
MIN_PAIRS = 2

LogRatios = Mapping[str, Sequence[float]]


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
    if len(log_ratios) < MIN_PAIRS:
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
    regression: Regression,
    first: LogRatios,
    policy: Policy,
    second: LogRatios | None = None,
    *,
    lost: Mapping[str, str] | None = None,
) -> Regression:
    """Return the regression with the paired test's word on every case it has pairs for.

    ``first`` holds ``log(candidate / baseline)`` of net times by case, one a pair; ``second`` the same of
    an independent set of pairs, for the cases that :func:`needs_more_pairs` named. A set whose mean passes
    the P50 limit is a batch that is over it: over in two batches of three (the record's, the sets') is
    FAIL, and so is a second set over it whose verdict all pairs together share. A significant slowdown
    (Holm over the cases tested) is SLOWER. A record that was over its limit ends as a warning where the
    pairs show no such slowdown. Ratios that are no numbers, and cases in ``lost`` (with the reason), make
    a passed case PASS_WITH_WARNING. Other decisions stay as they are, and carry the pairs' interval: where
    the reference moved, no pairs can say what else has.
    """
    tests: dict[str, _Test] = {}
    unusable: dict[str, str] = dict(lost or {})
    for name, values in first.items():
        if name in unusable:
            continue
        more = tuple(second.get(name, ())) if second is not None else ()
        try:
            tests[name] = _test(tuple(values), more, policy)
        except ValueError as error:
            unusable[name] = str(error)
    adjusted = _adjusted(tests)

    def judged(case: CaseComparison) -> CaseComparison:
        if case.case_id in tests:
            return _with_pairs(case, tests[case.case_id], adjusted[case.case_id], policy)
        return _without_pairs(case, unusable[case.case_id]) if case.case_id in unusable else case

    cases = tuple(judged(case) for case in regression.cases)
    if cases == regression.cases:
        return regression
    return sum_up(cases, regression.baseline, regression.baseline_sha256)


def wants_pairs(regression: Regression) -> tuple[str, ...]:
    """Return the cases on which pairs have a word: those judged or doubted, and those whose reference moved.

    The last stay inconclusive; the pairs' interval tells the reader what the record cannot.
    """
    judged = (Decision.PASS, Decision.PASS_WITH_WARNING, Decision.SLOWER)
    return tuple(
        case.case_id
        for case in regression.cases
        if case.decision in judged
        or (
            case.decision is Decision.INCONCLUSIVE
            and case.code in (Code.NEEDS_CONFIRMATION, Code.REFERENCE_MOVED)
        )
    )


def needs_more_pairs(regression: Regression, policy: Policy) -> tuple[str, ...]:
    """Return the cases that a second, independent set of pairs must decide.

    Those whose first set shows a slowdown that is not sure yet, one over the P50 limit with no other batch
    over it, and one that is sure but not surely below that limit.
    """
    return tuple(case.case_id for case in regression.cases if _unclear(case, policy))


def _unclear(case: CaseComparison, policy: Policy) -> bool:
    if case.paired is None or len(case.paired.set_ratios) != 1:
        return False
    limit = 1.0 + policy.max_p50_slowdown
    match case.decision:
        case Decision.SLOWER:
            return not case.paired.upper <= limit
        case Decision.PASS | Decision.PASS_WITH_WARNING:
            return not case.paired.ratio < 1.0 + policy.min_doubt
        case _:
            return False


def _worth_reporting(ratio: float, policy: Policy) -> bool:
    return ratio >= 1.0 + policy.min_paired_slowdown


class _Test(NamedTuple):
    """A case's pairs: the test over all of them, every set's own ratio, and the level of this look."""

    slowdown: PairedSlowdown
    values: tuple[float, ...]
    set_ratios: tuple[float, ...]
    alpha: float

    @property
    def first_look(self) -> bool:
        return len(self.set_ratios) == 1


def _test(first: tuple[float, ...], second: tuple[float, ...], policy: Policy) -> _Test:
    sets = (first, second) if second else (first,)
    share = policy.first_look_share if len(sets) == 1 else 1.0 - policy.first_look_share
    values = first + second
    return _Test(
        slowdown=paired_slowdown(values, policy.paired_alpha),
        values=values,
        set_ratios=tuple(_exp(mean(one)) for one in sets),
        alpha=policy.paired_alpha * share,
    )


def _adjusted(tests: Mapping[str, _Test]) -> dict[str, float]:
    # Each look is corrected for every case, also for those that only the other look tested.
    adjusted: dict[str, float] = {}
    for first_look in (True, False):
        looked = {
            name: test.slowdown.p_value if test.first_look is first_look else 1.0
            for name, test in tests.items()
        }
        corrected = holm(looked)
        adjusted |= {name: corrected[name] for name, test in tests.items() if test.first_look is first_look}
    return adjusted


def _exp(value: float) -> float:
    return math.exp(min(value, _MAX_LOG_RATIO))


def _without_pairs(case: CaseComparison, why: str) -> CaseComparison:
    if case.decision is not Decision.PASS:
        return case
    message = f"The paired test could not be made ({why}). {case.message}"
    return msgspec.structs.replace(
        case, decision=Decision.PASS_WITH_WARNING, code=Code.PAIRS_UNUSABLE, message=message
    )


def _with_pairs(case: CaseComparison, test: _Test, adjusted: float, policy: Policy) -> CaseComparison:
    ratio, lower, upper = (_exp(value) for value in test.slowdown[:3])
    paired = PairedTest(
        pairs=len(test.values),
        ratio=ratio,
        lower=lower,
        upper=upper,
        p_value=test.slowdown.p_value,
        adjusted_p_value=adjusted,
        log_ratios=test.values,
        set_ratios=test.set_ratios,
    )
    case = msgspec.structs.replace(case, paired=paired)
    passed = case.decision in (Decision.PASS, Decision.PASS_WITH_WARNING)
    figures = (
        f"{ratio - 1.0:+.1%} in net time over {len(test.values)} pairs of fresh processes "
        f"({1.0 - 2.0 * policy.paired_alpha:.0%} interval {lower - 1.0:+.1%} to {upper - 1.0:+.1%}, "
        f"adjusted p {adjusted:.2g})"
    )
    if case.code == Code.REFERENCE_MOVED:
        message = (
            f"{case.message} Against the baseline's own code, which the gate does not judge by: {figures}."
        )
        return msgspec.structs.replace(case, message=message)
    if not (passed or case.code == Code.NEEDS_CONFIRMATION):
        return case
    decision, code, took = _judge(case, paired, adjusted < test.alpha, policy)
    message = f"{took} {figures}. {case.message}" if took else case.message
    return msgspec.structs.replace(case, decision=decision, code=code, message=message)


def _judge(
    case: CaseComparison, paired: PairedTest, significant: bool, policy: Policy
) -> tuple[Decision, str, str]:
    limit = 1.0 + policy.max_p50_slowdown
    batches_over = sum(not ratio <= limit for ratio in paired.set_ratios)
    batches_over += case.code == Code.NEEDS_CONFIRMATION
    confirmed = not paired.set_ratios[-1] <= limit and not paired.ratio <= limit
    if significant and (batches_over >= 2 or (len(paired.set_ratios) > 1 and confirmed)):
        return Decision.FAIL, Code.PAIRED_P50_SLOWER, "Slower than the baseline's own code:"
    if significant and _worth_reporting(paired.ratio, policy):
        return Decision.SLOWER, Code.PAIRED_SLOWER, "Slower:"
    if case.code == Code.NEEDS_CONFIRMATION:
        return (
            Decision.PASS_WITH_WARNING,
            Code.P50_SLOWER_ONCE,
            "Not confirmed against the baseline's own code:",
        )
    return case.decision, case.code, ""
