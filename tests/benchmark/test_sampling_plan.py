"""The plan of a timed case: whose turn it is, on what inputs, who is stopped, which outputs are judged."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from fake_seats import CRASHED, PLAN, SECRET_SEED, TIMED, Asked, Crew, changed, double_card, said, spoilt
from fake_worker import doubled
from mini_kv.benchmark import samples
from mini_kv.benchmark.case_timing import judge_case, take_case
from mini_kv.benchmark.pair_timing import pair_plan
from mini_kv.benchmark.plan import measure_timer
from mini_kv.benchmark.samples import (
    BATCH_TIMEOUT_FACTOR,
    CANDIDATE,
    MAX_CALLS_PER_SAMPLE,
    REFERENCE,
    REPLY_SLACK_BYTES,
    ROTATING_SETS,
    CaseLost,
    Caught,
    Sets,
    SideLost,
    Taken,
    TimedSubject,
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
    transcript_fault,
)
from mini_kv.benchmark.two_candidates import take_two
from mini_kv.core import protocol as p
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import InternalError
from mini_kv.core.tensors import ScalarArg, TensorSpec
from mini_kv.system.workers import Answer, Lost

CASE = double_card().case(TIMED)


@pytest.fixture
def crew() -> Crew:
    return Crew()


def prepared(subject: TimedSubject) -> Sets:
    """Make the sets and hand them to both sides."""
    sets, payloads = make_sets(subject, CASE)
    hand_over(subject, CASE, sets, payloads)
    return sets


def repeats(crew: Crew, **changes: Any) -> tuple[dict[str, Taken], list[Caught], list[str]]:
    subject = crew.timed(**changes)
    order: list[str] = []
    taken, caught = take_repeats(subject, CASE, prepared(subject), order)
    return taken, caught, order


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


def batch_requests(crew: Crew, role: str) -> list[p.TimeBatch]:
    return [cast(p.TimeBatch, one.request) for one in crew.asked(p.TimeBatch, role)]


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


# ------------------------------------------------------------------------------- outputs that are judged


def test_an_output_of_every_repeat_is_caught_after_its_batch(crew: Crew) -> None:
    repeats(crew)
    of_candidate = [
        type(one.request).__name__
        for one in crew.log
        if one.role == "candidate" and not isinstance(one.request, p.PrepareTiming)
    ]
    assert of_candidate == ["TimeBatch", "FetchTimedOutput"] * PLAN.repeats


def test_the_call_that_is_kept_is_drawn_anew_for_every_batch(crew: Crew) -> None:
    """One that knew which call of a sample is looked at could work on that one alone."""
    repeats(crew)
    kept_at = [one.kept_at for one in batch_requests(crew, "candidate")]
    assert len(set(kept_at)) == PLAN.repeats and all(0.0 <= place < 1.0 for place in kept_at)


def test_the_sample_that_is_fetched_is_one_that_was_kept(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda _, honest: changed(honest, kept=(3, 8)))
    _, caught, _ = repeats(crew, chooser=random.Random(1))
    fetched = [one.request.sample for one in crew.asked(p.FetchTimedOutput)]
    assert set(fetched) == {3, 8}
    batches = batch_requests(crew, "candidate")
    positions = [
        sample * 4 + p.kept_call(batch.kept_at, 4) for sample, batch in zip(fetched, batches, strict=True)
    ]
    assert [item.argument_set for item in caught] == [position % ROTATING_SETS for position in positions]


@pytest.mark.parametrize("wrong", range(PLAN.repeats))
def test_only_the_first_of_several_caught_outputs_was_judged(crew: Crew, wrong: int) -> None:
    subject = crew.timed()
    sets = prepared(subject)
    fetched = itertools.count()

    def behave(_: Asked, honest: Answer) -> Answer:
        return spoilt(honest) if next(fetched) == wrong else honest

    crew.on("candidate", p.FetchTimedOutput, behave)
    _, caught = take_repeats(subject, CASE, sets, [])
    (finding,) = check_outputs(subject, sets, caught)
    assert finding.code == "TIMED_OUTPUT_WRONG"
    assert "wrong in 1 of 40 elements" in finding.message
    assert len(crew.asked(p.Compare)) == wrong + 1


def test_honest_outputs_of_all_sets_are_judged_right(crew: Crew) -> None:
    subject = crew.timed()
    sets = prepared(subject)
    caught = [item for _ in range(3) for item in take_repeats(subject, CASE, sets, [])[1]]
    assert check_outputs(subject, sets, caught) == ()
    judged = [one.request.key for one in crew.asked(p.Compare)]
    assert judged == [sets.keys[item.argument_set] for item in caught]
    assert set(judged) == set(sets.keys)


def test_a_timed_output_of_another_form_is_wrong(crew: Crew) -> None:
    subject = crew.timed()
    sets = prepared(subject)
    (item, *_) = take_repeats(subject, CASE, sets, [])[1]
    (spec,) = item.outputs.outputs
    other = msgspec.structs.replace(item.outputs, outputs=(msgspec.structs.replace(spec, shape=(39,)),))
    (finding,) = check_outputs(subject, sets, [replace(item, outputs=other)])
    assert finding.code == "TIMED_OUTPUT_WRONG" and "another form" in finding.message
    assert not crew.asked(p.Compare)


@pytest.mark.parametrize(
    ("reply", "said_so"),
    [(p.Failed(code="X", message="3 bytes"), "3 bytes"), (p.Done(), "an unexpected answer")],
)
def test_a_timed_output_that_cannot_be_compared_is_wrong(crew: Crew, reply: p.Reply, said_so: str) -> None:
    crew.on("oracle", p.Compare, lambda *_: said(reply))
    found = take_case(crew.timed(), CASE)
    assert [finding.code for finding in found.wrong] == ["TIMED_OUTPUT_WRONG"]
    assert "malformed" in found.wrong[0].message and said_so in found.wrong[0].message


@pytest.mark.parametrize(("extra", "code"), [(0, "TIMED_OUTPUT_WRONG"), (1, "PROTOCOL_VIOLATION")])
def test_an_output_may_not_be_longer_than_twice_the_plans_and_some_slack(
    crew: Crew, extra: int, code: str
) -> None:
    flood = bytes(2 * 160 + REPLY_SLACK_BYTES + extra)
    crew.on("candidate", p.FetchTimedOutput, lambda _, honest: said(honest.reply, flood))
    assert [finding.code for finding in take_case(crew.timed(), CASE).wrong] == [code]


def test_a_batch_and_its_preparation_carry_no_bytes_back(crew: Crew) -> None:
    repeats(crew)
    for kind in (p.PrepareTiming, p.TimeBatch):
        assert {one.max_reply_bytes for one in crew.asked(kind, "candidate")} == {0}


# ------------------------------------------------------------------------------- a whole case


def test_the_outputs_of_a_case_are_counted_over_all_its_tries(crew: Crew) -> None:
    busy = iter([3.0, 1.0, 1.0, 3.0, 1.0])

    def behave(_: Asked, honest: Answer) -> Answer:
        factor = next(busy, 1.0)
        return changed(honest, samples_us=tuple(factor * one for one in honest.reply.samples_us))

    crew.on("candidate", p.TimeBatch, behave)
    found = take_case(crew.timed(), CASE)
    assert (found.tries, found.checked, found.wrong) == (2, 2 * PLAN.repeats, ())
    assert len(found.order) == 2 * 2 * PLAN.repeats
    assert found.taken[CANDIDATE].series("cpu", 0.0).p50_us == pytest.approx(10.0)


def test_a_candidate_that_crashes_while_it_is_timed_has_no_times(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda *_: CRASHED)
    subject = crew.timed()
    found = take_case(subject, CASE)
    (finding,) = found.wrong
    assert (finding.code, finding.evidence) == ("CRASHED", (CRASHED.output,))
    timer = measure_timer(subject)
    record = judge_case(subject, found, timer)
    assert (record.status.value, record.candidate, record.timing_trust) == ("FAIL", None, "unverified")


def test_only_the_end_of_a_long_output_is_evidence(crew: Crew) -> None:
    talkative = Lost(code="CRASHED", message="it died", output="x" * 5000 + "the end")
    crew.on("candidate", p.TimeBatch, lambda *_: talkative)
    (finding,) = take_case(crew.timed(), CASE).wrong
    assert len(finding.evidence[0]) == 4000 and finding.evidence[0].endswith("the end")
    crew.on("candidate", p.TimeBatch, lambda *_: replace(talkative, output=""))
    (finding,) = take_case(crew.timed(), CASE).wrong
    assert finding.evidence == ()


def test_an_answer_of_another_kind_is_no_time(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda *_: said(p.Done()))
    (finding,) = take_case(crew.timed(), CASE).wrong
    assert (finding.code, "could not be timed: Done" in finding.message) == ("NOT_TIMED", True)


def test_samples_of_nothing_are_no_times(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda _, honest: changed(honest, samples_us=(0.0,) * 10))
    (finding,) = take_case(crew.timed(), CASE).wrong
    assert finding.code == "NOT_A_TIME"


# ------------------------------------------------------------------------------- transcripts


def timed_reply(**changes: Any) -> p.Timed:
    made = p.Timed(
        samples_us=(10.0, 11.0),
        launch_exposed=(),
        kept=(0, 1),
        calls_per_sample=4,
        floor_us=0.5,
        tick_us=0.01,
    )
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "calls", "fault"),
    [
        ({}, 4, None),
        ({}, 0, None),
        ({"calls_per_sample": 1}, 0, None),
        ({"calls_per_sample": MAX_CALLS_PER_SAMPLE}, 0, None),
        ({"kept": (1,)}, 4, None),
        ({"samples_us": (10.0,)}, 4, "gave 1 samples and kept 2 outputs; the plan has 2 samples"),
        ({"samples_us": (10.0,) * 3}, 4, "gave 3 samples"),
        ({"kept": ()}, 4, "gave 2 samples and kept 0 outputs"),
        ({"kept": (0, 2)}, 4, "samples that the plan does not have"),
        ({"kept": (-1, 0)}, 4, "samples that the plan does not have"),
        ({"calls_per_sample": 3}, 4, "made 3 calls a sample; allowed: 4 to 4"),
        ({"calls_per_sample": 5}, 4, "made 5 calls a sample; allowed: 4 to 4"),
        ({"calls_per_sample": 0}, 0, f"made 0 calls a sample; allowed: 1 to {MAX_CALLS_PER_SAMPLE}"),
        ({"calls_per_sample": MAX_CALLS_PER_SAMPLE + 1}, 0, "calls a sample; allowed: 1 to"),
    ],
)
def test_a_batch_that_departs_from_the_plan_is_told(
    changes: dict[str, Any], calls: int, fault: str | None
) -> None:
    found = transcript_fault(timed_reply(**changes), 2, calls)
    assert (found is None) if fault is None else fault in (found or "")


def test_a_short_batch_of_the_candidate_ends_the_case(crew: Crew) -> None:
    crew.on("candidate", p.TimeBatch, lambda _, honest: changed(honest, samples_us=(10.0,)))
    (finding,) = take_case(crew.timed(), CASE).wrong
    assert finding.code == "SHORT_TRANSCRIPT"


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
