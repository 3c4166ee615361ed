from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attempt_factory as make
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import ExitCode
from mini_kv.core.records.attempt import Attempt, Baseline
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase, Series
from mini_kv.core.records.regression import Decision, Regression
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.statistics import summarize
from mini_kv.core.rules.suite import suite_hash
from mini_kv.regression import (
    CurrentMeasurement,
    Policy,
    add_pairs,
    decide,
    exit_code,
    holm,
    needs_confirmation,
    needs_more_pairs,
    needs_retiming,
    paired_slowdown,
    wants_pairs,
)

POLICY = Policy()
CARD = make.card()
MACHINE = make.environment()


def baseline(timed: Benchmark | None = None, **changes: Any) -> Baseline:
    attempt = Attempt(
        schema_version="1.0.0", attempt_id="20260301T120000Z-00000000", task_id=CARD.task_id,
        operator=CARD.operator, operator_version=CARD.operator_version, candidate_id="v0_naive",
        candidate_version="1.0.0", candidate_folder=CARD.candidate, device="cpu",
        suite_sha256=suite_hash(CARD), environment_key=MACHINE.key, build_key=None, reference_sha256=None,
        started_at="", elapsed_s=1.0, stage_elapsed_s={}, complete=True, accepted=True, exit_code=0, axes=(),
        findings=(), secret_seeds={}, benchmark_stable=True, geomean_speedup=2.0, primary_p50_us=10.0,
        files=(),
    )  # fmt: skip
    return Baseline(
        schema_version="1.0.0",
        promoted_at="",
        attempt=msgspec.structs.replace(attempt, **changes),
        attempt_sha256=sha256_bytes(b""),
        candidate_manifest=make.manifest(),
        environment=MACHINE,
        benchmark=timed or make.benchmark(),
        sources={},
        sources_sha256={},
    )


def timed(ratio: float = 1.0, *, tail: float = 1.0, reference: float = 1.0, **changes: Any) -> BenchmarkCase:
    """Return case ``large`` at ``ratio`` times its baseline P50 and ``tail`` times its relative P95."""
    side = make.series(10.0 * ratio)
    side = msgspec.structs.replace(side, p50_us=10.0 * ratio, p95_us=side.p95_us * tail, floor_us=0.0)
    other = msgspec.structs.replace(make.series(20.0 * reference), p50_us=20.0 * reference)
    return msgspec.structs.replace(make.benchmark_case("large", side, other), **changes)


BASELINE = baseline(make.benchmark(timed()))


def current(*cases: BenchmarkCase, **changes: Any) -> CurrentMeasurement:
    made = CurrentMeasurement(
        task_id=CARD.task_id,
        operator_version=CARD.operator_version,
        suite_sha256=suite_hash(CARD),
        environment_key=MACHINE.key,
        benchmark=make.benchmark(*cases) if cases else None,
    )
    return msgspec.structs.replace(made, **changes)


def gate(first: BenchmarkCase, second: BenchmarkCase | None = None, policy: Policy = POLICY) -> Regression:
    confirmation = make.benchmark(second) if second is not None else None
    return decide(current(first), BASELINE, policy, confirmation)


def verdict(regression: Regression) -> tuple[Decision, str]:
    return regression.decision, regression.code


# ---------------------------------------------------------------------------- comparability


def test_no_baseline_is_its_own_word() -> None:
    got = decide(current(timed()), None, POLICY)
    assert verdict(got) == (Decision.NO_BASELINE, "NO_BASELINE")
    assert (got.baseline, got.cases) == (None, ())


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"task_id": "rmsnorm"}, "DIFFERENT_TASK", "task id is rmsnorm, the baseline's is vector_add"),
        ({"operator_version": "1.0.1"}, "DIFFERENT_OPERATOR_VERSION", "operator version is 1.0.1"),
        ({"suite_sha256": "0" * 64}, "DIFFERENT_SUITE", "suite hash is 000000000000"),
        ({"suite_sha256": suite_hash(CARD)[:-1] + "x"}, "DIFFERENT_SUITE", "suite hash"),
        ({"environment_key": "0" * 64}, "DIFFERENT_ENVIRONMENT", "environment key differs"),
        ({"environment_key": None}, "NO_ENVIRONMENT", "not known"),
        ({"benchmark": make.benchmark(timed(), device="cuda")}, "DIFFERENT_DEVICE", "timed on cuda"),
    ],
)
def test_what_differs_is_incomparable_and_named(changes: dict[str, Any], code: str, named: str) -> None:
    got = decide(current(timed(), **changes), BASELINE, POLICY)
    assert verdict(got) == (Decision.INCOMPARABLE, code)
    assert named in got.message
    assert exit_code(got) is ExitCode.ACCEPTED


def test_every_difference_is_named_at_once() -> None:
    got = decide(current(timed(), task_id="x", operator_version="9.0.0"), BASELINE, POLICY)
    assert verdict(got) == (Decision.INCOMPARABLE, "DIFFERENT_TASK")
    assert "task id" in got.message
    assert "operator version" in got.message


def test_a_different_environment_is_explained_where_its_facts_are_known() -> None:
    other = msgspec.structs.replace(make.environment(machine="Other CPU"), torch="2.12.0")
    got = decide(current(timed(), environment_key=other.key, environment=other), BASELINE, POLICY)
    assert verdict(got) == (Decision.INCOMPARABLE, "DIFFERENT_ENVIRONMENT")
    assert "CPU: Other CPU, was Example CPU" in got.message
    assert "torch: 2.12.0, was 2.11.0" in got.message


def test_another_kind_of_device_is_not_buried_under_all_that_follows_from_it() -> None:
    other = msgspec.structs.replace(make.environment(machine="Other CPU"), device="cuda", timer_plan="events")
    got = decide(current(timed(), environment_key="0" * 64, environment=other), BASELINE, POLICY)
    assert verdict(got) == (Decision.INCOMPARABLE, "DIFFERENT_ENVIRONMENT")
    assert "the environment key differs (device: cuda, was cpu)" in got.message


def test_slow_and_incomparable_is_incomparable() -> None:
    got = decide(current(timed(9.0), task_id="x"), BASELINE, POLICY, make.benchmark(timed(9.0)))
    assert got.decision is Decision.INCOMPARABLE


# ---------------------------------------------------------------------------- P50


def test_equal_times_pass_with_every_ratio() -> None:
    got = gate(timed())
    assert verdict(got) == (Decision.PASS, "WITHIN_LIMITS")
    (case,) = got.cases
    assert (case.p50_ratio, case.p95_ratio, case.reference_ratio) == (1.0, 1.0, 1.0)


def test_the_limit_itself_passes_and_beyond_it_needs_a_second_batch() -> None:
    assert gate(timed(1.05)).decision is Decision.PASS
    got = gate(timed(1.0501))
    assert verdict(got) == (Decision.INCONCLUSIVE, "NEEDS_CONFIRMATION")
    assert needs_confirmation(got) == ("large",)
    assert exit_code(got) is ExitCode.ACCEPTED


def test_slower_in_both_batches_fails() -> None:
    got = gate(timed(1.06), timed(1.07))
    assert verdict(got) == (Decision.FAIL, "P50_SLOWER")
    assert exit_code(got) is ExitCode.REGRESSION == 6
    assert needs_confirmation(got) == ()
    assert got.cases[0].confirmation_p50_ratio == pytest.approx(1.07)


@pytest.mark.parametrize(("first", "second"), [(1.06, 1.04), (1.04, 1.06)])
def test_slower_in_one_of_two_batches_warns(first: float, second: float) -> None:
    got = gate(timed(first), timed(second))
    assert verdict(got) == (Decision.PASS_WITH_WARNING, "P50_SLOWER_ONCE")
    assert exit_code(got) is ExitCode.ACCEPTED


def test_a_second_batch_that_cannot_be_judged_confirms_nothing() -> None:
    got = gate(timed(1.06), timed(1.06, reference=1.03))
    assert verdict(got) == (Decision.INCONCLUSIVE, "CONFIRMATION_REFERENCE_MOVED")
    got = gate(timed(1.06), timed(1.06, stable=False))
    assert verdict(got) == (Decision.INCONCLUSIVE, "CONFIRMATION_UNSTABLE")
    assert needs_confirmation(got) == ()


def test_a_second_batch_without_the_case_leaves_it_unconfirmed() -> None:
    other = make.benchmark(make.benchmark_case("small", make.series(1.0), make.series(1.0)))
    got = decide(current(timed(1.06)), BASELINE, POLICY, other)
    assert verdict(got) == (Decision.INCONCLUSIVE, "NEEDS_CONFIRMATION")


def test_improvements_are_reported_and_never_fail() -> None:
    assert verdict(gate(timed(0.5))) == (Decision.PASS, "FASTER")
    assert verdict(gate(timed(0.5), timed(0.5))) == (Decision.PASS, "FASTER")


# ---------------------------------------------------------------------------- P95, reference, quality


def test_a_slower_tail_only_warns() -> None:
    assert verdict(gate(timed(tail=1.10))) == (Decision.PASS, "WITHIN_LIMITS")
    got = gate(timed(tail=1.2))
    assert verdict(got) == (Decision.PASS_WITH_WARNING, "P95_SLOWER")
    assert exit_code(got) is ExitCode.ACCEPTED
    assert gate(timed(tail=50.0), timed(tail=50.0)).decision is Decision.PASS_WITH_WARNING


@pytest.mark.parametrize("moved", [1.0201, 0.9799, 5.0])
def test_a_reference_that_moved_is_inconclusive_however_slow(moved: float) -> None:
    got = gate(timed(1.5, reference=moved), timed(1.5, reference=moved))
    assert verdict(got) == (Decision.INCONCLUSIVE, "REFERENCE_MOVED")
    assert needs_confirmation(got) == ()


@pytest.mark.parametrize("allowed", [1.02, 0.98])
def test_a_reference_within_two_percent_is_allowed(allowed: float) -> None:
    assert gate(timed(reference=allowed)).decision is Decision.PASS


@pytest.mark.parametrize(
    "changes",
    [
        {"stable": False},
        {"stable": False, "findings": (Finding(code="THROTTLED", message="The GPU was throttled."),)},
        {"candidate": msgspec.structs.replace(timed().candidate, robust_cv=0.031)},
        {"candidate": msgspec.structs.replace(timed().candidate, robust_cv=math.nan)},
        {"reference": msgspec.structs.replace(timed().reference, robust_cv=0.031)},
    ],
)
def test_a_failed_quality_gate_is_inconclusive_whatever_the_flag_says(changes: dict[str, Any]) -> None:
    case = msgspec.structs.replace(timed(1.5), **changes)
    assert verdict(gate(case, case)) == (Decision.INCONCLUSIVE, "UNSTABLE")


def test_what_was_not_timed_has_not_passed() -> None:
    got = decide(current(), BASELINE, POLICY)
    assert verdict(got) == (Decision.INCONCLUSIVE, "NOT_TIMED")
    assert verdict(gate(timed(candidate=None))) == (Decision.INCONCLUSIVE, "CASE_NOT_TIMED")
    two = baseline(make.benchmark())
    got = decide(current(timed()), two, POLICY)
    assert [(case.case_id, case.code) for case in got.cases] == [
        ("large", "WITHIN_LIMITS"),
        ("small", "CASE_NOT_TIMED"),
    ]
    assert got.decision is Decision.INCONCLUSIVE


def test_a_case_that_the_baseline_does_not_know_is_incomparable() -> None:
    extra = msgspec.structs.replace(timed(), case_id="extra")
    got = decide(current(timed(), extra), BASELINE, POLICY)
    assert verdict(got) == (Decision.INCOMPARABLE, "CASE_NOT_IN_BASELINE")


NAN = math.nan


def test_not_a_number_lands_on_the_failing_side() -> None:
    broken = msgspec.structs.replace(timed().candidate, p50_us=NAN)
    case = timed(candidate=broken)
    assert verdict(gate(case)) == (Decision.INCONCLUSIVE, "NEEDS_CONFIRMATION")
    got = gate(case, case)
    assert verdict(got) == (Decision.FAIL, "P50_SLOWER")
    assert got.cases[0].p50_ratio is None
    tail = timed(candidate=msgspec.structs.replace(timed().candidate, p95_us=NAN))
    assert gate(tail).decision is Decision.PASS_WITH_WARNING
    reference = timed(reference=1.0)
    reference = msgspec.structs.replace(
        reference, reference=msgspec.structs.replace(reference.reference, p50_us=NAN)
    )
    assert verdict(gate(reference)) == (Decision.INCONCLUSIVE, "REFERENCE_MOVED")


def test_the_gravest_case_decides() -> None:
    def case(name: str, ratio: float, **changes: Any) -> BenchmarkCase:
        return msgspec.structs.replace(timed(ratio, **changes), case_id=name)

    before = baseline(make.benchmark(case("a", 1.0), case("b", 1.0), case("c", 1.0)))
    now = (case("a", 1.2), case("b", 1.0, reference=1.5), case("c", 1.0, tail=2.0))
    got = decide(current(*now), before, POLICY, make.benchmark(*now))
    assert [one.decision for one in got.cases] == [
        Decision.FAIL,
        Decision.INCONCLUSIVE,
        Decision.PASS_WITH_WARNING,
    ]
    assert verdict(got) == (Decision.FAIL, "P50_SLOWER")
    assert got.message.startswith("1 of 3 case(s) FAIL. a: ")


RATIO = st.floats(0.2, 5.0)


@given(RATIO, RATIO, st.floats(0.9, 1.1), st.floats(0.5, 3.0))
def test_failing_takes_two_slow_batches_with_a_still_reference(
    first: float, second: float, reference: float, tail: float
) -> None:
    got = gate(timed(first, reference=reference, tail=tail), timed(second, tail=tail))
    fails = got.decision is Decision.FAIL
    (case,) = got.cases
    assert case.p50_ratio is not None
    assert case.confirmation_p50_ratio is not None
    still = 0.98 <= (case.reference_ratio or 0.0) <= 1.02
    assert fails == (still and case.p50_ratio > 1.05 and case.confirmation_p50_ratio > 1.05)
    assert (exit_code(got) == 6) == fails
    assert got.code
    assert got.message


@given(RATIO, RATIO)
def test_slower_is_never_judged_better(one: float, other: float) -> None:
    order = [Decision.PASS, Decision.PASS_WITH_WARNING, Decision.INCONCLUSIVE, Decision.FAIL]
    fast, slow = sorted((one, other))
    assert order.index(gate(timed(fast)).decision) <= order.index(gate(timed(slow)).decision)
    assert order.index(gate(timed(fast), timed(fast)).decision) <= order.index(
        gate(timed(slow), timed(slow)).decision
    )


def test_a_decision_survives_its_own_json() -> None:
    got = gate(timed(1.06), timed(1.07))
    assert msgspec.json.decode(msgspec.json.encode(got), type=Regression) == got


# ---------------------------------------------------------------------------- simulated series

Noise = Callable[[random.Random, int, int], float]


def steady(rng: random.Random, repeat: int, sample: int) -> float:
    return rng.gauss(1.0, 0.01)


def heavy_tail(rng: random.Random, repeat: int, sample: int) -> float:
    return rng.gauss(1.0, 0.005) + (rng.paretovariate(1.2) if rng.random() < 0.03 else 0.0)


def drift(rng: random.Random, repeat: int, sample: int) -> float:
    return rng.gauss(1.0, 0.005) * (1.0 + 0.06 * repeat)


def bimodal(rng: random.Random, repeat: int, sample: int) -> float:
    return rng.gauss(1.3 if (rng.random() < (0.4 if repeat % 2 else 0.6)) else 1.0, 0.002)


def simulated(rng: random.Random, noise: Noise, p50_us: float, tick_us: float = 0.032) -> Series:
    samples = [
        [round(p50_us * noise(rng, repeat, sample) / tick_us) * tick_us for sample in range(100)]
        for repeat in range(5)
    ]
    return summarize(samples, calls_per_sample=1, launch_exposed=0, floor_us=0.0, tick_us=tick_us)


def simulated_gate(
    rng: random.Random, noise: Noise, slowdown: float, p50_us: float = 10.0, tick_us: float = 0.032
) -> Decision:
    def batch(factor: float) -> BenchmarkCase:
        candidate = simulated(rng, noise, p50_us * factor, tick_us)
        return make.benchmark_case("large", candidate, simulated(rng, steady, 20.0))

    before = baseline(make.benchmark(batch(1.0)))
    first, second = batch(slowdown), batch(slowdown)
    return decide(current(first), before, POLICY, make.benchmark(second)).decision


SEEDS = st.integers(0, 2**32 - 1).map(random.Random)


@settings(max_examples=20)
@given(SEEDS, st.floats(1.0, 1.03))
def test_noise_alone_passes(rng: random.Random, slowdown: float) -> None:
    assert simulated_gate(rng, steady, slowdown) is Decision.PASS


@settings(max_examples=20)
@given(SEEDS, st.floats(1.07, 3.0))
def test_a_slowdown_beyond_the_limit_fails(rng: random.Random, slowdown: float) -> None:
    assert simulated_gate(rng, steady, slowdown) is Decision.FAIL


@settings(max_examples=20)
@given(SEEDS, st.floats(1.07, 3.0))
def test_heavy_tails_neither_cry_wolf_nor_sleep(rng: random.Random, slowdown: float) -> None:
    # Tails may spoil the P95, which makes a case inconclusive; they never turn the decision round.
    assert simulated_gate(rng, heavy_tail, 1.0) is not Decision.FAIL
    assert simulated_gate(rng, heavy_tail, slowdown) in (Decision.FAIL, Decision.INCONCLUSIVE)


@settings(max_examples=20)
@given(SEEDS, st.sampled_from([drift, bimodal]), st.floats(0.8, 1.5))
def test_drifting_and_bimodal_series_are_inconclusive(
    rng: random.Random, noise: Noise, slowdown: float
) -> None:
    assert simulated_gate(rng, noise, slowdown) is Decision.INCONCLUSIVE


def test_a_clock_too_coarse_for_the_limit_is_inconclusive() -> None:
    # One tick of 10 % of the time: every repeat may agree and still nothing under a tick is known.
    rng = random.Random(1)
    coarse = simulated_gate(rng, lambda *_: 1.0, 1.0, p50_us=1.0, tick_us=0.125)
    assert coarse is Decision.INCONCLUSIVE


# ---------------------------------------------------------------------------- one offset a process


def offset(side: Series, shift_us: float, floor_us: float = 3.2) -> Series:
    """Return what a process reads whose timer adds ``shift_us`` to every time and to its floor."""
    return msgspec.structs.replace(
        side,
        p50_us=side.p50_us + floor_us + shift_us,
        p95_us=side.p95_us + floor_us + shift_us,
        floor_us=floor_us + shift_us,
    )


def in_processes(ratio: float, candidate_us: float, reference_us: float) -> BenchmarkCase:
    case = timed(ratio)
    assert case.candidate is not None
    assert case.reference is not None
    return msgspec.structs.replace(
        case, candidate=offset(case.candidate, candidate_us), reference=offset(case.reference, reference_us)
    )


@given(*(st.floats(-0.15, 0.15) for _ in range(4)))
def test_the_offset_of_a_process_moves_no_decision(a: float, b: float, c: float, d: float) -> None:
    before = baseline(make.benchmark(in_processes(1.0, a, b)))
    for ratio, expected in ((1.0, Decision.PASS), (1.08, Decision.FAIL)):
        now = in_processes(ratio, c, d)
        got = decide(current(now), before, POLICY, make.benchmark(now))
        assert got.decision is expected
        assert got.cases[0].p50_ratio == pytest.approx(ratio)


@pytest.mark.parametrize("floor_us", [6.0, NAN, math.inf])
def test_a_floor_that_cannot_be_an_offset_excuses_no_slowdown(floor_us: float) -> None:
    slow = in_processes(1.2, 0.0, 0.0)
    assert slow.candidate is not None
    slow = msgspec.structs.replace(slow, candidate=msgspec.structs.replace(slow.candidate, floor_us=floor_us))
    before = baseline(make.benchmark(in_processes(1.0, 0.0, 0.0)))
    got = decide(current(slow), before, POLICY, make.benchmark(slow))
    assert got.decision is Decision.FAIL
    assert got.cases[0].p50_ratio == pytest.approx((12.0 + 3.2) / (10.0 + 3.2))


def h200_batch(rng: random.Random, net_us: float, buffers_us: float, slowdown: float) -> BenchmarkCase:
    """Return one batch with the spreads measured between processes of one H200 (standard deviations).

    0.070 us of timer offset a process, ``buffers_us`` for where a process's buffers lie.
    """

    def side(net: float) -> Series:
        read = msgspec.structs.replace(make.series(10.0), p50_us=net + rng.gauss(0.0, buffers_us))
        return offset(msgspec.structs.replace(read, p95_us=read.p50_us * 1.03), rng.gauss(0.0, 0.07))

    return make.benchmark_case("large", side(net_us * slowdown), side(net_us))


@pytest.mark.parametrize(
    ("net_us", "buffers_us", "slowdown", "least_failing", "most_failing"),
    [
        (3.0, 0.063, 1.0, 0, 1),
        (5.7, 0.070, 1.0, 0, 1),
        (67.6, 0.181, 1.0, 0, 0),
        (5.7, 0.070, 1.2, 100, 200),
        (67.6, 0.181, 1.08, 200, 200),
    ],
)
def test_false_alarms_and_power_with_the_spreads_of_an_h200(
    net_us: float, buffers_us: float, slowdown: float, least_failing: int, most_failing: int
) -> None:
    rng = random.Random(11)
    failing = 0
    for _ in range(200):
        before, first, second = (
            make.benchmark(h200_batch(rng, net_us, buffers_us, factor), device="cuda")
            for factor in (1.0, slowdown, slowdown)
        )
        got = decide(current(benchmark=first), baseline(before), POLICY, second)
        failing += got.decision is Decision.FAIL
    assert least_failing <= failing <= most_failing


# ---------------------------------------------------------------------------- paired test


def test_paired_slowdown_agrees_with_a_worked_example() -> None:
    # mean 0.03, sample std 0.01, n 5: t = 0.03 / (0.01 / sqrt(5)) = 6.7082, df 4.
    values = [0.02, 0.03, 0.04, 0.02, 0.04]
    got = paired_slowdown(values, 0.05)
    assert got.mean == pytest.approx(0.03)
    assert got.p_value == pytest.approx(0.001287, abs=2e-6)
    reach = 2.131847 * 0.01 / math.sqrt(5.0)
    assert (got.lower, got.upper) == pytest.approx((0.03 - reach, 0.03 + reach), abs=1e-7)


LOG_RATIOS = st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=12)


@given(LOG_RATIOS, st.sampled_from([0.01, 0.05, 0.1]))
def test_lower_bound_and_p_value_say_the_same(values: list[float], alpha: float) -> None:
    got = paired_slowdown(values, alpha)
    assert got.lower <= got.mean <= got.upper
    assert 0.0 <= got.p_value <= 1.0
    if abs(got.p_value - alpha) > 1e-9:
        assert (got.lower > 0.0) == (got.p_value < alpha)


@given(LOG_RATIOS)
def test_swapping_the_sides_mirrors_the_test(values: list[float]) -> None:
    there, back = paired_slowdown(values, 0.05), paired_slowdown([-value for value in values], 0.05)
    assert back.mean == pytest.approx(-there.mean, abs=1e-12)
    if there.lower != there.upper:
        assert back.p_value == pytest.approx(1.0 - there.p_value, abs=1e-9)


@pytest.mark.parametrize("values", [[], [0.1], [0.1, NAN], [0.1, math.inf]])
def test_too_few_or_broken_pairs_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_slowdown(values, 0.05)


def test_holm_steps_down() -> None:
    got = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert got == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({}) == {}
    assert holm({"a": NAN, "b": 0.01}) == {"a": 1.0, "b": 0.02}


@given(st.dictionaries(st.text(max_size=3), st.floats(0.0, 1.0), max_size=8))
def test_holm_is_no_smaller_than_raw_and_no_larger_than_bonferroni(p_values: dict[str, float]) -> None:
    adjusted = holm(p_values)
    assert list(adjusted) == list(p_values)
    for name, value in p_values.items():
        assert value <= adjusted[name] <= min(1.0, value * len(p_values)) + 1e-12


def test_a_small_sure_slowdown_is_reported_as_slower_with_its_interval() -> None:
    got = add_pairs(gate(timed(1.03)), {"large": [0.03, 0.031, 0.029, 0.03, 0.032]}, POLICY)
    assert verdict(got) == (Decision.SLOWER, "PAIRED_SLOWER")
    assert "90% interval" in got.message
    assert exit_code(got) is ExitCode.ACCEPTED
    paired = got.cases[0].paired
    assert paired is not None
    assert paired.pairs == 5
    assert 1.0 < paired.lower < paired.ratio < paired.upper


@pytest.mark.parametrize(
    "pairs",
    [
        [0.03, -0.03, 0.05, -0.04, 0.01],
        [-0.03, -0.031, -0.029, -0.03, -0.032],
        [0.001, 0.0011, 0.0009, 0.001, 0.001],
    ],
)
def test_unsure_faster_and_trifling_pairs_change_no_decision(pairs: list[float]) -> None:
    got = add_pairs(gate(timed()), {"large": pairs}, POLICY)
    assert verdict(got) == (Decision.PASS, "WITHIN_LIMITS")
    assert got.cases[0].paired is not None


def test_two_sets_of_pairs_over_the_limit_fail_what_the_record_let_pass() -> None:
    over = [0.08, 0.081, 0.079, 0.08, 0.082]
    once = add_pairs(gate(timed(1.04)), {"large": over}, POLICY)
    assert once.decision is Decision.SLOWER
    assert needs_more_pairs(once, POLICY) == ("large",)
    almost = [0.045, 0.055, 0.04, 0.05, 0.046]  # sure, and not surely below the limit
    assert needs_more_pairs(add_pairs(gate(timed(1.04)), {"large": almost}, POLICY), POLICY) == ("large",)
    together = add_pairs(gate(timed(1.04)), {"large": almost}, POLICY, {"large": [*over, *over]})
    assert verdict(together) == (Decision.FAIL, "PAIRED_P50_SLOWER")
    below = [0.03, 0.031, 0.029, 0.03, 0.032]
    assert needs_more_pairs(add_pairs(gate(timed(1.04)), {"large": below}, POLICY), POLICY) == ()
    twice = add_pairs(gate(timed(1.04)), {"large": over}, POLICY, {"large": over})
    assert verdict(twice) == (Decision.FAIL, "PAIRED_P50_SLOWER")
    assert needs_more_pairs(twice, POLICY) == ()
    within = add_pairs(gate(timed(1.04)), {"large": over}, POLICY, {"large": [0.04, 0.041, 0.042]})
    assert within.decision is Decision.SLOWER


def test_pairs_are_the_second_batch_that_confirms_the_first() -> None:
    suspicious = gate(timed(1.08))
    assert needs_confirmation(suspicious)
    confirmed = add_pairs(suspicious, {"large": [0.08, 0.081, 0.079, 0.08, 0.082]}, POLICY)
    assert verdict(confirmed) == (Decision.FAIL, "PAIRED_P50_SLOWER")
    refuted = add_pairs(suspicious, {"large": [0.001, -0.001, 0.0, 0.001, 0.0]}, POLICY)
    assert verdict(refuted) == (Decision.PASS_WITH_WARNING, "P50_SLOWER_ONCE")


@pytest.mark.parametrize("slowdown", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("record", [1.0, 1.08])
def test_no_pairs_decide_where_the_reference_moved_but_their_interval_is_told(
    slowdown: float, record: float
) -> None:
    moved = gate(timed(record, reference=1.03))
    assert wants_pairs(moved) == ("large",)
    pairs = [slowdown + wobble for wobble in (0.001, -0.001, 0.0, 0.001, 0.0)]
    got = add_pairs(moved, {"large": pairs}, POLICY)
    assert verdict(got) == (Decision.INCONCLUSIVE, "REFERENCE_MOVED")
    assert got.cases[0].paired is not None
    assert "90% interval" in got.message
    assert needs_more_pairs(got, POLICY) == ()


def test_a_reference_that_stands_still_in_fresh_processes_had_not_moved() -> None:
    moved = timed(1.0, reference=1.03)
    assert needs_retiming(gate(moved)) == ("large",)
    assert needs_retiming(gate(timed())) == ()
    before = baseline(make.benchmark(timed()))
    for fresh, expected in (
        (timed(1.0), (Decision.PASS, "WITHIN_LIMITS")),
        (timed(1.08), (Decision.INCONCLUSIVE, "NEEDS_CONFIRMATION")),
        (timed(1.0, reference=1.03), (Decision.INCONCLUSIVE, "REFERENCE_MOVED")),
        (timed(1.0, stable=False), (Decision.INCONCLUSIVE, "REFERENCE_MOVED")),
    ):
        got = decide(current(moved), before, POLICY, retimed=make.benchmark(fresh))
        assert verdict(got) == expected
    # Only what moved is taken from the other batch.
    still = decide(current(timed()), before, POLICY, retimed=make.benchmark(timed(1.5)))
    assert verdict(still) == (Decision.PASS, "WITHIN_LIMITS")


def test_what_two_processes_differ_by_moves_no_reference_on_a_gpu() -> None:
    def on_gpu(reference_us: float) -> Benchmark:
        return make.benchmark(make.benchmark_case("large", at(3.0), at(reference_us)), device="cuda")

    for shifted, expected in ((3.15, Decision.PASS), (2.85, Decision.PASS), (3.25, Decision.INCONCLUSIVE)):
        got = decide(current(benchmark=on_gpu(shifted)), baseline(on_gpu(3.0)), POLICY)
        assert got.decision is expected
    long = decide(current(benchmark=on_gpu(20.5)), baseline(on_gpu(20.0)), POLICY)
    assert verdict(long) == (Decision.INCONCLUSIVE, "REFERENCE_MOVED")


def test_pairs_judge_no_unstable_times() -> None:
    unstable = gate(timed(stable=False))
    got = add_pairs(unstable, {"large": [0.2, 0.21, 0.2, 0.19, 0.2]}, POLICY)
    assert verdict(got) == (Decision.INCONCLUSIVE, "UNSTABLE")
    assert needs_more_pairs(got, POLICY) == ()


def test_an_unsure_slowdown_takes_more_pairs_and_a_trifle_does_not() -> None:
    unsure = add_pairs(gate(timed()), {"large": [0.05, -0.01, 0.04, 0.0, 0.03]}, POLICY)
    assert needs_more_pairs(unsure, POLICY) == ("large",)
    trifle = add_pairs(gate(timed()), {"large": [0.004, 0.006, 0.003, 0.004, 0.005]}, POLICY)
    assert needs_more_pairs(trifle, POLICY) == ()


def test_what_two_processes_differ_by_is_no_slowdown_on_a_gpu() -> None:
    short = {ratio: make.benchmark_case("large", at(3.0 * ratio), at(3.0)) for ratio in (1.0, 1.06, 1.08)}
    for ratio, expected in ((1.06, Decision.PASS), (1.08, Decision.FAIL)):
        now = make.benchmark(short[ratio], device="cuda")
        got = decide(current(benchmark=now), baseline(make.benchmark(short[1.0], device="cuda")), POLICY, now)
        assert got.decision is expected


def at(p50_us: float) -> Series:
    return msgspec.structs.replace(make.series(p50_us), p50_us=p50_us, floor_us=0.0)


def test_pairs_never_soften_a_failure() -> None:
    failed = gate(timed(1.2), timed(1.2))
    got = add_pairs(failed, {"large": [-0.1, -0.11, -0.1]}, POLICY)
    assert verdict(got) == (Decision.FAIL, "P50_SLOWER")
    assert got.cases[0].paired is not None


def test_broken_pairs_are_a_warning_and_not_a_pass() -> None:
    got = add_pairs(gate(timed()), {"large": [NAN, 0.0, 0.0]}, POLICY)
    assert verdict(got) == (Decision.PASS_WITH_WARNING, "PAIRS_UNUSABLE")
    assert add_pairs(gate(timed()), {}, POLICY) == gate(timed())


def test_holm_keeps_many_equal_cases_quiet() -> None:
    names = [f"case_{number}" for number in range(10)]
    cases = [msgspec.structs.replace(timed(), case_id=name) for name in names]
    regression = decide(current(*cases), baseline(make.benchmark(*cases)), POLICY)
    rng = random.Random(7)
    alarms = 0
    for _ in range(100):
        pairs = {name: [rng.gauss(0.0, 0.02) for _ in range(5)] for name in names}
        alarms += add_pairs(regression, pairs, POLICY).decision is Decision.SLOWER
    # Family-wise error rate 5 %: 5 of 100 are expected, 12 would be 3.2 standard deviations more.
    assert alarms < 12
