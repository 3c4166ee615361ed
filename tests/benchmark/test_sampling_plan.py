"""The plan of a timed case: whose turn it is, on what inputs, who is stopped, what is summed up."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fake_seats import (
    CRASHED,
    PLAN,
    SECRET_SEED,
    TIMED,
    Asked,
    Crew,
    batch_requests,
    double_card,
    prepared,
    repeats,
    said,
    timed_reply,
)
from fake_worker import doubled
from mini_kv.benchmark import samples
from mini_kv.benchmark.case_timing import take_case
from mini_kv.benchmark.pair_timing import pair_plan
from mini_kv.benchmark.plan import measure_timer
from mini_kv.benchmark.samples import (
    BATCH_TIMEOUT_FACTOR,
    CANDIDATE,
    REFERENCE,
    ROTATING_SETS,
    CaseLost,
    SideLost,
    Taken,
    apart,
    batch_request,
    blamed_on,
    check_outputs,
    hand_over,
    held,
    make_sets,
    release,
    take_batch,
    take_repeats,
    time_candidate,
    timed_seed,
)
from mini_kv.benchmark.two_candidates import take_two
from mini_kv.core import protocol as p
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import InternalError
from mini_kv.core.tensors import ScalarArg, TensorSpec

CASE = double_card().case(TIMED)


@pytest.fixture
def crew() -> Crew:
    return Crew()


def roles(asked: Iterable[Asked]) -> list[str]:
    return [one.role for one in asked]


# ------------------------------------------------------------------------------- order of the sides


def test_the_order_of_the_sides_was_never_flipped(crew: Crew) -> None:
    """A drift within a repeat then hit the candidate alone, which always came after the reference."""
    _, _, order = repeats(crew)
    pairs = [(REFERENCE, CANDIDATE), (CANDIDATE, REFERENCE)]
    assert order == list(itertools.chain(*itertools.islice(itertools.cycle(pairs), PLAN.repeats)))
    assert roles(crew.asked(p.TimeBatch)) == ["oracle" if side == REFERENCE else side for side in order]


def test_each_side_takes_one_batch_a_repeat_and_all_its_samples_are_kept(crew: Crew) -> None:
    taken, caught, _ = repeats(crew)
    for side, p50_us in ((CANDIDATE, 10.0), (REFERENCE, 20.0)):
        assert [len(batch) for batch in taken[side].samples_us] == [PLAN.iterations] * PLAN.repeats
        assert taken[side].series("cpu", 0.0).p50_us == pytest.approx(p50_us)
    assert len(caught) == PLAN.repeats


# ------------------------------------------------------------------------------- rotating inputs


def test_the_rotating_sets_held_equal_values(crew: Crew) -> None:
    """A candidate that returned the result of the call before then passed every look at timed outputs."""
    sets, payloads = make_sets(crew.timed(), CASE)
    assert len(sets.made) == len(sets.keys) == len(payloads) == ROTATING_SETS
    assert len({bytes(payload) for payload in payloads}) == ROTATING_SETS
    seeds = [one.request.seed for one in crew.asked(p.MakeCase)]
    assert seeds == [timed_seed(SECRET_SEED, position) for position in range(ROTATING_SETS)]
    assert len({timed_seed(secret, place) for secret in ("00", "01") for place in range(3)}) == 6


def test_a_candidate_that_returns_the_first_sets_result_for_every_set_is_found(crew: Crew) -> None:
    subject = crew.timed()
    sets, payloads = make_sets(subject, CASE)
    hand_over(subject, CASE, sets, payloads)
    stale = doubled(payloads[0])
    crew.on("candidate", p.FetchTimedOutput, lambda _, honest: said(honest.reply, stale))
    _, caught = take_repeats(subject, CASE, sets, [])
    assert {item.argument_set for item in caught} != {0}
    assert [finding.code for finding in check_outputs(subject, sets, caught)] == ["TIMED_OUTPUT_WRONG"]


def test_both_sides_are_given_the_sets_that_the_oracle_made(crew: Crew) -> None:
    sets, payloads = make_sets(crew.timed(), CASE)
    assert sets.keys == tuple(f"timed/{TIMED}/{position}" for position in range(ROTATING_SETS))
    assert sets.storages == tuple(((len(raw), sha256_bytes(raw)),) for raw in payloads)
    prepared(crew.timed())
    (reference,) = crew.asked(p.PrepareReferenceTiming, "oracle")
    (candidate,) = crew.asked(p.PrepareTiming, "candidate")
    assert (reference.request.case_id, reference.request.keys) == (TIMED, sets.keys)
    assert [one.expect_values for one in (asked.request for asked in crew.asked(p.MakeCase))] == [True] * 3
    assert candidate.payloads == tuple(map(bytes, payloads))
    blobs = [argument.blob for arguments in candidate.request.argument_sets for argument in arguments]
    assert blobs == [0, 1, 2]


@pytest.mark.parametrize(("limit_bytes", "expected"), [(160, ROTATING_SETS), (159, 1)])
def test_a_set_above_the_limit_is_timed_alone(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, limit_bytes: int, expected: int
) -> None:
    monkeypatch.setattr(samples, "LARGE_SET_BYTES", limit_bytes)  # a set of the case has 40 floats
    subject = crew.timed()
    sets, payloads = make_sets(subject, CASE)
    assert (len(sets.keys), len(sets.storages), len(payloads)) == (expected,) * 3
    hand_over(subject, CASE, sets, payloads)
    _, caught = take_repeats(subject, CASE, sets, [])
    assert len(caught) == PLAN.repeats and check_outputs(subject, sets, caught) == ()


def test_each_argument_names_the_bytes_of_its_own_set(crew: Crew) -> None:
    """A set may hold numbers next to tensors, or no tensor at all."""
    sets, payloads = make_sets(crew.timed(), CASE)
    (tensor,) = sets.made[0].arguments
    number = ScalarArg(value=1.5)
    second = msgspec.structs.replace(tensor, blob=1)
    arguments = ((number, tensor), (number,), (second, number, tensor), (tensor,))
    made = tuple(msgspec.structs.replace(sets.made[0], arguments=one) for one in arguments)
    hand_over(crew.timed(), CASE, replace(sets, made=made), payloads)
    (asked,) = crew.asked(p.PrepareTiming)
    places = [
        [one.blob if isinstance(one, TensorSpec) else one.value for one in arguments]
        for arguments in asked.request.argument_sets
    ]
    assert places == [[1.5, 0], [1.5], [2, 1.5, 1], [3]]


@pytest.mark.parametrize(
    ("reply", "said_so"),
    [(p.Failed(code="X", message="no memory" * 100), "no memory"), (p.Done(), "an unexpected answer")],
)
def test_a_factory_that_cannot_make_a_set_is_the_cards_fault(
    crew: Crew, reply: p.Reply, said_so: str
) -> None:
    crew.on("oracle", p.MakeCase, lambda asked, _: said(reply))
    with pytest.raises(CaseLost) as lost:
        make_sets(crew.timed(), CASE)
    assert lost.value.finding.code == "CASE_NOT_MAKEABLE"
    assert said_so in lost.value.finding.message and len(lost.value.finding.message) < 600


def test_a_candidate_that_does_not_take_the_sets_is_not_timed(crew: Crew) -> None:
    crew.on("candidate", p.PrepareTiming, lambda *_: said(p.Failed(code="X", message="no room")))
    found = take_case(crew.timed(), CASE)
    assert [(finding.code, "no room" in finding.message) for finding in found.wrong] == [("NOT_TIMED", True)]
    assert not crew.asked(p.TimeBatch)


def test_sets_are_freed_on_both_sides_but_no_worker_is_started_to_free_nothing(crew: Crew) -> None:
    subject = crew.timed()
    sets = prepared(subject)
    release(subject, CASE, sets)
    assert [one.request.key for one in crew.asked(p.Forget, "oracle")] == list(sets.keys)
    assert roles(crew.asked(p.DropTiming)) == ["oracle", "candidate"]
    subject.seat.retire()
    crew.log.clear()
    release(subject, CASE, sets)
    assert roles(crew.asked(p.DropTiming)) == ["oracle"]


# ------------------------------------------------------------------------------- who is stopped


def stopped_at(crew: Crew, kind: type, role: str) -> set[frozenset[str]]:
    return {one.stopped for one in crew.asked(kind, role)}


def test_the_candidate_was_not_stopped_while_the_reference_was_timed(crew: Crew) -> None:
    """Its threads then took cores from the reference, whose longer time is the candidate's speedup."""
    repeats(crew)
    assert stopped_at(crew, p.TimeBatch, "oracle") == {frozenset({"candidate"})}
    assert stopped_at(crew, p.TimeBatch, "candidate") == {frozenset()}
    assert crew.stopped == []


def test_a_candidate_that_waits_was_not_stopped_while_the_other_was_timed(crew: Crew) -> None:
    timed = take_two(apart(crew.sides()), CASE)
    assert [one.wrong for one in timed.values()] == [(), ()]
    both = frozenset({"candidate", "other"})
    assert stopped_at(crew, p.TimeBatch, "oracle") == {both}
    assert stopped_at(crew, p.TimeBatch, "candidate") == {frozenset({"other"})}
    assert stopped_at(crew, p.TimeBatch, "other") == {frozenset({"candidate"})}


def test_the_timer_was_measured_next_to_a_running_candidate(crew: Crew) -> None:
    measure_timer(crew.timed(waiting=(crew.seat("other"),)))
    assert stopped_at(crew, p.MeasureTimer, "oracle") == {frozenset({"candidate", "other"})}


def test_nobody_is_stopped_on_a_gpu(crew: Crew) -> None:
    """A stopped process keeps what it has on the device, and the event pair sees the device alone."""
    subject = crew.timed(device="cuda", waiting=(crew.seat("other"),))
    with held(subject, (subject.seat, *subject.waiting)):
        assert crew.stopped == []
    repeats(crew, device="cuda")
    assert stopped_at(crew, p.TimeBatch, "oracle") == {frozenset()}


def test_whoever_was_stopped_goes_on_though_the_reference_cannot_be_timed(crew: Crew) -> None:
    crew.on("oracle", p.TimeBatch, lambda *_: said(p.Failed(code="X", message="out of memory")))
    with pytest.raises(InternalError, match="reference of 'timed' cannot be timed: out of memory") as fault:
        repeats(crew)
    assert (fault.value.code, crew.stopped) == ("REFERENCE_NOT_TIMED", [])
    crew.on("oracle", p.TimeBatch, lambda *_: said(p.Done()))
    with pytest.raises(InternalError, match="cannot be timed: Done"):
        repeats(crew)


# ------------------------------------------------------------------------------- requests for batches


@pytest.mark.parametrize(("device", "again"), [("cpu", 2), ("cuda", 7)])
def test_a_cpu_is_woken_and_a_gpu_warmed_up_before_each_batch_but_the_first(
    crew: Crew, device: str, again: int
) -> None:
    repeats(crew, device=device)
    for role in ("oracle", "candidate"):
        asked = batch_requests(crew, role)
        assert [one.warmup for one in asked] == [7] + [again] * (PLAN.repeats - 1)
    assert not crew.asked(p.TimeBatch)[0].request.elsewhere


def test_a_plan_with_one_warmup_call_never_makes_two(crew: Crew) -> None:
    repeats(crew, card=double_card(plan={"warmup": 1}))
    assert {one.warmup for one in batch_requests(crew, "candidate")} == {1}


def test_the_calls_of_a_sample_stay_those_of_the_first_batch(crew: Crew) -> None:
    repeats(crew)
    for role in ("oracle", "candidate"):
        assert [one.calls_per_sample for one in batch_requests(crew, role)] == [0, 4, 4, 4, 4]


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_every_batch_is_the_cards(crew: Crew, cache: str) -> None:
    repeats(crew, card=double_card(plan={"cache": cache, "iterations": 13}))
    asked = crew.asked(p.TimeBatch)
    assert {(one.request.case_id, one.request.iterations, one.request.cache) for one in asked} == {
        (TIMED, 13, cache)
    }
    assert {one.timeout_s for one in asked} == {2.0 * BATCH_TIMEOUT_FACTOR}


# ------------------------------------------------------------------------------- what is summed up


def test_only_the_exposed_samples_of_the_last_batch_were_counted() -> None:
    """Up to 5 % of the samples exposed then read as 1 %, which is the limit."""
    taken = Taken()
    for exposed in ((0,), (), (0, 1)):
        taken.add(timed_reply(launch_exposed=exposed))
    assert taken.series("cuda", 0.0).launch_exposed == 3


def test_the_floor_held_the_empty_kernel_too() -> None:
    """Net times were too short by the empty kernel, 0.58 us on an H200."""
    taken = Taken()
    for floor_us in (3.0, 2.0, 9.0):
        taken.add(timed_reply(floor_us=floor_us))
    assert taken.series("cuda", 0.0).floor_us == 3.0
    series = taken.series("cuda", 0.58)
    assert series.floor_us == pytest.approx(2.42)
    assert series.net_p50_us == pytest.approx(series.p50_us - 2.42)
    assert taken.series("cuda", 4.0).floor_us == 0.0


@pytest.mark.parametrize(
    ("ticks_us", "device", "expected"),
    [
        ((0.02, 0.0, 0.01), "cpu", 0.01),
        ((0.0, 0.0, 0.0), "cpu", 0.001),
        ((0.0, 0.0, 0.0), "cuda", 0.032),
    ],
)
def test_the_tick_is_the_least_that_a_batch_saw(
    ticks_us: tuple[float, ...], device: Any, expected: float
) -> None:
    taken = Taken()
    for tick_us in ticks_us:
        taken.add(timed_reply(tick_us=tick_us))
    series = taken.series(device, 0.0)
    assert (series.tick_us, series.calls_per_sample) == (expected, 4)
    assert series.samples_us == ((10.0, 11.0),) * 3


# ------------------------------------------------------------------------------- whose fault it is


def test_each_of_two_sides_waits_while_the_other_is_timed(crew: Crew) -> None:
    sides = crew.sides()
    a, b = (one.seat for one in sides.values())
    assert {name: (one.seat, one.waiting) for name, one in apart(sides).items()} == {
        "a": (a, (b,)),
        "b": (b, (a,)),
    }


def test_a_lost_case_is_blamed_on_the_side_that_lost_it(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda *_: CRASHED)
    with pytest.raises(SideLost) as lost, blamed_on("b"):
        take_batch(crew.timed(), CASE, CANDIDATE, Taken())
    assert (lost.value.name, lost.value.finding.code) == ("b", "CRASHED")
    assert isinstance(lost.value.__cause__, CaseLost)
    with blamed_on("b"):
        take_batch(crew.timed(), CASE, REFERENCE, Taken())


def test_a_batch_of_its_own_is_asked_with_its_own_limit(crew: Crew) -> None:
    subject = crew.timed()
    prepared(subject)
    plan = pair_plan(subject.card.benchmark, iterations=30)
    request = batch_request(subject, TIMED, plan, Taken(), kept_at=0.5)
    timed = time_candidate(subject, request, 3.0)
    asked = crew.asked(p.TimeBatch)[-1]
    assert (len(timed.samples_us), request.kept_at, asked.timeout_s) == (20, 0.5, 3.0)
