"""Calls on inputs that no call has met: what is asked for them, whose results are judged, what is told."""

from __future__ import annotations

from typing import Any

import pytest

from fake_seats import CRASHED, SECRET_SEED, TIMED, Asked, Crew, changed, double_card, prepared, said, spoilt
from mini_kv.benchmark.samples import CaseLost, TimedSubject, timed_seed
from mini_kv.benchmark.unseen_inputs import FRESH_SETS, FRESH_TRIES, MAX_CALLS_AT_ONCE, Remembered, remembers
from mini_kv.core import protocol as p
from mini_kv.core.errors import InternalError
from mini_kv.core.records.benchmark import Series
from mini_kv.core.rules.statistics import summarize
from mini_kv.system.workers import Answer, Lost

CASE = double_card().case(TIMED)
CLAIM = summarize(((10.0,) * 10,) * 5, calls_per_sample=4, launch_exposed=0, floor_us=0.05, tick_us=0.001)


@pytest.fixture
def crew() -> Crew:
    return Crew()


def ready(crew: Crew, **changes: Any) -> TimedSubject:
    subject = crew.timed(**changes)
    prepared(subject)
    crew.log.clear()
    return subject


def tried(crew: Crew, claim: Series = CLAIM, **changes: Any) -> Remembered:
    return remembers(ready(crew, **changes), CASE, claim)


def unseen_take(crew: Crew, *samples_us: float) -> None:
    """Have calls on unseen inputs take these times in turn, the last for ever."""
    times = iter(samples_us)

    def behave(_: Asked, honest: Answer) -> Answer:
        return changed(honest, samples_us=(next(times, samples_us[-1]),))

    crew.on("candidate", p.TimeUnseen, behave)


def told(found: Remembered) -> tuple[list[str], list[str]]:
    return [one.code for one in found.wrong], [one.code for one in found.doubts]


def test_an_honest_call_is_cleared_by_one_try(crew: Crew) -> None:
    assert told(tried(crew)) == ([], [])
    assert len(crew.asked(p.TimeUnseen)) == FRESH_SETS
    assert len(crew.asked(p.TimeBatch, "candidate")) == 2  # one before the calls, one after them


def test_wrong_results_on_unseen_inputs_were_not_reported(crew: Crew) -> None:
    crew.on("candidate", p.FetchTimedOutput, lambda _, honest: spoilt(honest))
    assert told(tried(crew)) == (["TIMED_OUTPUT_WRONG"], [])
    assert len(crew.asked(p.TimeUnseen)) == FRESH_SETS  # the first try is enough


def test_the_results_of_the_fastest_call_are_judged_each_with_its_own_inputs(crew: Crew) -> None:
    unseen_take(crew, 12.0, 11.0, 9.0, 13.0)
    tried(crew)
    group = {one.request.case_id for one in crew.asked(p.FetchTimedOutput)}
    assert group == {f"{TIMED}/fresh/2"}
    samples = [one.request.sample for one in crew.asked(p.FetchTimedOutput)]
    assert samples == list(range(MAX_CALLS_AT_ONCE))
    first = 2 * MAX_CALLS_AT_ONCE
    expected = [f"fresh/{TIMED}/0/{first + sample}" for sample in samples]
    assert [one.request.key for one in crew.asked(p.Compare)] == expected


@pytest.mark.parametrize("sample", [0, 1, MAX_CALLS_AT_ONCE - 1])
def test_one_wrong_result_among_calls_that_are_timed_together_is_found(crew: Crew, sample: int) -> None:
    def behave(asked: Asked, honest: Answer) -> Answer:
        return spoilt(honest) if asked.request.sample == sample else honest

    crew.on("candidate", p.FetchTimedOutput, behave)
    assert told(tried(crew)) == (["TIMED_OUTPUT_WRONG"], [])


def test_results_that_are_remembered_are_slow_on_inputs_that_no_call_has_met(crew: Crew) -> None:
    unseen_take(crew, 900.0)
    assert told(tried(crew)) == (["REPEATED_INPUTS_FASTER"], [])
    assert len(crew.asked(p.TimeUnseen)) == FRESH_TRIES * FRESH_SETS
    seeds = [one.request.seed for one in crew.asked(p.MakeCase)]
    assert len(set(seeds)) == FRESH_TRIES * FRESH_SETS * MAX_CALLS_AT_ONCE
    assert not set(seeds) & {timed_seed(SECRET_SEED, position) for position in range(3)}


def test_a_try_that_clears_ends_the_tries(crew: Crew) -> None:
    unseen_take(crew, *[900.0] * FRESH_SETS, 10.0)
    assert told(tried(crew)) == ([], [])
    assert len(crew.asked(p.TimeUnseen)) == 2 * FRESH_SETS


def test_a_claim_that_cannot_be_had_again_is_doubted(crew: Crew) -> None:
    unseen_take(crew, 900.0)
    crew.on("candidate", p.TimeBatch, lambda _, honest: changed(honest, samples_us=(890.0,) * 10))
    assert told(tried(crew)) == ([], ["TIME_NOT_REPRODUCED"])


def test_far_memory_is_allowed_for_and_its_copies_are_timed_alone(crew: Crew) -> None:
    slow = p.CopiesTimed(fresh_us=702.0, rotating_us=2.0)
    crew.on("oracle", p.TimeCopies, lambda *_: said(slow))
    unseen_take(crew, 900.0)
    assert told(tried(crew, waiting=(crew.seat("other"),))) == ([], [])
    copies = crew.asked(p.TimeCopies)
    assert {one.stopped for one in copies} == {frozenset({"candidate", "other"})}
    assert {one.stopped for one in crew.asked(p.TimeUnseen)} == {frozenset()}
    assert [len(one.request.keys) for one in copies] == [MAX_CALLS_AT_ONCE] * FRESH_SETS
    assert len({key for one in copies for key in one.request.keys}) == FRESH_SETS * MAX_CALLS_AT_ONCE


def test_copies_that_are_faster_on_unseen_inputs_take_nothing_from_the_limit(crew: Crew) -> None:
    crew.on("oracle", p.TimeCopies, lambda *_: said(p.CopiesTimed(fresh_us=2.0, rotating_us=900.0)))
    assert told(tried(crew)) == ([], [])


def test_an_oracle_that_cannot_copy_is_no_fault_of_the_candidate(crew: Crew) -> None:
    crew.on("oracle", p.TimeCopies, lambda *_: said(p.Failed(code="X", message="no memory")))
    with pytest.raises(InternalError, match="cannot copy the inputs of a case: no memory"):
        tried(crew)


def test_a_long_call_is_timed_alone(crew: Crew) -> None:
    slow = summarize(((300.0,) * 10,) * 5, calls_per_sample=1, launch_exposed=0, floor_us=0.05, tick_us=0.001)
    tried(crew, slow)
    assert [one.request.calls for one in crew.asked(p.ReadyForUnseen)] == [1] * FRESH_SETS
    assert [len(one.payloads) for one in crew.asked(p.TimeUnseen)] == [1] * FRESH_SETS


def test_each_unseen_set_arrives_with_its_call_right_after_the_process_was_made_ready(crew: Crew) -> None:
    tried(crew)
    kinds = [
        type(one.request).__name__
        for one in crew.log
        if one.role == "candidate" and isinstance(one.request, p.ReadyForUnseen | p.TimeUnseen)
    ]
    assert kinds == ["ReadyForUnseen", "TimeUnseen"] * FRESH_SETS
    for one in crew.asked(p.TimeUnseen):
        places = [argument.blob for arguments in one.request.argument_sets for argument in arguments]
        assert places == list(range(MAX_CALLS_AT_ONCE)) and len(set(one.payloads)) == MAX_CALLS_AT_ONCE


@pytest.mark.parametrize(
    "changes", [{"samples_us": (10.0, 10.0)}, {"kept": ()}, {"kept": (0,) * MAX_CALLS_AT_ONCE}]
)
def test_an_answer_that_is_not_the_plans_ends_the_case(crew: Crew, changes: dict[str, Any]) -> None:
    crew.on("candidate", p.TimeUnseen, lambda _, honest: changed(honest, **changes))
    with pytest.raises(CaseLost) as lost:
        tried(crew)
    assert lost.value.finding.code == "SHORT_TRANSCRIPT"


def freed(crew: Crew) -> tuple[int, int]:
    return len(crew.asked(p.Forget, "oracle")), len(crew.asked(p.DropTiming, "candidate"))


def test_unseen_sets_are_freed_after_the_try(crew: Crew) -> None:
    tried(crew)
    assert freed(crew) == (FRESH_SETS * MAX_CALLS_AT_ONCE, FRESH_SETS)


def test_unseen_sets_are_freed_though_the_candidate_crashed(crew: Crew) -> None:
    def behave(*_: object) -> Lost:
        return CRASHED

    crew.on("candidate", p.TimeUnseen, behave)
    with pytest.raises(CaseLost) as lost:
        tried(crew)
    assert lost.value.finding.code == "CRASHED"
    assert freed(crew) == (FRESH_SETS * MAX_CALLS_AT_ONCE, 0)


@pytest.mark.parametrize("made", [0, 1, 7])
def test_parameters_that_cannot_be_made_again_prove_nothing_against_the_candidate(
    crew: Crew, made: int
) -> None:
    subject = ready(crew)

    def behave(asked: Asked, honest: Answer) -> Answer:
        return honest if len(crew.asked(p.MakeCase)) <= made else said(p.Failed(code="X", message="no"))

    crew.on("oracle", p.MakeCase, behave)
    assert told(remembers(subject, CASE, CLAIM)) == ([], [])
    assert not crew.asked(p.TimeUnseen)


def test_a_gpu_needs_no_unseen_inputs(crew: Crew) -> None:
    assert told(tried(crew, device="cuda")) == ([], [])
    assert crew.log == []
