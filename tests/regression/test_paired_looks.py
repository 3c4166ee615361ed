"""Two looks at pairs of processes: the level of each, and what it takes for a slowdown to be a FAIL."""

from __future__ import annotations

import math

import msgspec
import pytest

from mini_kv.core.records.regression import CaseComparison, Decision, Regression
from mini_kv.core.rules import student_t
from mini_kv.core.rules.statistics import mean, std
from mini_kv.regression import Policy, add_pairs, needs_more_pairs
from mini_kv.regression.decisions import sum_up

POLICY = Policy()


def passed(*names: str) -> Regression:
    """Return what a gate says whose single batches were all within the limits."""
    cases = tuple(
        CaseComparison(
            case_id=name,
            decision=Decision.PASS,
            code="WITHIN_LIMITS",
            message="equal",
            p50_ratio=1.0,
            p95_ratio=1.0,
            reference_ratio=1.0,
        )
        for name in names
    )
    return Regression(
        schema_version="1.0.0",
        decision=Decision.PASS,
        code="WITHIN_LIMITS",
        message="equal",
        baseline="b.json",
        baseline_sha256=None,
        cases=cases,
    )


def pairs_at(p_value: float, count: int, log_ratio: float = 0.03) -> list[float]:
    """Return log-ratios whose one-sided t-test says ``p_value``, each set of five with the same mean."""
    pattern = [(-1.0, -0.5, 0.0, 0.5, 1.0)[position % 5] for position in range(count)]
    t = student_t.quantile(1.0 - p_value, count - 1)
    spread = log_ratio * math.sqrt(count) / (t * std(pattern))
    return [log_ratio + spread * place for place in pattern]


def test_the_pairs_of_these_tests_have_the_p_value_that_they_are_made_for() -> None:
    for count in (5, 20):
        values = pairs_at(0.02, count)
        t = mean(values) / (std(values) / math.sqrt(count))
        assert (mean(values), student_t.survival(t, count - 1)) == pytest.approx((0.03, 0.02))


@pytest.mark.parametrize(
    ("p_value", "decision"),
    [
        (0.0199, Decision.SLOWER),
        (0.0201, Decision.PASS),
        (0.0499, Decision.PASS),
    ],
)
def test_the_first_look_had_the_whole_level(p_value: float, decision: Decision) -> None:
    """Two looks at 5 % each call equal code slower in 5.8 % of the runs; 2 % and 3 % keep 5 % together."""
    got = add_pairs(passed("large"), {"large": pairs_at(p_value, POLICY.pairs)}, POLICY)
    assert got.decision is decision
    assert needs_more_pairs(got, POLICY) == ("large",)


@pytest.mark.parametrize(
    ("p_value", "decision"),
    [
        (0.0299, Decision.SLOWER),
        (0.0301, Decision.PASS),
        (0.0499, Decision.PASS),
    ],
)
def test_the_second_look_had_the_whole_level(p_value: float, decision: Decision) -> None:
    values = pairs_at(p_value, POLICY.pairs + POLICY.more_pairs)
    first, second = values[: POLICY.pairs], values[POLICY.pairs :]
    got = add_pairs(passed("large"), {"large": first}, POLICY, {"large": second})
    assert got.decision is decision
    assert needs_more_pairs(got, POLICY) == ()


def test_each_look_is_corrected_for_all_cases_and_not_for_those_that_it_tested_alone() -> None:
    """Of two cases the one with a second set was tested at the level of a single case."""
    values = pairs_at(0.0199, POLICY.pairs + POLICY.more_pairs)
    first, second = values[: POLICY.pairs], values[POLICY.pairs :]
    quiet = [0.01, -0.01, 0.0, 0.01, -0.01]
    got = add_pairs(passed("a", "b"), {"a": first, "b": quiet}, POLICY, {"a": second})
    assert got.cases[0].paired is not None
    assert got.cases[0].paired.adjusted_p_value == pytest.approx(2 * 0.0199)
    assert got.decision is Decision.PASS


def sure(ratio: float, count: int) -> list[float]:
    """Return log-ratios about a ratio that leave no doubt of it."""
    return [math.log(ratio) + 0.0005 * (position % 3 - 1) for position in range(count)]


@pytest.mark.parametrize(
    ("first", "second", "decision"),
    [
        (1.02, 1.055, Decision.SLOWER),  # 1.046 together
        (1.02, 1.065, Decision.FAIL),  # 1.054 together
        (1.049, 1.051, Decision.FAIL),
        (1.08, 1.045, Decision.SLOWER),  # 1.054 together
        (1.055, 1.055, Decision.FAIL),
        (1.045, 1.045, Decision.SLOWER),
    ],
)
def test_the_second_set_alone_was_a_fail(first: float, second: float, decision: Decision) -> None:
    """All pairs together say how slow it is; one set that is over the limit by chance does not."""
    got = add_pairs(
        passed("large"),
        {"large": sure(first, POLICY.pairs)},
        POLICY,
        {"large": sure(second, POLICY.more_pairs)},
    )
    assert got.decision is decision


def test_the_first_set_alone_is_no_fail_and_takes_a_second() -> None:
    got = add_pairs(passed("large"), {"large": sure(1.2, POLICY.pairs)}, POLICY)
    assert got.decision is Decision.SLOWER
    assert needs_more_pairs(got, POLICY) == ("large",)


def test_a_case_whose_pairs_were_lost_was_judged_by_those_that_were_left() -> None:
    values = {"large": [0.0] * 5, "small": [0.0] * 5}
    got = add_pairs(passed("large", "small"), values, POLICY, lost={"large": "the process died"})
    large, small = got.cases
    assert (large.decision, large.code, large.paired) == (Decision.PASS_WITH_WARNING, "PAIRS_UNUSABLE", None)
    assert large.message == "The paired test could not be made (the process died). equal"
    assert (small.decision, small.paired is not None) == (Decision.PASS, True)


def test_a_baseline_that_times_no_case_compares_nothing() -> None:
    got = sum_up((), "b.json", None)
    assert (got.decision, got.code, got.cases, got.baseline) == (
        Decision.INCONCLUSIVE,
        "NO_CASES",
        (),
        "b.json",
    )


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, "; and 1 more"), (6, "; and 3 more")])
def test_three_deciding_cases_are_shown_and_the_others_counted(count: int, more: str) -> None:
    cases = passed(*(f"c{number}" for number in range(count))).cases
    slower = msgspec.structs.replace(cases[0], case_id="slow", decision=Decision.SLOWER, code="PAIRED_SLOWER")
    got = sum_up(cases, None, None)
    assert got.message == f"{count} of {count} case(s) PASS. c0: equal; c1: equal; c2: equal{more}."
    gravest = sum_up((*cases, slower), None, None)
    assert (gravest.decision, gravest.code) == (Decision.SLOWER, "PAIRED_SLOWER")
    assert gravest.message == f"1 of {count + 1} case(s) SLOWER. slow: equal."
