"""Timed calls whose outputs are judged: which are caught, what they are held against, what ends a case."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fake_seats import (
    CRASHED,
    PLAN,
    TIMED,
    Asked,
    Crew,
    batch_requests,
    changed,
    double_card,
    prepared,
    repeats,
    said,
    spoilt,
    timed_reply,
)
from mini_kv.benchmark.case_timing import judge_case, take_case
from mini_kv.benchmark.plan import measure_timer
from mini_kv.benchmark.samples import (
    CANDIDATE,
    MAX_CALLS_PER_SAMPLE,
    REPLY_SLACK_BYTES,
    ROTATING_SETS,
    check_outputs,
    take_repeats,
    transcript_fault,
)
from mini_kv.core import protocol as p
from mini_kv.system.workers import Answer, Lost

CASE = double_card().case(TIMED)


@pytest.fixture
def crew() -> Crew:
    return Crew()


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
