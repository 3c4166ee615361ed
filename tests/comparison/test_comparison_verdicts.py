"""Which of two candidates is called faster, from pairs of fresh processes: what is no evidence of it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attempt_factory import benchmark, benchmark_case, series
from mini_kv.comparison import verdicts
from mini_kv.comparison.verdicts import compared_cases, estimate, overall, sentence, word_of
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase, KernelWitness
from mini_kv.core.records.comparison import ComparedCase, RatioEstimate
from mini_kv.core.records.pairs import PairLoss, PairResult, PairSet, PairSide
from mini_kv.core.records.results import Finding, Status


def test_the_interval_is_students_over_pairs() -> None:
    ratio = estimate([0.01, 0.03, 0.02])
    assert ratio is not None
    # t(0.975, 2) = 4.3027; standard error 0.01 / sqrt(3).
    reach = 4.3027 * 0.01 / math.sqrt(3)
    assert ratio.ratio == pytest.approx(math.exp(0.02))
    assert (ratio.lower, ratio.upper) == (
        pytest.approx(math.exp(0.02 - reach), rel=1e-5),
        pytest.approx(math.exp(0.02 + reach), rel=1e-5),
    )
    assert word_of(ratio) == "no_difference"


@pytest.mark.parametrize("log_ratios", [[], [0.1], [0.1, math.nan], [math.inf, 0.0]])
def test_too_few_or_impossible_ratios_decide_nothing(log_ratios: list[float]) -> None:
    assert estimate(log_ratios) is None
    assert word_of(None) == "undecided"
    assert "fewer than two pairs" in sentence("undecided", None)


@given(st.lists(st.floats(-2.0, 2.0), min_size=2, max_size=9))
def test_swapping_the_sides_mirrors_the_verdict(log_ratios: list[float]) -> None:
    one, two = estimate(log_ratios), estimate([-value for value in log_ratios])
    assert one is not None and two is not None
    mirror = {"faster": "slower", "slower": "faster"}
    assert word_of(two) == mirror.get(word_of(one), word_of(one))
    assert one.ratio * two.ratio == pytest.approx(1.0)
    assert one.lower <= one.ratio * (1 + 1e-9) and one.ratio <= one.upper * (1 + 1e-9)


def interval(ratio: float, lower: float, upper: float) -> RatioEstimate:
    return RatioEstimate(
        pairs=5, ratio=ratio, lower=lower, upper=upper, confidence=0.95, log_ratios=(0.0,) * 5
    )


@pytest.mark.parametrize(
    ("lower", "upper", "word"),
    [
        (1.01, 1.2, "slower"),
        (1.0, 1.2, "no_difference"),
        (0.9, 1.0, "no_difference"),
        (0.9, 0.99, "faster"),
        (1.0, 1.0, "no_difference"),
        (math.nan, 1.2, "undecided"),
        (0.9, math.nan, "undecided"),
    ],
)
def test_an_interval_that_holds_1_was_called_a_difference(lower: float, upper: float, word: str) -> None:
    assert word_of(interval(1.0, lower, upper)) == word


def test_the_sentence_gives_rate_for_faster_and_time_for_slower() -> None:
    half, twice = interval(0.5, 0.4, 0.6), interval(2.0, 1.9, 2.1)
    assert sentence("faster", half) == (
        "B is faster by 100.0% in rate (B / A = 0.5000 in net time, "
        "95% interval 0.4000 to 0.6000, 5 pairs of processes)"
    )
    assert sentence("slower", twice).startswith("B is slower by 100.0% in time (B / A = 2.0000 in net time")
    assert sentence("no_difference", twice).startswith("no difference within the interval (B / A = 2.0000")
    assert sentence("undecided", twice).startswith("undecided (B / A = 2.0000")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.05, "0.05"), (0.1, "0.1000"), (9.99996, "10.0000"), (10.0, "10"), (123.4, "123.4")],
)
def test_small_and_large_ratios_keep_their_digits(value: float, text: str) -> None:
    assert f"B / A = {text} in net time" in sentence("no_difference", interval(value, 1.0, 1.0))


def test_a_ratio_too_large_for_a_float_is_still_a_ratio() -> None:
    ratio = estimate([699.9, 700.1])
    assert ratio is not None
    assert math.isfinite(ratio.upper)
    assert ratio.ratio == pytest.approx(math.exp(700.0))
    assert ratio.upper == math.exp(700.0)


# ---------------------------------------------------------------------------- one case


def one_side(net_us: float) -> PairSide:
    return PairSide(
        label="x",
        samples_us=((net_us,),),
        calls_per_sample=1,
        launch_exposed=0,
        p50_us=net_us,
        floor_us=0.0,
        empty_kernel_us=0.0,
        net_us=net_us,
    )


def pairs_at(ratios: dict[str, list[float]], *losses: PairLoss) -> PairSet:
    results = tuple(
        PairResult(case_id=name, pair=number, first="a", a=one_side(10.0), b=one_side(10.0 * ratio))
        for name, values in ratios.items()
        for number, ratio in enumerate(values)
    )
    return PairSet(
        schema_version="1.0.0",
        label_a="A",
        label_b="B",
        pairs=5,
        results=results,
        losses=losses,
        elapsed_s=1.0,
    )


SLOWER = [1.20, 1.21, 1.19, 1.20, 1.20]
EQUAL = [1.001, 0.999, 1.0, 1.002, 0.998]
LOST = Finding(code="CRASHED", message="the process died")


def timed(device: str = "cpu", **changes: Any) -> Benchmark:
    made = benchmark_case("large", series(10.0), series(20.0))
    return benchmark(msgspec.structs.replace(made, **changes), device=device)


def compared(
    a: Benchmark | None = None,
    b: Benchmark | None = None,
    pairs: PairSet | None = None,
    watched: tuple[Finding, ...] = (),
) -> ComparedCase:
    (case,) = compared_cases(a or timed(), b or timed(), pairs or pairs_at({"large": SLOWER}), watched)
    return case


def test_pairs_decide_a_case_and_its_figures_are_b_over_a() -> None:
    b = benchmark(benchmark_case("large", series(30.0), series(20.0)))
    case = compared(b=b)
    assert (case.word, case.findings) == ("slower", ())
    assert case.reference_spread is not None and 0.0 <= case.reference_spread < 0.01
    assert case.message.startswith("B is slower by 20.0% in time")
    assert case.ratio is not None and case.ratio.ratio == pytest.approx(1.2, abs=1e-3)
    assert case.sample_ratio == pytest.approx((30.0 - 0.1) / (10.0 - 0.1))
    assert (case.kernel_ratio, case.reference_p50_us) == (None, 20.0)


def test_a_case_without_pairs_was_never_compared() -> None:
    (case,) = compared_cases(timed(), timed(), None, ())
    assert (case.word, case.ratio, case.findings) == ("undecided", None, ())
    assert compared(pairs=pairs_at({"small": SLOWER})).word == "undecided"


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_side_without_a_valid_time_is_named_and_decides_nothing(side: str) -> None:
    failed = timed(status=Status.FAIL)
    case = compared(**{side.lower(): failed})  # type: ignore[arg-type]
    assert (case.word, case.message) == (
        "undecided",
        f"undecided: {side} has no valid time for this case",
    )
    both = compared(failed, failed)
    assert both.message == "undecided: A and B has no valid time for this case"


def test_unstable_times_decide_on_a_cpu_and_not_on_a_gpu() -> None:
    assert compared(timed(stable=False), timed(stable=False)).word == "slower"
    gpu, unstable = timed("cuda"), timed("cuda", stable=False)
    assert compared(gpu, gpu).word == "slower"
    for a, b, names in ((unstable, gpu, "A"), (gpu, unstable, "B"), (unstable, unstable, "A and B")):
        case = compared(a, b)
        assert (case.word, case.message) == ("undecided", f"undecided: {names} missed the quality gate")


def test_what_is_held_against_the_pairs_decides_on_a_gpu_and_is_told_on_both() -> None:
    watched = (Finding(code="THROTTLED", message="the GPU was throttled"),)
    on_cpu = compared(watched=watched)
    assert (on_cpu.word, on_cpu.findings) == ("slower", watched)
    on_gpu = compared(timed("cuda"), timed("cuda"), watched=watched)
    assert (on_gpu.word, on_gpu.message) == ("undecided", "undecided: the GPU was throttled")


def test_a_loss_of_another_case_was_held_against_this_one() -> None:
    own = PairLoss(case_id="large", pair=0, label="B", finding=LOST)
    other = msgspec.structs.replace(own, case_id="small")
    assert compared(pairs=pairs_at({"large": SLOWER}, other)).findings == ()
    assert compared(pairs=pairs_at({"large": SLOWER}, own)).findings == (LOST,)


@pytest.mark.parametrize(("high_us", "told"), [(100.0, False), (124.0, False), (125.0, False), (126.0, True)])
def test_a_reference_that_moves_is_told_next_to_the_ratio(
    high_us: float, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdicts.MAX_REFERENCE_SPREAD == 0.02
    monkeypatch.setattr(verdicts, "MAX_REFERENCE_SPREAD", 0.25)
    reference = msgspec.structs.replace(series(20.0), repeat_p50_us=(100.0, high_us, 100.0))
    case = compared(timed(reference=reference))
    assert [finding.code for finding in case.findings] == (["REFERENCE_MOVED"] if told else [])
    assert (case.word, case.reference_spread) == ("slower", high_us / 100.0 - 1.0)


def test_a_reference_whose_spread_is_no_number_counts_as_moved() -> None:
    reference = msgspec.structs.replace(series(20.0), repeat_p50_us=(math.nan, 100.0))
    assert [one.code for one in compared(timed(reference=reference)).findings] == ["REFERENCE_MOVED"]


def test_a_case_without_a_reference_has_no_spread_of_one() -> None:
    case = compared(a=timed(reference=None))
    assert (case.reference_spread, case.reference_p50_us, case.findings) == (None, None, ())


def witness(kernel_us: float) -> KernelWitness:
    return KernelWitness(kernel_us=kernel_us, samples_us=(kernel_us,), marker_us=0.1, kernels=())


@pytest.mark.parametrize(
    ("a", "b", "ratio"),
    [
        (witness(4.0), witness(6.0), 1.5),
        (None, witness(6.0), None),
        (witness(4.0), None, None),
        (witness(0.0), witness(6.0), None),
        (witness(math.nan), witness(6.0), None),
        (witness(0.5), witness(0.0), 0.0),
    ],
)
def test_kernel_times_give_a_ratio_where_both_sides_have_one(
    a: KernelWitness | None, b: KernelWitness | None, ratio: float | None
) -> None:
    case = compared(timed(candidate_kernel=a), timed(candidate_kernel=b))
    assert case.kernel_ratio == ratio


@pytest.mark.parametrize(
    ("a", "b", "ratio"),
    [
        (8.0, 12.0, 1.5),
        (0.0, 12.0, None),
        (8.0, 0.0, None),
        (math.nan, 8.0, None),
        (8.0, -1.0, None),
        (8.0, math.nan, None),
        (0.5, 0.5, 1.0),
    ],
)
def test_a_time_below_the_timers_floor_gave_a_ratio(a: float, b: float, ratio: float | None) -> None:
    one, two = (msgspec.structs.replace(series(10.0), net_p50_us=net) for net in (a, b))
    assert compared(timed(candidate=one), timed(candidate=two)).sample_ratio == ratio
    assert compared(timed(candidate=None), timed()).sample_ratio is None
    assert compared(timed(), timed(candidate=None)).sample_ratio is None


# ---------------------------------------------------------------------------- all cases


def two_cases(**changes: Any) -> tuple[BenchmarkCase, ...]:
    return tuple(benchmark_case(name, series(10.0), series(20.0), **changes) for name in ("large", "small"))


def test_the_word_over_all_cases_is_of_one_mean_a_pair() -> None:
    pairs = pairs_at({"large": [1.4, 1.2, 1.3], "small": [1.0, 1.2, 1.1]})
    cases = compared_cases(benchmark(*two_cases()), benchmark(*two_cases()), pairs, ())
    word, message, ratio = overall(cases, pairs)
    assert ratio is not None
    assert ratio.log_ratios == pytest.approx(
        [(math.log(one) + math.log(two)) / 2 for one, two in ((1.4, 1.0), (1.2, 1.2), (1.3, 1.1))]
    )
    assert (word, ratio.pairs) == ("slower", 3)
    assert message.startswith("over 2 cases, B is slower by")
    alone, said, _ = overall(cases[1:], pairs)
    assert (alone, said.partition(" (")[0]) == ("no_difference", "no difference within the interval")


def test_a_case_or_a_pair_left_out_must_not_improve_the_mean() -> None:
    pairs = pairs_at({"large": SLOWER, "small": EQUAL})
    cases = compared_cases(benchmark(*two_cases()), benchmark(*two_cases()), pairs, ())
    assert [case.word for case in cases] == ["slower", "no_difference"]
    assert overall(cases, pairs)[0] == "slower"
    undecided = (cases[0], msgspec.structs.replace(cases[1], word="undecided"))
    assert overall(undecided, pairs) == ("undecided", "undecided: small", None)
    assert overall((), pairs) == ("undecided", "undecided: nothing was timed", None)
    assert overall(cases, None)[::2] == ("undecided", None)
    lost = pairs_at({"large": SLOWER, "small": EQUAL}, PairLoss(case_id="x", pair=0, label="B", finding=LOST))
    assert overall(cases, lost) == (
        "undecided",
        "undecided: not every pair of processes timed every case",
        None,
    )
