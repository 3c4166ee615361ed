"""The record of a timed case: what it holds, what fails it, and what the whole plan says then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attempt_factory import benchmark_case, series
from fake_seats import CRASHED, TIMED, Asked, Crew, changed, double_card, said
from mini_kv.benchmark import case_timing, plan, second_look, witnesses
from mini_kv.benchmark.case_timing import both_series, finish_case, judge_case, take_case
from mini_kv.benchmark.ceilings import floor_bound_us, peak_bytes_per_us, per_time, percent
from mini_kv.benchmark.inputs_unchanged import INPUT_LOOKS, check_inputs
from mini_kv.benchmark.plan import benchmark_record, hold_device, overall
from mini_kv.benchmark.samples import REPLY_SLACK_BYTES, CaseLost, Taken, TimedSubject
from mini_kv.benchmark.second_look import again_us
from mini_kv.benchmark.telemetry import Watch, no_readings
from mini_kv.benchmark.unseen_inputs import FreshTry, Remembered, judge_fresh
from mini_kv.benchmark.witnesses import Bound, Kernels
from mini_kv.core import protocol as p
from mini_kv.core.errors import InternalError
from mini_kv.core.records.benchmark import BenchmarkCase, KernelWitness
from mini_kv.core.records.environment import GpuFacts
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.time_limits import DEVICE_LOCK_TIMEOUT_S
from mini_kv.system.workers import Answer

CASE = double_card().case(TIMED)
TIMER = p.TimerMeasured(floor_us=0.05, tick_us=0.001, copy_gb_per_s=10.0, l2_bytes=None)
GPU = GpuFacts(
    index=0,
    name="Example GPU",
    uuid=None,
    compute_capability="9.0",
    total_memory_bytes=1 << 37,
    memory_clock_mhz=3201,
    memory_bus_bits=6016,
)
FINDING = Finding(code="REPEATED_INPUTS_FASTER", message="results are remembered")


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture(autouse=True)
def _quiet_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    # The judge's own clock agrees, and nothing is remembered: both have tests of their own.
    monkeypatch.setattr(case_timing, "bound_claim", lambda *_, **__: Bound(outside_us=10.0))
    monkeypatch.setattr(case_timing, "remembers", lambda *_: Remembered())


def record(subject: TimedSubject, timer: p.TimerMeasured = TIMER) -> BenchmarkCase:
    return finish_case(subject, take_case(subject, CASE), timer)


def witness(kernel_us: float = 9.9) -> KernelWitness:
    return KernelWitness(
        kernel_us=kernel_us, samples_us=(kernel_us,), marker_us=0.02, kernels=(), outside_us=0.0
    )


def on_gpu(crew: Crew, kernel_us: float = 9.9, **changes: Any) -> TimedSubject:
    crew.on("oracle", p.WitnessKernels, lambda *_: said(p.KernelsWitnessed(witness=witness(19.8))))
    crew.on("candidate", p.WitnessKernels, lambda *_: said(p.KernelsWitnessed(witness=witness(kernel_us))))
    return crew.timed(device="cuda", gpu=GPU, **changes)


# ------------------------------------------------------------------------------- one case


def test_an_honest_case_has_all_figures(crew: Crew) -> None:
    found = record(crew.timed())
    assert (found.status, found.stable, found.findings, found.timing_trust) == (
        Status.PASS,
        True,
        (),
        "verified",
    )
    assert found.candidate is not None
    net_us = found.candidate.net_p50_us
    assert net_us == pytest.approx(9.95)
    assert found.speedup == pytest.approx(2.0)
    assert (found.bytes_moved, found.flops, found.params) == (320, 40, {"n": 40})
    assert (found.gb_per_s, found.gflop_per_s) == (
        pytest.approx(320 / (net_us * 1e3)),
        pytest.approx(40 / (net_us * 1e3)),
    )
    assert found.percent_of_copy_bandwidth == pytest.approx(10.0 * found.gb_per_s)  # type: ignore[operator]
    assert (found.floor_bound_us, found.kernel_speedup, found.outside_us) == (None, None, 10.0)
    assert (found.checked_outputs, found.tries, len(found.batch_order)) == (5, 1, 10)
    assert [one.request.case_id for one in crew.asked(p.DropTiming)] == [TIMED, TIMED]


def test_a_judged_case_stays_prepared_until_it_is_released(crew: Crew) -> None:
    subject = crew.timed()
    assert judge_case(subject, take_case(subject, CASE), TIMER).status is Status.PASS
    assert crew.asked(p.DropTiming) == []


def test_a_case_that_was_lost_has_no_times_and_no_trust(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda *_: CRASHED)
    found = record(crew.timed())
    assert (found.status, found.stable, found.timing_trust) == (Status.FAIL, False, "unverified")
    assert (found.candidate, found.reference, found.speedup, found.gb_per_s) == (None, None, None, None)
    assert found.bytes_moved == 320, "the sets were made"
    crew.on("oracle", p.MakeCase, lambda *_: said(p.Failed(code="X", message="no")))
    unmade = record(crew.timed())
    assert (unmade.bytes_moved, unmade.flops, unmade.floor_bound_us) == (None, None, None)


@pytest.mark.parametrize(("p50_us", "lost"), [(1e-4, False), (0.9e-4, True)])
def test_a_call_shorter_than_a_clock_cycle_is_no_time(crew: Crew, p50_us: float, lost: bool) -> None:
    def taken(time_us: float) -> Taken:
        return Taken(
            samples_us=[(time_us,) * 3] * 2, calls_per_sample=1, floors_us=[0.0, 0.0], ticks_us=[1e-5, 1e-5]
        )

    both = {"candidate": taken(p50_us), "reference": taken(1.0)}
    if not lost:
        assert both_series(crew.timed(), both, Kernels())[0].p50_us == p50_us
        return
    with pytest.raises(CaseLost) as caught:
        both_series(crew.timed(), both, Kernels())
    assert caught.value.finding.code == "NOT_A_TIME"
    assert "is shorter than one clock cycle" in caught.value.finding.message


@pytest.mark.parametrize("kind", ["wrong", "doubts"])
def test_results_that_were_remembered_did_not_fail_the_case(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(case_timing, "remembers", lambda *_: Remembered(**{kind: (FINDING,)}))
    found = record(crew.timed())
    assert (found.stable, found.findings) == (False, (FINDING,))
    assert found.status is (Status.FAIL if kind == "wrong" else Status.PASS)
    assert found.timing_trust == ("unverified" if kind == "wrong" else "verified")


def test_what_was_wrong_while_the_judge_clocked_the_calls_fails_the_case(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_timing, "bound_claim", lambda *_: Bound(outside_us=10.0, wrong=(FINDING,)))
    found = record(crew.timed())
    assert (found.status, found.findings, found.timing_trust) == (Status.FAIL, (FINDING,), "unverified")


@pytest.mark.parametrize(
    ("bound", "status", "code"),
    [
        (Bound(outside_us=None), Status.PASS, "TIME_UNVERIFIED"),
        (Bound(outside_us=500.0), Status.FAIL, "CLOCK_CONTRADICTS"),
        (Bound(outside_us=500.0, around_us=400.0), Status.PASS, "TIME_NOT_REPRODUCED"),
    ],
)
def test_a_clock_that_contradicts_fails_and_one_that_is_silent_leaves_a_doubt(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, bound: Bound, status: Status, code: str
) -> None:
    monkeypatch.setattr(case_timing, "bound_claim", lambda *_: bound)
    found = record(crew.timed())
    assert [finding.code for finding in found.findings] == [code]
    assert (found.status, found.stable, found.timing_trust) == (status, False, "unverified")


def test_both_kernel_times_make_a_ratio_and_work_outside_the_pair_fails(crew: Crew) -> None:
    found = record(on_gpu(crew))
    assert (found.status, found.kernel_speedup) == (Status.PASS, pytest.approx(2.0))
    assert record(on_gpu(crew, 0.0)).kernel_speedup is None
    hidden = msgspec.structs.replace(witness(), outside_us=5.0)
    subject = on_gpu(crew)
    crew.on("candidate", p.WitnessKernels, lambda *_: said(p.KernelsWitnessed(witness=hidden)))
    assert [finding.code for finding in record(subject).findings] == ["WORK_OUTSIDE_PAIR"]


# ------------------------------------------------------------------------------- what cannot be


def bound_of(
    crew: Crew, cache: str = "cold", gpu: GpuFacts | None = GPU, moved: int = 1 << 20
) -> BenchmarkCase:
    crew.on("oracle", p.MakeCase, lambda _, honest: changed(honest, bytes_moved=moved))
    return record(replace(on_gpu(crew, card=double_card(plan={"cache": cache})), gpu=gpu))


def test_a_cold_call_faster_than_its_bytes_can_cross_the_bus_is_impossible(crew: Crew) -> None:
    rate = 3201 * 6016 / 4.0
    found = bound_of(crew)
    assert (found.status, found.floor_bound_us) == (Status.PASS, pytest.approx((1 << 20) / rate))
    impossible = bound_of(crew, moved=64 << 20)
    assert [finding.code for finding in impossible.findings] == ["IMPOSSIBLE_TIME"]
    assert (impossible.status, impossible.stable, impossible.timing_trust) == (
        Status.FAIL,
        False,
        "unverified",
    )


def test_a_hot_call_and_a_gpu_that_tells_no_rate_have_no_bound(crew: Crew) -> None:
    assert bound_of(crew, cache="hot", moved=64 << 20).floor_bound_us is None
    assert bound_of(crew, gpu=None, moved=64 << 20).floor_bound_us is None


@pytest.mark.parametrize(("bound_us", "possible"), [(9.9, True), (math.nan, False), (11.0, False)])
def test_a_bound_that_is_no_number_is_not_kept(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, bound_us: float, possible: bool
) -> None:
    monkeypatch.setattr(case_timing, "floor_bound_us", lambda *_: bound_us)
    assert (bound_of(crew).status is Status.PASS) is possible


def test_a_net_time_below_zero_is_bounded_by_the_whole_time(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda _, honest: changed(honest, floor_us=11.0))
    found = record(crew.timed())
    assert found.candidate is not None
    assert found.candidate.net_p50_us < 0.0
    assert found.gb_per_s == pytest.approx(320 / (found.candidate.p50_us * 1e3))


@pytest.mark.parametrize("unknown", ["memory_clock_mhz", "memory_bus_bits"])
def test_a_gpu_that_tells_half_of_its_rate_has_none(unknown: str) -> None:
    assert peak_bytes_per_us(msgspec.structs.replace(GPU, **{unknown: None})) is None
    assert peak_bytes_per_us(GPU) == 3201 * 6016 / 8.0 * 2.0


def test_bounds_and_rates_at_their_edges() -> None:
    assert floor_bound_us(8, 0, None, 0.5) == 16.0
    assert floor_bound_us(8, 0, None, None) is None
    assert floor_bound_us(8, 0, None, math.nan) is None
    assert floor_bound_us(8, 4, None, 1.0) == 8.0
    assert floor_bound_us(8, 4, 3, 1.0) == 5.0
    assert floor_bound_us(2, 4, 9, 1.0) == 0.0
    assert per_time(500, 0.5) == 1.0
    assert per_time(1, math.nan) is None
    assert percent(1.0, 0.5) == 200.0
    assert (percent(None, 1.0), percent(1.0, None), percent(1.0, math.nan)) == (None, None, None)


# ------------------------------------------------------------------------------- inputs after the calls


def prepared(crew: Crew, **changes: Any) -> tuple[TimedSubject, Any]:
    subject = crew.timed(**changes)
    timed = take_case(subject, CASE)
    crew.log.clear()
    return subject, timed.sets


def test_sets_that_are_as_they_were_are_looked_at_three_times(crew: Crew) -> None:
    subject, sets = prepared(crew)
    assert check_inputs(subject, CASE, sets) == ()
    looks = crew.asked(p.FetchTimedInputs)
    assert len(looks) == INPUT_LOOKS == 3
    assert {one.max_reply_bytes for one in looks} == {160 + REPLY_SLACK_BYTES}
    assert len({one.request.place for one in looks}) == 3
    assert check_inputs(subject, CASE, replace(sets, storages=())) == ()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_look_that_shows_another_input_is_enough(crew: Crew, at: int) -> None:
    subject, sets = prepared(crew)
    seen: list[Asked] = []

    def behave(asked: Asked, honest: Answer) -> Answer:
        seen.append(asked)
        return said(honest.reply, bytes(160)) if len(seen) == at + 1 else honest

    crew.on("candidate", p.FetchTimedInputs, behave)
    (finding,) = check_inputs(subject, CASE, sets)
    assert finding.code == "INPUT_MUTATED_WHILE_TIMED"
    assert "input payload 0 is not what was sent" in finding.message
    assert len(seen) == at + 1


def test_storages_that_do_not_all_come_back_count_as_changed(crew: Crew) -> None:
    subject, sets = prepared(crew)
    crew.on("candidate", p.FetchTimedInputs, lambda _, honest: said(honest.reply))
    (finding,) = check_inputs(subject, CASE, sets)
    assert finding.message == "0 storages came back after the timed calls; 1 were sent"


def test_a_case_whose_inputs_changed_fails(crew: Crew) -> None:
    crew.on("candidate", p.FetchTimedInputs, lambda _, honest: said(honest.reply, bytes(160)))
    found = record(crew.timed())
    assert (found.status, [one.code for one in found.findings]) == (
        Status.FAIL,
        ["INPUT_MUTATED_WHILE_TIMED"],
    )


# ------------------------------------------------------------------------------- the samples again


@pytest.mark.parametrize(
    ("p50_us", "calls", "planned", "iterations"),
    [
        (10.0, 1, 10, 10),  # 15000 would fit: the plan's
        (100.0, 1, 2000, 1500),
        (10.0, 10, 2000, 1500),
        (100_000.0, 1, 10, 3),  # one fits: three at least
        (0.01, 1, 200_000, 150_000),  # a sample counts as a microsecond at least
        (10.0, 1, 2, 2),
    ],
)
def test_a_batch_taken_again_lasts_as_long_as_is_allowed(
    crew: Crew, p50_us: float, calls: int, planned: int, iterations: int
) -> None:
    card = double_card(plan={"iterations": planned})
    subject, _ = prepared(crew, card=card)
    claim = msgspec.structs.replace(series(10.0), p50_us=p50_us, calls_per_sample=calls)
    crew.on(
        "candidate",
        p.TimeBatch,
        lambda asked, honest: changed(
            honest, samples_us=tuple(float(number % 3) for number in range(asked.request.iterations))
        ),
    )
    assert again_us(subject, CASE, claim) in (0.5, 1.0)
    (asked,) = crew.asked(p.TimeBatch)
    assert (asked.request.iterations, asked.request.calls_per_sample) == (iterations, calls)
    assert asked.request.warmup == 2, "a CPU that has run before has only to be woken"
    assert asked.timeout_s == 2.0
    assert second_look.NEIGHBOUR_US == 150_000.0


# ------------------------------------------------------------------------------- the whole plan


def timed_case(**changes: Any) -> BenchmarkCase:
    return benchmark_case("large", series(10.0), series(20.0), **changes)


def test_a_plan_passes_where_every_case_was_timed_and_is_stable_where_that_counts() -> None:
    good, failed, unstable = timed_case(), timed_case(status=Status.FAIL), timed_case(stable=False)
    for unstable_fails in (True, False):
        assert overall([good, good], unstable_fails) is Status.PASS
        assert overall([good, failed], unstable_fails) is Status.FAIL
        assert overall([failed], unstable_fails) is Status.FAIL
        assert overall([], unstable_fails) is Status.FAIL
    assert overall([good, unstable], unstable_fails=True) is Status.FAIL
    assert overall([good, unstable], unstable_fails=False) is Status.PASS


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_record_of_a_plan_says_what_was_measured_and_how(crew: Crew, device: str) -> None:
    subject = crew.timed(device=device, gpu=GPU if device == "cuda" else None)
    cases = (timed_case(speedup=2.0), timed_case(speedup=8.0, stable=False))
    made = benchmark_record(subject, cases, TIMER, Watch(no_readings, frozenset), 1.23456)
    assert made.status is (Status.PASS if device == "cpu" else Status.FAIL)
    assert (made.stable, made.geomean_speedup) == (False, pytest.approx(4.0))
    assert (made.timer, made.cache, made.copy_gb_per_s) == (plan.TIMER_PLAN[device], "hot", 10.0)
    assert (made.primary_case_id, made.elapsed_s, made.telemetry) == (TIMED, 1.2346, ())
    peak = None if device == "cpu" else pytest.approx(3201 * 6016 / 4.0 / 1e3)
    assert made.peak_gb_per_s == peak


def test_a_case_without_a_ratio_does_not_improve_the_mean(crew: Crew) -> None:
    def mean_of(*cases: BenchmarkCase) -> float | None:
        return benchmark_record(
            crew.timed(), cases, TIMER, Watch(no_readings, frozenset), 1.0
        ).geomean_speedup

    assert mean_of(timed_case(speedup=2.0), timed_case(speedup=None)) is None
    assert mean_of(timed_case(speedup=None)) is None
    assert mean_of() is None
    empty = benchmark_record(crew.timed(), (), TIMER, Watch(no_readings, frozenset), 1.0)
    assert (empty.status, empty.stable) == (Status.FAIL, False)
    assert benchmark_record(crew.timed(), (timed_case(),), TIMER, Watch(no_readings, frozenset), 1.0).stable


def test_a_gpu_without_a_known_rate_has_no_peak(crew: Crew) -> None:
    gpu = msgspec.structs.replace(GPU, memory_clock_mhz=None)
    subject = crew.timed(device="cuda", gpu=gpu)
    made = benchmark_record(subject, (timed_case(),), TIMER, Watch(no_readings, frozenset), 1.0)
    assert made.peak_gb_per_s is None


@pytest.mark.parametrize("free", [True, False])
def test_nothing_is_timed_while_another_measurement_holds_the_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: bool
) -> None:
    asked: list[tuple[Path, float]] = []

    @contextmanager
    def lock(path: Path, timeout_s: float) -> Iterator[bool]:
        asked.append((path, timeout_s))
        yield free

    monkeypatch.setattr(plan, "exclusive_lock", lock)
    timed: list[str] = []
    if free:
        with hold_device(tmp_path / "gpu.lock"):
            timed.append("a case")
    else:
        with pytest.raises(InternalError) as caught, hold_device(tmp_path / "gpu.lock"):
            timed.append("a case")
        assert caught.value.code == "DEVICE_BUSY"
    assert timed == (["a case"] if free else [])
    assert asked == [(tmp_path / "gpu.lock", DEVICE_LOCK_TIMEOUT_S)]


def test_a_candidate_that_crashes_after_its_samples_fails_the_case(crew: Crew) -> None:
    def lost(*_: object) -> Bound:
        raise CaseLost(Finding(code="CRASHED", message="it died"))

    subject = crew.timed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_timing, "bound_claim", lost)
        found = record(subject)
    assert (found.status, [one.code for one in found.findings]) == (Status.FAIL, ["CRASHED"])


# ------------------------------------------------------------------------------- the judge's own clock


@pytest.mark.parametrize(
    ("device", "used_ns", "took_us"),
    [
        ("cpu", (1_000, 41_000), 40.0),
        ("cpu", (1_000, 91_000), 50.0),
        ("cpu", (None, 41_000), 50.0),
        ("cpu", (1_000, None), 50.0),
        ("cuda", (1_000, 41_000), 50.0),
    ],
)
def test_a_run_on_a_cpu_takes_what_was_charged_to_it_or_less(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, device: str, used_ns: tuple[int | None, ...], took_us: float
) -> None:
    charged, clock = iter(used_ns), iter((5_000, 55_000))
    monkeypatch.setattr(witnesses, "cpu_time_ns", lambda _: next(charged))
    monkeypatch.setattr(witnesses.time, "perf_counter_ns", lambda: next(clock))
    subject = crew.timed(device=device)
    request = p.RunRepeats(case_id=TIMED, calls=10, kept_outputs=8)
    assert witnesses._outside_us(subject, request) == witnesses.Run(took_us=took_us, kept=(9,))


def test_a_wrong_result_of_a_call_that_the_judge_clocked_was_not_reported(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witnesses, "outside_slope_us", slope_with_a_look(crew))
    subject, sets = prepared(crew)
    claim = series(10.0)
    assert witnesses.bound_claim(subject, CASE, claim, sets) == Bound(outside_us=10.0)
    crew.on("candidate", p.FetchRepeated, lambda _, honest: said(honest.reply, bytes(160)))
    found = witnesses.bound_claim(subject, CASE, claim, sets)
    assert [finding.code for finding in found.wrong] == ["TIMED_OUTPUT_WRONG"]
    assert witnesses.bound_claim(subject, CASE, claim).wrong == ()


def slope_with_a_look(crew: Crew) -> Any:
    def slope_us(subject: TimedSubject, *_: object, sets: Any = None, caught: Any = None) -> float:
        if sets is not None:
            caught += witnesses._catch_repeated(subject, CASE, sets, kept=(3,), calls=10)
        return 10.0

    return slope_us


def test_the_try_that_says_most_for_the_candidate_is_the_one_that_is_told() -> None:
    def tried(*fresh_us: float) -> FreshTry:
        return FreshTry(fresh_us=fresh_us, before_us=10.0, after_us=10.0)

    (finding,) = judge_fresh((tried(900.0, 950.0), tried(700.0, 990.0), tried(800.0, 820.0)), 10.0)
    assert finding.message.startswith("a call on inputs never seen before takes 700.00 us at best; 10.00 us")
    assert len(finding.evidence) == 3
