from __future__ import annotations

import math
import random
import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_kv.core.records.benchmark import Series
from mini_kv.core.rules import quality, student_t
from mini_kv.core.rules.quality import judge_quality
from mini_kv.core.rules.statistics import (
    geometric_mean,
    interquartile_range,
    mean,
    median,
    median_absolute_deviation,
    percentile,
    robust_cv,
    std,
    summarize,
    tick_median,
)

TIMES = st.lists(st.floats(min_value=0.01, max_value=1e7), min_size=1, max_size=60)
NOT_NUMBERS = (math.nan, math.inf, -math.inf)


def series(*repeats: tuple[float, ...], **changes: Any) -> Series:
    options: dict[str, Any] = {"calls_per_sample": 1, "launch_exposed": 0, "floor_us": 0.5, "tick_us": 0.032}
    return summarize(repeats, **(options | changes))


def test_percentile_is_hyndman_fan_type_7() -> None:
    # numpy.percentile's default and R's type 7 give these.
    assert percentile([1.0, 2.0, 3.0, 4.0], 25.0) == 1.75
    assert percentile([4.0, 1.0, 3.0, 2.0], 50.0) == 2.5
    assert percentile([15.0, 20.0, 35.0, 40.0, 50.0], 40.0) == pytest.approx(29.0)
    assert percentile([7.0], 95.0) == 7.0
    assert percentile(list(map(float, range(1, 101))), 95.0) == pytest.approx(95.05)


@given(TIMES, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_percentile_stays_in_range_and_never_falls(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert min(values) <= percentile(values, low) <= percentile(values, high) <= max(values)
    assert (percentile(values, 0.0), percentile(values, 100.0)) == (min(values), max(values))


@given(TIMES)
def test_figures_agree_with_the_standard_library(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values))
    assert mean(values) == pytest.approx(statistics.fmean(values))
    assert geometric_mean(values) == pytest.approx(statistics.geometric_mean(values))
    expected = statistics.stdev(values) if len(values) > 1 else 0.0
    assert std(values) == pytest.approx(expected, rel=1e-9, abs=1e-7)
    if len(values) > 1:
        quartiles = statistics.quantiles(values, n=4, method="inclusive")
        assert interquartile_range(values) == pytest.approx(quartiles[2] - quartiles[0], rel=1e-9, abs=1e-6)


@given(TIMES, st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(values: list[float], random: Any) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    for figure in (median, mean, std, median_absolute_deviation, interquartile_range):
        assert figure(shuffled) == pytest.approx(figure(values), rel=1e-12, abs=1e-9)


@given(TIMES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_robust_cv_does_not_depend_on_the_unit(values: list[float], scale: float) -> None:
    scaled = robust_cv([value * scale for value in values], 0.032 * scale)
    assert scaled == pytest.approx(robust_cv(values, 0.032))


@given(TIMES, st.floats(1e-6, 10.0))
def test_robust_cv_is_never_below_what_the_clock_leaves_unknown(values: list[float], tick: float) -> None:
    assert robust_cv(values, tick) >= tick / math.sqrt(12.0) / median(values) > 0.0


def test_two_ticks_in_three_to_two_do_not_read_as_zero() -> None:
    # The MAD of these is 0: three of five repeats agree to the last bit.
    repeats = [3.2, 3.232, 3.2, 3.232, 3.2]
    assert median_absolute_deviation(repeats) == 0.0
    assert robust_cv(repeats, 0.032) == pytest.approx(0.032 / 1.349 / 3.2)


def test_a_bimodal_series_does_not_read_as_zero() -> None:
    assert robust_cv([1.0, 1.3, 1.0, 1.3, 1.0], 1e-3) > 0.2
    assert robust_cv([1.0, 1.0, 1.0, 1.0, 1.3], 0.032) > 0.009
    mixed = series(*((1.0,) * 6 + (1.3,) * 4 for _ in range(5)))
    assert min(mixed.robust_cv, mixed.robust_cv_p95) > 0.0
    assert mixed.cv > 0.1


@pytest.mark.parametrize("bad", NOT_NUMBERS)
@pytest.mark.parametrize(
    "figure",
    [median, mean, std, median_absolute_deviation, interquartile_range, geometric_mean],
)
def test_not_a_number_never_becomes_a_figure(figure: Any, bad: float) -> None:
    with pytest.raises(ValueError):
        figure([1.0, bad, 2.0])
    with pytest.raises(ValueError):
        figure([])
    with pytest.raises(ValueError):
        percentile([1.0, 2.0], bad)
    with pytest.raises(ValueError):
        robust_cv([1.0, 2.0], bad)


@pytest.mark.parametrize("bad", [*NOT_NUMBERS, -0.001, 1e13])
def test_a_sample_that_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        series((1.0, 2.0), (bad, 2.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"calls_per_sample": 0},
        {"launch_exposed": 5},
        {"launch_exposed": -1},
        {"floor_us": math.nan},
        {"floor_us": -1.0},
        {"tick_us": 0.0},
        {"tick_us": math.nan},
        {"tick_us": math.inf},
    ],
)
def test_impossible_conditions_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        series((1.0, 2.0), (1.0, 2.0), **changes)


@pytest.mark.parametrize("repeats", [(), ((),), ((1.0, 2.0), (1.0,)), ((0.0, 0.0), (0.0, 0.0))])
def test_missing_ragged_or_zero_samples_are_refused(repeats: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ValueError):
        series(*repeats)


def test_summary_holds_the_raw_samples_and_what_follows() -> None:
    got = series((4.0, 2.0, 3.0), (5.0, 7.0, 6.0), calls_per_sample=4, launch_exposed=1)
    assert got.samples_us == ((4.0, 2.0, 3.0), (5.0, 7.0, 6.0))
    assert (got.p50_us, got.min_us, got.mean_us) == (4.5, 2.0, 4.5)
    assert got.p95_us == pytest.approx(6.75)
    assert got.net_p50_us == 4.0
    assert got.repeat_p50_us == (3.0, 6.0)
    assert got.repeat_p95_us == pytest.approx((3.9, 6.9))
    assert got.mad_us == 1.5
    assert got.robust_cv == pytest.approx(1.4826 * 1.5 / 4.5)
    assert got.robust_cv_p95 == pytest.approx(1.4826 * 1.5 / 5.4)
    assert got.cv == pytest.approx(got.std_us / 4.5)


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(0.1, 1e4), min_size=7, max_size=7), min_size=1, max_size=6))
def test_every_summary_is_finite_and_ordered(repeats: list[list[float]]) -> None:
    got = summarize(repeats, calls_per_sample=1, launch_exposed=0, floor_us=0.0, tick_us=0.032)
    assert 0.0 < got.min_us <= got.p50_us <= got.p95_us
    assert all(math.isfinite(x) for x in (got.cv, got.robust_cv, got.robust_cv_p95, got.mad_us))
    assert summarize(got.samples_us, calls_per_sample=1, launch_exposed=0, floor_us=0.0, tick_us=0.032) == got


# ---------------------------------------------------------------------------- quality gate

STEADY = series(*((10.0, 10.01, 10.02, 9.99) for _ in range(5)))


def codes(candidate: Series, reference: Series, device: Any = "cuda") -> list[str]:
    return [finding.code for finding in judge_quality(candidate, reference, device)]


def test_a_steady_case_has_no_findings() -> None:
    assert codes(STEADY, STEADY) == []


@pytest.mark.parametrize("spread", [0.0301, math.nan, math.inf])
def test_spread_over_the_limit_or_unknown_is_unstable(spread: float) -> None:
    noisy = msgspec.structs.replace(STEADY, robust_cv=spread)
    assert codes(noisy, STEADY) == ["CANDIDATE_P50_UNSTABLE"]
    assert codes(STEADY, noisy) == ["REFERENCE_P50_UNSTABLE"]
    tail = msgspec.structs.replace(STEADY, robust_cv_p95=spread * 5)
    assert codes(tail, STEADY) == ["CANDIDATE_P95_UNSTABLE"]
    assert codes(STEADY, tail) == [], "the reference's P95 has no limit"


def test_limits_themselves_are_allowed() -> None:
    edge = msgspec.structs.replace(
        STEADY, robust_cv=quality.MAX_P50_ROBUST_CV, robust_cv_p95=quality.MAX_CANDIDATE_P95_ROBUST_CV
    )
    assert codes(edge, edge) == []


def test_a_device_that_waited_for_the_host_is_unstable() -> None:
    samples = tuple((10.0,) * 100 for _ in range(5))
    allowed = series(*samples, launch_exposed=5)
    exposed = series(*samples, launch_exposed=6)
    assert codes(allowed, allowed) == []
    assert codes(exposed, STEADY) == ["LAUNCH_EXPOSED"]
    assert codes(STEADY, exposed) == ["LAUNCH_EXPOSED"]
    assert codes(exposed, exposed, "cpu") == [], "a CPU has no launch to hide"


def test_one_repeat_shows_no_spread_and_is_unstable() -> None:
    single = series((10.0, 10.0))
    assert codes(single, STEADY) == ["TOO_FEW_REPEATS"]
    assert codes(STEADY, single) == ["TOO_FEW_REPEATS"]


def test_the_spread_of_the_p95_was_that_of_the_p50() -> None:
    """The limit for the slow tail then never took effect."""
    wild = series(*((10.0,) * 9 + (tail,) * 3 for tail in (11.0, 15.0, 22.0, 30.0, 12.0)))
    assert wild.robust_cv < 0.001 < quality.MAX_CANDIDATE_P95_ROBUST_CV < wild.robust_cv_p95
    assert codes(wild, STEADY) == ["CANDIDATE_P95_UNSTABLE"]


def test_a_bimodal_case_is_unstable() -> None:
    bimodal = series(*((level,) * 10 for level in (1.0, 1.3, 1.0, 1.3, 1.0)))
    assert "CANDIDATE_P50_UNSTABLE" in codes(bimodal, STEADY)


# ---------------------------------------------------------------------------- Student's t

# Upper critical values from published tables: (one-sided alpha, degrees of freedom, t).
TABLE = [
    (0.05, 1, 6.313752),
    (0.025, 1, 12.706205),
    (0.05, 2, 2.919986),
    (0.01, 4, 3.746947),
    (0.05, 5, 2.015048),
    (0.025, 10, 2.228139),
    (0.005, 20, 2.845340),
    (0.05, 30, 1.697261),
    (0.05, 120, 1.657651),
]


@pytest.mark.parametrize(("alpha", "degrees", "t"), TABLE)
def test_student_t_agrees_with_the_tables(alpha: float, degrees: int, t: float) -> None:
    assert student_t.quantile(1.0 - alpha, degrees) == pytest.approx(t, abs=2e-6)
    assert student_t.survival(t, degrees) == pytest.approx(alpha, rel=1e-5)
    assert student_t.survival(-t, degrees) == pytest.approx(1.0 - alpha, rel=1e-6)


@given(st.floats(-50.0, 50.0), st.integers(1, 300))
def test_student_t_is_symmetric_and_inverts(t: float, degrees: int) -> None:
    upper = student_t.survival(t, degrees)
    assert upper + student_t.survival(-t, degrees) == pytest.approx(1.0, abs=1e-12)
    assert 0.0 <= upper <= 1.0
    if 1e-6 < upper < 1.0 - 1e-6:
        assert student_t.quantile(1.0 - upper, degrees) == pytest.approx(t, rel=1e-6, abs=1e-6)


@given(st.floats(-20.0, 20.0))
def test_student_t_of_one_degree_is_the_cauchy_distribution(t: float) -> None:
    assert student_t.survival(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-12)


@given(st.floats(0.0, 1.0))
def test_incomplete_beta_of_known_closed_forms(x: float) -> None:
    assert student_t.incomplete_beta(1.0, 1.0, x) == pytest.approx(x, abs=1e-12)
    assert student_t.incomplete_beta(3.0, 1.0, x) == pytest.approx(x**3, abs=1e-12)
    assert student_t.incomplete_beta(1.0, 4.0, x) == pytest.approx(1.0 - (1.0 - x) ** 4, abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, -0.1, 1.1])
def test_distributions_refuse_what_is_not_defined(bad: float) -> None:
    with pytest.raises(ValueError):
        student_t.incomplete_beta(1.0, 1.0, bad)
    with pytest.raises(ValueError):
        student_t.quantile(bad, 5)
    with pytest.raises(ValueError):
        student_t.survival(math.nan, 5)


# ---------------------------------------------------------------------------- medians below the tick


@given(st.floats(1.0, 100.0), st.integers(0, 2**32 - 1))
def test_a_time_between_two_ticks_is_read_between_them(true_us: float, seed: int) -> None:
    chance = random.Random(seed)
    readings = [0.032 * math.floor(true_us / 0.032 + chance.random()) for _ in range(400)]
    assert abs(tick_median(readings, 0.032) - true_us) < 0.006


@given(TIMES, st.floats(0.0, 10.0))
def test_the_median_below_the_tick_stays_within_half_a_tick_of_the_plain_one(
    values: list[float], tick_us: float
) -> None:
    plain = median(values)
    assert abs(tick_median(values, tick_us) - plain) <= 0.5 * tick_us * (1.0 + 1e-9) + 1e-9 * plain


def test_without_a_tick_it_is_the_plain_median() -> None:
    assert tick_median([1.0, 2.0, 4.0], 0.0) == 2.0
    for tick in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="tick"):
            tick_median([1.0], tick)


def test_what_is_not_defined_is_said_to_be_and_infinity_is_the_end_of_the_tail() -> None:
    for a, b, x in ((1.0, 1.0, 1.1), (1.0, 1.0, -0.1), (0.0, 1.0, 0.5), (1.0, 0.0, 0.5), (1.0, 1.0, 2.0)):
        with pytest.raises(ValueError, match=r"I_x\(a, b\) is not defined"):
            student_t.incomplete_beta(a, b, x)
    assert [student_t.incomplete_beta(0.5, 0.5, x) for x in (0.0, 1.0)] == [0.0, 1.0]
    assert [student_t.survival(t, 3) for t in (math.inf, -math.inf)] == [0.0, 1.0]
    for t, degrees in ((1.0, 0.0), (1.0, -1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="not defined"):
            student_t.survival(t, degrees)
    for probability, degrees in ((0.0, 5.0), (1.0, 5.0), (0.5, 0.0)):
        with pytest.raises(ValueError, match="no quantile"):
            student_t.quantile(probability, degrees)
    assert student_t.quantile(0.5, 7) == pytest.approx(0.0, abs=1e-12)
