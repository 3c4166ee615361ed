"""What the second witness, the outside clock and the telemetry hold against a time."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mini_kv.benchmark import witnesses
from mini_kv.benchmark.ceilings import floor_bound_us, peak_bytes_per_us, per_time, percent
from mini_kv.benchmark.samples import CaseLost, Sets, timed_seed
from mini_kv.benchmark.telemetry import Watch
from mini_kv.benchmark.unseen_inputs import FreshTry, calls_at_once, judge_claim_again, judge_fresh
from mini_kv.benchmark.witnesses import Bound, Run, bound_claim, disagreement, judge_claim
from mini_kv.core import protocol as p
from mini_kv.core.records.benchmark import BenchmarkCase, KernelWitness, Series, Telemetry
from mini_kv.core.records.card import Case, CaseKind
from mini_kv.core.records.environment import GpuFacts
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.statistics import summarize
from mini_kv.core.tensors import TensorSpec

H200 = GpuFacts(
    index=0,
    name="NVIDIA H200",
    uuid=None,
    compute_capability="9.0",
    total_memory_bytes=1,
    memory_clock_mhz=3201,
    memory_bus_bits=6016,
)


def series(p50_us: float, floor_us: float = 2.8) -> Series:
    samples = tuple(tuple(p50_us for _ in range(20)) for _ in range(5))
    return summarize(samples, calls_per_sample=1, launch_exposed=0, floor_us=floor_us, tick_us=0.032)


def witness(kernel_us: float) -> KernelWitness:
    return KernelWitness(kernel_us=kernel_us, samples_us=(kernel_us,), marker_us=0.6, kernels=())


def reading(*processes: int, throttle: tuple[str, ...] = ()) -> Telemetry:
    return Telemetry(
        index=0,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_c=30,
        power_w=100.0,
        utilization_percent=0,
        throttle_reasons=throttle,
        process_ids=processes,
    )


def stable_case() -> BenchmarkCase:
    return BenchmarkCase(
        case_id="bench",
        status=Status.PASS,
        stable=True,
        findings=(),
        params={},
        candidate=series(10.0),
        reference=series(10.0),
        speedup=1.0,
        bytes_moved=None,
        flops=None,
        gb_per_s=None,
        gflop_per_s=None,
        percent_of_copy_bandwidth=None,
        floor_bound_us=None,
        candidate_kernel=None,
        reference_kernel=None,
        kernel_speedup=None,
        outside_us=None,
        timing_trust="verified",
        checked_outputs=5,
        tries=1,
        batch_order=(),
    )


def test_kernel_time_beyond_the_event_pair_is_work_outside_it() -> None:
    assert [finding.code for finding in disagreement(series(10.0), witness(60.0))] == ["WORK_OUTSIDE_PAIR"]


@pytest.mark.parametrize("kernel_us", [7.2, 6.9, 8.0, 0.0])
def test_kernel_time_within_the_event_pair_is_no_finding(kernel_us: float) -> None:
    assert disagreement(series(10.0), witness(kernel_us)) == ()


def test_a_kernel_time_that_is_not_a_number_is_a_finding() -> None:
    assert disagreement(series(10.0), witness(float("nan")))
    for outside_us in (0.0, float("nan")):
        strange = msgspec.structs.replace(witness(float("nan")), outside_us=outside_us)
        assert disagreement(series(10.0), strange)


def test_an_honest_kernel_of_many_blocks_that_cupti_lengthens_is_not_accused() -> None:
    """16,384 blocks that spin for 0.7 us: 16.6 us by the pair and by their stamps, 27.8 us under CUPTI."""
    lengthened = msgspec.structs.replace(witness(27.8), outside_us=0.0)
    assert disagreement(series(19.4), lengthened) == ()


@pytest.mark.parametrize("outside_us", [0.3, 20.0])
def test_work_that_the_trace_shows_outside_the_pair_is_a_finding(outside_us: float) -> None:
    aside = msgspec.structs.replace(witness(1.0), outside_us=outside_us)
    assert [finding.code for finding in disagreement(series(10.0), aside)] == ["WORK_OUTSIDE_PAIR"]


def test_an_outside_clock_beyond_the_claim_contradicts_it() -> None:
    trust, findings = judge_claim(series(10.0), 50.0, "cuda", checked=5, wrong=())
    assert trust == "unverified"
    assert [finding.code for finding in findings] == ["CLOCK_CONTRADICTS"]


def test_an_outside_clock_that_is_not_a_number_contradicts() -> None:
    assert (
        judge_claim(series(10.0), float("nan"), "cuda", checked=5, wrong=())[1][0].code == "CLOCK_CONTRADICTS"
    )


def test_a_claim_within_the_outside_clock_is_verified_only_with_checked_outputs() -> None:
    assert judge_claim(series(10.0), 7.9, "cuda", checked=5, wrong=()) == ("verified", ())
    assert judge_claim(series(10.0), 7.9, "cuda", checked=0, wrong=()) == ("bounded", ())


def test_without_an_outside_clock_a_time_is_unverified() -> None:
    trust, findings = judge_claim(series(10.0), None, "cuda", checked=5, wrong=())
    assert (trust, findings[0].code) == ("unverified", "TIME_UNVERIFIED")


def test_a_negative_slope_of_a_busy_host_is_no_accusation() -> None:
    assert judge_claim(series(3.0), -1.0, "cuda", checked=5, wrong=())[0] == "verified"


def test_a_stranger_on_the_gpu_makes_a_case_unstable() -> None:
    names = {300: "miner", 400: None}
    watch = Watch(lambda: reading(100, 200, 300, 400), lambda: frozenset({100, 200}), names.get)
    watch.look()
    judged = watch.judge(stable_case())
    assert not judged.stable
    assert [finding.code for finding in judged.findings] == ["GPU_SHARED"]
    assert judged.findings[0].evidence == ("300 (miner)", "400 (gone or out of sight)")


def test_a_worker_that_ends_while_the_driver_lists_it_is_no_stranger() -> None:
    family = [frozenset({100, 200}), frozenset({100})]
    watch = Watch(lambda: reading(100, 200), lambda: family.pop(0))
    watch.look()
    assert watch.findings() == ()


def test_a_worker_that_starts_while_the_driver_is_asked_is_no_stranger() -> None:
    family = [frozenset({100}), frozenset({100, 200})]
    watch = Watch(lambda: reading(100, 200), lambda: family.pop(0))
    watch.look()
    assert watch.findings() == ()


def test_throttling_makes_a_case_unstable() -> None:
    watch = Watch(lambda: reading(throttle=("hardware slowdown",)), frozenset)
    watch.look()
    assert [finding.code for finding in watch.judge(stable_case()).findings] == ["THROTTLED"]


def test_a_quiet_gpu_leaves_a_case_as_it_is() -> None:
    watch = Watch(lambda: reading(100), lambda: frozenset({100}))
    watch.look()
    case = msgspec.structs.replace(stable_case(), findings=(Finding(code="REMARK", message="kept"),))
    assert watch.judge(case) == case
    assert len(watch.readings) == 1


def test_the_theoretical_rate_is_clock_times_bus_times_two() -> None:
    rate = peak_bytes_per_us(H200)
    assert rate is not None
    assert rate == pytest.approx(4.814e6, rel=1e-3)


def test_an_honest_call_that_was_stretched_after_its_samples_is_not_accused() -> None:
    """A pool's hand-over took 15 us while it was timed, and 43 us on a busier machine a moment later."""
    trust, findings = judge_claim(series(15.0), 43.5, "cpu", checked=5, wrong=(), around_us=25.0)
    assert (trust, [finding.code for finding in findings]) == ("unverified", ["TIME_NOT_REPRODUCED"])
    trust, findings = judge_claim(series(15.0), 43.5, "cpu", checked=5, wrong=(), around_us=15.0)
    assert (trust, [finding.code for finding in findings]) == ("unverified", ["CLOCK_CONTRADICTS"])
    assert judge_claim(series(15.0), 16.0, "cpu", checked=5, wrong=(), around_us=30.0) == ("verified", ())


@pytest.mark.parametrize(
    ("outside", "again", "expected"),
    [
        ([20.0], [], Bound(outside_us=20.0)),
        ([90.0, 20.0], [10.0], Bound(outside_us=20.0)),
        ([90.0, 90.0], [50.0, 45.0], Bound(outside_us=90.0, around_us=45.0)),
        ([90.0, 95.0, 99.0], [10.0, 11.0, 10.0, 12.0], Bound(outside_us=99.0, around_us=10.0)),
        ([None], [], Bound(outside_us=None)),
        ([90.0, None], [10.0], Bound(outside_us=90.0)),
    ],
)
def test_a_contradiction_is_looked_at_again_next_to_the_claim_itself(
    monkeypatch: pytest.MonkeyPatch, outside: list[float | None], again: list[float], expected: Bound
) -> None:
    slopes, batches = iter(outside), iter(again)
    monkeypatch.setattr(witnesses, "outside_slope_us", lambda *_, **__: next(slopes))
    monkeypatch.setattr(witnesses, "again_us", lambda *_: next(batches))
    subject: Any = SimpleNamespace(device="cpu")
    claim = msgspec.structs.replace(series(10.0), net_p50_us=10.0, p50_us=10.0)
    assert bound_claim(subject, Case(id="a", kind=CaseKind.BENCHMARK, params={}), claim) == expected
    assert next(slopes, "all taken") == next(batches, "all taken") == "all taken"


def test_a_forged_time_is_not_excused_by_one_batch_that_load_made_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow clock was called unstable on a busy machine: one of two batches read five times as long."""
    batches = iter([10.0, 50.0, 50.0, 10.0])
    monkeypatch.setattr(witnesses, "outside_slope_us", lambda *_, **__: 90.0)
    monkeypatch.setattr(witnesses, "again_us", lambda *_: next(batches))
    case = Case(id="a", kind=CaseKind.BENCHMARK, params={})
    claim = msgspec.structs.replace(series(10.0), net_p50_us=10.0, p50_us=10.0)
    subject: Any = SimpleNamespace(device="cpu")
    assert bound_claim(subject, case, claim) == Bound(outside_us=90.0, around_us=10.0)
    batches = iter([30.0, 85.0])
    subject.device = "cuda"
    assert bound_claim(subject, case, claim) == Bound(outside_us=90.0, around_us=85.0)


class Clock:
    """A worker whose calls take 10 us, on a machine that stretches most of what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stretched: set[int]) -> None:
        self.asked = 0
        self.stretched = stretched
        monkeypatch.setattr(witnesses, "_done", lambda *_: True)
        monkeypatch.setattr(witnesses, "_outside_us", self.took_us)

    def took_us(self, _: object, request: p.RunRepeats) -> Run:
        self.asked += 1
        busy_us = 7000.0 if (self.asked - 1) in self.stretched else 0.0
        return Run(took_us=40.0 + 10.0 * float(request.calls) + busy_us, kept=())

    def slope_us(self, claim_us: float) -> float | None:
        subject: Any = SimpleNamespace(device="cuda")
        case = Case(id="a", kind=CaseKind.BENCHMARK, params={})
        return witnesses.outside_slope_us(subject, case, claim_us, claim_us)


def test_a_busy_host_accuses_no_honest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 25 processes importing torch next to it, the median of five rounds accused one run in nine."""
    clock = Clock(monkeypatch, stretched={1, 3, 4, 5, 7, 9, 11, 12, 13, 15, 17, 18, 19, 21})
    assert clock.slope_us(10.0) == pytest.approx(10.0)
    assert 10 < clock.asked < 2 * witnesses.MAX_SLOPE_ROUNDS


def test_further_rounds_clear_no_false_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, stretched=set(range(0, 50, 3)))
    assert clock.slope_us(2.0) == pytest.approx(10.0)
    assert clock.asked == 2 * witnesses.MAX_SLOPE_ROUNDS


def test_a_claim_that_is_contradicted_beyond_doubt_is_not_clocked_for_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every look at a clock ten times too slow took all rounds, each of them ten times as long as planned.
    clock = Clock(monkeypatch, stretched=set())
    slope_us = clock.slope_us(0.5)
    assert slope_us == pytest.approx(10.0)
    assert clock.asked == 2 * witnesses.SLOPE_ROUNDS
    assert judge_claim(series(3.3), slope_us, "cuda", checked=5, wrong=())[1][0].code == "CLOCK_CONTRADICTS"


def test_output_that_may_still_lie_in_the_cache_is_not_counted_as_moved() -> None:
    assert floor_bound_us(16 << 20, 8 << 20, 60 << 20, 4.0e6) == pytest.approx((8 << 20) / 4.0e6)
    assert floor_bound_us(300 << 20, 150 << 20, 60 << 20, 4.0e6) == pytest.approx((240 << 20) / 4.0e6)
    assert floor_bound_us(None, 1, 1, 4.0e6) is None
    assert floor_bound_us(1, 0, None, 0.0) is None


def test_rates_of_unknown_or_impossible_times_are_unknown() -> None:
    assert per_time(1_000_000, 1.0) == pytest.approx(1000.0)
    assert per_time(1, 0.0) is None
    assert per_time(None, 1.0) is None
    assert percent(1.0, 0.0) is None
    assert percent(1.0, 4.0) == pytest.approx(25.0)


def test_results_of_large_calls_that_are_remembered_do_not_hide_behind_the_time_that_bytes_take() -> None:
    """4 GB/s were allowed for inputs over 1 MiB: whatever moved its bytes faster could be remembered."""
    assert judge_fresh((fresh(410.0, 1.8),) * 3, 1.8)
    # The most that honest calls over 4 and over 16 MiB were seen to need, memory being there already.
    assert judge_fresh((fresh(145.9, 106.1),), 106.1) == ()
    assert judge_fresh((fresh(1600.0, 1583.4),), 1583.4) == ()


def test_timed_inputs_follow_from_the_archived_secret_and_differ_by_position() -> None:
    seeds = {timed_seed("00" * 8, position) for position in range(3)} | {timed_seed("11" * 8, 0)}
    assert len(seeds) == 4
    assert all(len(seed) == 16 and int(seed, 16) >= 0 for seed in seeds)


def fresh(fresh_us: float, around_us: float, after_us: float | None = None, far_us: float = 0.0) -> FreshTry:
    return FreshTry(
        fresh_us=(fresh_us, fresh_us + 3.0),
        before_us=around_us,
        after_us=around_us if after_us is None else after_us,
        far_us=far_us,
    )


def test_an_honest_call_that_only_moves_bytes_is_not_held_to_the_nearest_cache() -> None:
    """A squared ReLU over 256 KiB, 10.6 us on rotating inputs and 31.7 us on new ones, was accused."""
    as_seen = fresh(31.7, 10.6, far_us=12.6)
    assert as_seen.clears(10.6) and not as_seen.suspects(10.6)
    # The same call where moving its bytes costs no more on new inputs does remember its results.
    assert judge_fresh((fresh(60.0, 10.6),) * 3, 10.6)
    # And no copy is slow enough to excuse a look-up for a call that computes.
    assert judge_fresh((fresh(900.0, 10.6, far_us=12.6),) * 3, 10.6)


@pytest.mark.parametrize(
    ("fresh_us", "claim_us", "told"),
    [(60.0, 1.0, True), (22.4, 1.0, False), (95.0, 40.0, False), (float("nan"), 40.0, True)],
)
def test_results_that_are_remembered_are_slow_on_fresh_inputs_only(
    fresh_us: float, claim_us: float, told: bool
) -> None:
    codes = [finding.code for finding in judge_fresh((fresh(fresh_us, claim_us),) * 3, claim_us)]
    assert codes == (["REPEATED_INPUTS_FASTER"] if told else [])


def test_load_that_the_neighbouring_batches_see_too_accuses_nobody() -> None:
    # Five busy processes on two cores: every call takes five times as long as when the plan was timed.
    loaded = fresh(500.0, 480.0)
    assert judge_fresh((loaded,) * 3, 100.0) == ()
    assert [one.code for one in judge_claim_again((loaded,) * 3, 100.0)] == ["TIME_NOT_REPRODUCED"]
    # Load that began meanwhile is met in one try, not in three.
    began = fresh(500.0, 100.0, after_us=480.0)
    assert judge_fresh((began, loaded, loaded), 100.0) == ()
    assert judge_fresh((began,) * 3, 100.0)


def test_a_slow_batch_after_the_new_inputs_does_not_excuse_results_that_were_remembered() -> None:
    """One that stopped remembering once it met new inputs passed: the slow batch after them explained these,
    and the fast one before them reproduced the claim."""
    met, stopped = fresh(80.0, 1.8, after_us=81.0), fresh(80.0, 81.0)
    assert judge_fresh((met,), 1.8)
    assert judge_fresh((met, stopped, stopped), 1.8) == ()
    for tries in ((met, stopped, stopped), (stopped,) * 3, (met, met, stopped)):
        assert [one.code for one in judge_claim_again(tries, 1.8)] == ["TIME_NOT_REPRODUCED"]
    assert judge_claim_again((met,) * 3, 1.8) == ()


def test_a_short_call_that_stopped_being_remembered_is_no_claim_that_can_be_had_again() -> None:
    """What a single call costs, 20 us, was allowed for whole batches too: 1 us stood for 20."""
    stopped = FreshTry(fresh_us=(20.0,), before_us=20.0, after_us=20.0, calls=32)
    assert [one.code for one in judge_claim_again((stopped,) * 3, 1.0)] == ["TIME_NOT_REPRODUCED"]


def test_one_try_that_clears_a_candidate_is_enough() -> None:
    slow, usual = fresh(900.0, 100.0), fresh(110.0, 100.0)
    assert judge_fresh((slow, slow, usual), 100.0) == ()
    assert judge_fresh((slow, slow, slow), 100.0)
    assert judge_fresh((), 100.0) == ()


def test_a_candidate_that_stops_remembering_after_the_plan_does_not_reproduce_its_claim() -> None:
    honest_now = fresh(60.0, 55.0)
    assert judge_fresh((honest_now,), 1.0) == ()
    assert [finding.code for finding in judge_claim_again((honest_now,), 1.0)] == ["TIME_NOT_REPRODUCED"]
    assert judge_claim_again((honest_now, fresh(2.0, 1.0)), 1.0) == ()
    assert judge_claim_again((), 1.0) == ()


class KeepingClock:
    """A CPU worker whose runs keep what ``kept`` says and take what ``took_us`` says, in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kept: tuple[int, ...], took_us: list[float]) -> None:
        self.caught: list[Any] = []
        self.looked_at: list[int] = []
        runs = iter(took_us * 10)
        monkeypatch.setattr(witnesses, "_done", lambda *_: True)
        monkeypatch.setattr(witnesses, "_outside_us", lambda *_: Run(took_us=next(runs), kept=kept))
        monkeypatch.setattr(witnesses, "fetch_output", self.fetch)

    def fetch(self, _: object, request: p.FetchRepeated, *rest: object) -> None:
        self.looked_at.append(request.position)

    def slope_us(self) -> float | None:
        subject: Any = SimpleNamespace(device="cpu", chooser=random.Random(1))
        case = Case(id="a", kind=CaseKind.BENCHMARK, params={})
        made: Any = SimpleNamespace(expected=())
        sets = Sets(made=(made,), keys=("one", "two"))
        return witnesses.outside_slope_us(subject, case, 500.0, 500.0, sets=sets, caught=self.caught)


def test_every_run_that_changes_the_slope_has_a_result_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = KeepingClock(monkeypatch, (3,), [900.0, 4000.0, 800.0, 4100.0, 850.0, 3900.0])
    clock.slope_us()
    assert len(clock.caught) == len(clock.looked_at) == 4


def test_work_that_is_left_out_in_some_calls_has_to_be_missed_by_several_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One look a run: half of the calls could be left out, and every fourth such candidate passed."""
    clock = KeepingClock(monkeypatch, (1, 5, 8, 13, 21), [900.0, 4000.0])
    clock.slope_us()
    assert len(clock.caught) == len(clock.looked_at) == 2 * witnesses.LOOKS_A_RUN
    assert len(set(clock.looked_at[: witnesses.LOOKS_A_RUN])) == witnesses.LOOKS_A_RUN


def test_runs_as_long_as_a_forged_time_makes_them_are_made_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ran thirty times too slow had the judge wait for half a minute."""
    asked: list[int] = []

    def run(_: object, request: p.RunRepeats) -> Run:
        asked.append(request.calls)
        return Run(took_us=900.0 * request.calls, kept=())

    monkeypatch.setattr(witnesses, "_done", lambda *_: True)
    monkeypatch.setattr(witnesses, "_outside_us", run)
    subject: Any = SimpleNamespace(device="cpu", chooser=random.Random(1))
    case = Case(id="a", kind=CaseKind.BENCHMARK, params={})
    assert witnesses.outside_slope_us(subject, case, 30.0, 30.0) == pytest.approx(900.0)
    assert asked == [400, 2000, *[16, 80] * witnesses.SLOPE_ROUNDS]
    del asked[:]
    assert witnesses.outside_slope_us(subject, case, 800.0, 800.0) == pytest.approx(900.0)
    assert asked == [18, 90] * witnesses.SLOPE_ROUNDS


def test_a_run_that_kept_nothing_bounds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slope = KeepingClock(monkeypatch, (), [1.0, 2.0]).slope_us()
    assert slope is not None and math.isnan(slope)
    assert judge_claim(series(500.0), slope, "cpu", checked=5, wrong=())[1][0].code == "CLOCK_CONTRADICTS"


def test_a_result_of_a_call_that_no_run_had_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaseLost, match="in a run of"):
        KeepingClock(monkeypatch, (10**9,), [1.0, 2.0]).slope_us()


def test_a_short_call_that_is_remembered_does_not_hide_behind_what_a_single_call_costs() -> None:
    """20 us were allowed for a call on its own: a cache made a call of 15 us look like one of 1.7 us."""
    alone = FreshTry(fresh_us=(15.0, 16.0), before_us=1.7, after_us=1.7)
    assert judge_fresh((alone,) * 3, 1.7) == ()
    together = FreshTry(fresh_us=(15.0, 16.0), before_us=1.7, after_us=1.7, calls=8)
    assert [one.code for one in judge_fresh((together,) * 3, 1.7)] == ["REPEATED_INPUTS_FASTER"]
    honest = FreshTry(fresh_us=(4.5, 5.0), before_us=1.7, after_us=1.7, calls=8)
    assert judge_fresh((honest,) * 3, 1.7) == ()


@pytest.mark.parametrize(
    ("elements", "claim_us", "calls"),
    [(16384, 1.7, 32), (65536, 15.0, 8), (16384, 250.0, 1), (4, 0.5, 32), (1 << 20, 1.0, 1)],
)
def test_calls_are_timed_together_where_they_are_short_and_fit_a_cache(
    elements: int, claim_us: float, calls: int
) -> None:
    spec = TensorSpec(
        shape=(elements,),
        strides=(1,),
        storage_offset=0,
        dtype="float32",
        device="cpu",
        storage_bytes=4 * elements,
        blob=0,
    )
    made = p.CaseMade(
        arguments=(spec,),
        expected=(p.ExpectedOutput(shape=(elements,), dtype="float32", device="cpu"),),
        bytes_moved=None,
        flops=None,
        reference_within_tolerance=True,
    )
    assert calls_at_once(made, claim_us) == calls
