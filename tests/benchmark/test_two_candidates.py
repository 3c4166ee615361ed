"""Two candidates under one plan: whose turn it is, whose fault a missing time is, what each record holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_seats import CRASHED, TIMED, Asked, Crew, changed, double_card, said
from mini_kv.benchmark import case_timing, two_candidates
from mini_kv.benchmark.pair_timing import PairInputs, measure_pair, pair_plan, side_times
from mini_kv.benchmark.samples import CaseLost, SideLost, make_sets
from mini_kv.benchmark.two_candidates import batch_sides, run_two_sides, take_two
from mini_kv.benchmark.unseen_inputs import Remembered
from mini_kv.benchmark.witnesses import Bound
from mini_kv.core import protocol as p
from mini_kv.core.progress import Event, silent
from mini_kv.core.records.benchmark import Telemetry
from mini_kv.core.records.pairs import PairResult
from mini_kv.core.records.results import Status
from mini_kv.core.rules.quality import MAX_LAUNCH_EXPOSED_FRACTION
from mini_kv.core.rules.statistics import MAX_SAMPLE_US
from mini_kv.system.workers import Answer

CASE = double_card().case(TIMED)
TURNS = ("a", "b", "reference", "b", "a", "reference")


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture(autouse=True)
def _quiet_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_timing, "bound_claim", lambda *_, **__: Bound(outside_us=10.0))
    monkeypatch.setattr(case_timing, "remembers", lambda *_: Remembered())


def test_the_order_of_the_candidates_flips_and_the_reference_ends_each_repeat(crew: Crew) -> None:
    assert batch_sides(2) == TURNS
    timed = take_two(crew.sides(), CASE)
    roles = {"oracle": "reference", "candidate": "a", "other": "b"}
    asked = tuple(roles[one.role] for one in crew.asked(p.TimeBatch))
    assert asked == batch_sides(5)
    assert tuple(timed["a"].order) == tuple(timed["b"].order) == asked


def test_both_sides_get_equal_inputs_and_have_an_output_of_every_batch_judged(crew: Crew) -> None:
    timed = take_two(crew.sides(), CASE)
    assert timed["a"].sets == timed["b"].sets
    given = [one.payloads for one in crew.asked(p.PrepareTiming) if one.role != "oracle"]
    assert len(given) == 2 and given[0] == given[1]
    for one in timed.values():
        assert (one.wrong, one.checked, one.tries, set(one.taken)) == ((), 5, 1, {"candidate", "reference"})
    assert [len(crew.asked(p.FetchTimedOutput, role)) for role in ("candidate", "other")] == [5, 5]
    assert [len(crew.asked(p.FetchTimedInputs, role)) for role in ("candidate", "other")] == [3, 3]


def shifting(crew: Crew, role: str, unstable_tries: int) -> None:
    """Have the batches of a role differ from each other in its first tries."""
    seen: list[int] = []

    def behave(_: Asked, honest: Answer) -> Answer:
        seen.append(0)
        unstable = (len(seen) - 1) // 5 < unstable_tries
        factor = 1.0 + 0.2 * (len(seen) % 3) if unstable else 1.0
        return changed(honest, samples_us=tuple(factor * one for one in honest.reply.samples_us))  # type: ignore[union-attr]

    crew.on(role, p.TimeBatch, behave)


@pytest.mark.parametrize(("unstable_tries", "tries"), [(0, 1), (1, 2), (2, 3), (9, 3)])
@pytest.mark.parametrize("role", ["candidate", "other"])
def test_the_quality_gate_is_tried_three_times_for_both(
    crew: Crew, role: str, unstable_tries: int, tries: int
) -> None:
    shifting(crew, role, unstable_tries)
    timed = take_two(crew.sides(), CASE)
    assert [one.tries for one in timed.values()] == [tries] * 2
    assert [one.checked for one in timed.values()] == [5 * tries] * 2
    assert [len(one.order) for one in timed.values()] == [15 * tries] * 2


@pytest.mark.parametrize(("passed_s", "tries"), [(3.0, 3), (3.5, 1)])
def test_no_further_try_begins_after_the_budget(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, passed_s: float, tries: int
) -> None:
    times = iter([100.0] + [100.0 + passed_s] * 9)
    monkeypatch.setattr(two_candidates.time, "monotonic", lambda: next(times))
    shifting(crew, "other", 9)
    assert take_two(crew.sides(), CASE)["a"].tries == tries


@pytest.mark.parametrize(("role", "at_fault", "other"), [("candidate", "a", "b"), ("other", "b", "a")])
def test_a_side_that_crashes_left_the_other_one_with_times(
    crew: Crew, role: str, at_fault: str, other: str
) -> None:
    crew.on(role, p.TimeBatch, lambda *_: CRASHED)
    timed: Any = take_two(crew.sides(), CASE)
    assert [one.code for one in timed[at_fault].wrong] == ["CRASHED"]
    assert [one.code for one in timed[other].wrong] == ["OTHER_SIDE_LOST"]
    assert timed[other].wrong[0].message.endswith("gave no times for this case (CRASHED)")
    assert timed["a"].taken == timed["b"].taken == {}


@pytest.mark.parametrize(("role", "at_fault", "other"), [("candidate", "a", "b"), ("other", "b", "a")])
def test_a_wrong_output_or_input_is_its_own_sides_and_ends_the_tries(
    crew: Crew, role: str, at_fault: str, other: str
) -> None:
    shifting(crew, role, 9)
    crew.on(role, p.FetchTimedInputs, lambda _, honest: said(honest.reply, bytes(160)))
    timed: Any = take_two(crew.sides(), CASE)
    assert [one.code for one in timed[at_fault].wrong] == ["INPUT_MUTATED_WHILE_TIMED"]
    assert (timed[other].wrong, timed[other].tries) == ((), 1)
    crew.on(role, p.FetchTimedOutput, lambda _, honest: said(honest.reply, bytes(160)))
    timed = take_two(crew.sides(), CASE)
    assert timed[at_fault].wrong[0].code == "TIMED_OUTPUT_WRONG"
    assert timed[other].wrong == ()


def test_the_cards_own_fault_concerns_both(crew: Crew) -> None:
    crew.on("oracle", p.MakeCase, lambda *_: said(p.Failed(code="X", message="no")))
    timed = take_two(crew.sides(), CASE)
    assert [[one.code for one in side.wrong] for side in timed.values()] == [["CASE_NOT_MAKEABLE"]] * 2


def test_a_side_that_does_not_take_the_inputs_is_named(crew: Crew) -> None:
    crew.on("other", p.PrepareTiming, lambda *_: said(p.Failed(code="X", message="no room")))
    timed = take_two(crew.sides(), CASE)
    assert [side.wrong[0].code for side in timed.values()] == ["OTHER_SIDE_LOST", "NOT_TIMED"]


# ------------------------------------------------------------------------------- a whole plan


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    @contextmanager
    def hold(lock: Path) -> Iterator[None]:
        seen.append(f"held {lock.name}")
        yield
        seen.append("free")

    monkeypatch.setattr(two_candidates, "hold_device", hold)
    return seen


def test_a_throttled_gpu_makes_both_sides_unstable(crew: Crew, locks: list[str]) -> None:
    throttled = Telemetry(
        index=0,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_c=30,
        power_w=100.0,
        utilization_percent=0,
        throttle_reasons=("hardware slowdown",),
        process_ids=(),
    )
    made = run_two_sides(crew.sides(), Path("gpu.lock"), silent, read=lambda: throttled)
    assert [[one.code for one in side.cases[0].findings] for side in made.values()] == [["THROTTLED"]] * 2
    assert [len(side.telemetry) for side in made.values()] == [2, 2]
    assert not any(side.stable for side in made.values())


def test_every_case_is_timed_under_the_lock_and_released_on_both_sides(crew: Crew, locks: list[str]) -> None:
    events: list[Event] = []
    looks: list[str] = []

    def read() -> None:
        looks.append(locks[-1])

    made = run_two_sides(crew.sides(), Path("gpu.lock"), events.append, read=read)
    assert [(one.stage, one.done, one.total, one.detail) for one in events] == [
        ("benchmark", 0, 1, TIMED),
        ("benchmark", 1, 1, "done"),
    ]
    assert (locks, looks) == (["held gpu.lock", "free"], ["held gpu.lock"] * 2)
    for one in made.values():
        assert (one.status, [case.case_id for case in one.cases]) == (Status.PASS, [TIMED])
        assert one.cases[0].batch_order == batch_sides(5)
        assert 0.0 <= one.elapsed_s < 60.0
    assert sorted(one.role for one in crew.asked(p.DropTiming)) == ["candidate", "oracle", "oracle", "other"]


def test_each_side_has_its_own_times_and_its_own_record(crew: Crew, locks: list[str]) -> None:
    crew.on(
        "other",
        p.TimeBatch,
        lambda _, honest: changed(honest, samples_us=tuple(2 * one for one in honest.reply.samples_us)),  # type: ignore[union-attr]
    )
    made = run_two_sides(crew.sides(), Path("gpu.lock"), silent)
    assert [one.geomean_speedup for one in made.values()] == [pytest.approx(2.0), pytest.approx(1.0)]


def test_every_other_candidate_is_stopped_while_a_case_is_judged(crew: Crew, locks: list[str]) -> None:
    stopped: list[frozenset[str]] = []

    def judged(*_: object, **__: object) -> Bound:
        stopped.append(frozenset(crew.stopped))
        return Bound(outside_us=10.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_timing, "bound_claim", judged)
        run_two_sides(crew.sides(), Path("gpu.lock"), silent)
    assert stopped == [frozenset({"other"}), frozenset({"candidate"})]


# ------------------------------------------------------------------------------- times of a side in a pair


def times_of(
    *samples: float, floors: tuple[float, ...] = (1.0,), exposed: int = 0, kernel_us: float = 0.0
) -> float:
    made = side_times(
        "x",
        (samples,),
        floors,
        tick_us=1e-6,
        launch_exposed=exposed,
        calls_per_sample=1,
        empty_kernel_us=kernel_us,
    )
    assert made.net_us == pytest.approx(made.p50_us - made.floor_us + kernel_us)
    return made.net_us


def lost_by(*samples: float, **changes: Any) -> str:
    with pytest.raises(CaseLost) as caught:
        times_of(*samples, **changes)
    return str(caught.value.finding.code)


def test_a_net_time_is_the_median_above_the_empty_call_and_its_kernel() -> None:
    assert times_of(5.0, 7.0, 9.0) == pytest.approx(6.0)
    assert times_of(5.0, 7.0, 9.0, floors=(1.0, 2.0, 30.0), kernel_us=0.5) == pytest.approx(5.5)
    assert times_of(0.0, 2.0, MAX_SAMPLE_US, floors=(0.0,)) == pytest.approx(2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.001, MAX_SAMPLE_US * 1.1])
def test_one_reading_that_is_no_time_is_enough(bad: float) -> None:
    assert lost_by(5.0, bad, 9.0) == "NOT_A_TIME"
    assert lost_by(5.0, 7.0, 9.0, floors=(1.0, bad, 1.0)) == "NOT_A_TIME"


def test_a_call_no_longer_than_an_empty_one_has_no_net_time() -> None:
    assert lost_by(1.0, 1.0, 1.0) == "BELOW_FLOOR"
    assert lost_by(0.5, 0.5, 0.5) == "BELOW_FLOOR"
    assert times_of(1.0, 1.0, 1.0, kernel_us=0.25) == pytest.approx(0.25)


def test_one_sample_in_a_hundred_may_wait_for_the_host() -> None:
    assert MAX_LAUNCH_EXPOSED_FRACTION == 0.01
    assert times_of(*[5.0] * 100, exposed=1) == pytest.approx(4.0)
    assert lost_by(*[5.0] * 100, exposed=2) == "LAUNCH_EXPOSED"
    assert lost_by(*[5.0] * 99, exposed=1) == "LAUNCH_EXPOSED"


# ------------------------------------------------------------------------------- a pair of processes


def paired(crew: Crew, **changes: Any) -> PairResult:
    sides = crew.sides()
    sets, payloads = make_sets(sides["a"], CASE)
    inputs = PairInputs(sets=sets, payloads=payloads)
    plan = pair_plan(sides["a"].card.benchmark, repeats=2, iterations=20)
    return measure_pair(sides, CASE, inputs, plan, **changes)


def test_a_pair_begins_with_a_where_nothing_else_is_said(crew: Crew) -> None:
    found = paired(crew)
    assert (found.pair, found.first, found.a.label, found.b.label) == (0, "a", "a", "b")
    assert [one.role for one in crew.asked(p.TimeBatch)] == ["candidate", "other", "other", "candidate"]
    assert (found.a.empty_kernel_us, found.b.empty_kernel_us) == (0.0, 0.0)
    crew.log.clear()
    assert paired(crew, pair=3, labels=("x", "y")).first == "b"
    assert [one.role for one in crew.asked(p.TimeBatch)] == ["other", "candidate", "candidate", "other"]


def test_times_of_a_pair_are_read_through_the_clocks_own_tick(crew: Crew) -> None:
    def ticking(tick_us: float) -> float:
        # Two readings of three fall on one step, the third on the next: the time lies between them.
        crew.on(
            "candidate",
            p.TimeBatch,
            lambda asked, honest: changed(
                honest,
                samples_us=tuple(8.0 + 0.5 * (number % 3 == 2) for number in range(asked.request.iterations)),
                tick_us=tick_us,
            ),
        )
        return paired(crew).a.p50_us

    assert ticking(0.5) == pytest.approx(8.0 - 0.25 + 0.5 * (20 / 28), abs=1e-6)
    for unusable in (0.0, MAX_SAMPLE_US * 2):
        assert ticking(unusable) == pytest.approx(8.0, abs=1e-3)


def test_inputs_that_were_written_to_in_a_pair_are_their_own_sides(crew: Crew) -> None:
    crew.on("other", p.FetchTimedInputs, lambda _, honest: said(honest.reply, bytes(160)))
    with pytest.raises(SideLost) as lost:
        paired(crew)
    assert (lost.value.name, lost.value.finding.code) == ("b", "INPUT_MUTATED_WHILE_TIMED")
