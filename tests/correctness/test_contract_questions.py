"""Contract checks asked of a seat, and what is answered without asking."""

from __future__ import annotations

import pytest

from fake_seats import CRASHED, Crew, double_card, double_manifest
from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.card import Contract
from mini_kv.core.records.results import Finding, Status
from mini_kv.correctness.contract_plan import Question, ask_all, collect_samples, plan_questions, run_contract

GRADCHECK = double_card(contract=Contract(opcheck=False, gradcheck=True))


@pytest.fixture
def crew() -> Crew:
    return Crew()


def questions(crew: Crew) -> tuple[Question, ...]:
    return plan_questions(GRADCHECK, collect_samples(GRADCHECK, crew.oracle()), "cpu", 1)


def test_gradcheck_was_asked_of_a_candidate_that_does_not_claim_float64(crew: Crew) -> None:
    """It calls the operator in float64, so whoever does not claim it raises, and reads as a wrong formula."""
    (check,) = ask_all(double_manifest(autograd=True), questions(crew), crew.seat(), silent)
    assert (check.name, check.status, check.code) == ("gradcheck", Status.FAIL, "FLOAT64_NOT_CLAIMED")
    assert check.case_id == "core_6"
    assert not crew.asked(p.CheckContract)


def test_gradcheck_is_asked_of_a_candidate_that_claims_float64(crew: Crew) -> None:
    manifest = double_manifest(autograd=True, dtypes=("float32", "float64"))
    (check,) = ask_all(manifest, questions(crew), crew.seat(), silent)
    assert (check.name, check.status, check.code) == ("gradcheck", Status.PASS, None)
    (asked,) = crew.asked(p.CheckContract)
    assert (asked.request.check, asked.request.autograd) == ("gradcheck", True)
    assert [len(payload) for payload in asked.payloads] == [4 * 6]


def test_a_card_that_demands_gradients_is_not_met_by_a_candidate_without(crew: Crew) -> None:
    manifest = double_manifest(dtypes=("float32", "float64"))
    found = run_contract(
        GRADCHECK, manifest, questions(crew), crew.seat(), load=lambda: None, progress=silent
    )
    assert [(one.name, one.status, one.code) for one in found] == [
        ("gradcheck", Status.PASS, None),
        ("autograd_claimed", Status.FAIL, "AUTOGRAD_MISSING"),
    ]


def test_a_check_whose_worker_is_lost_has_failed_and_the_next_meets_another(crew: Crew) -> None:
    manifest = double_manifest(dtypes=("float32", "float64"), autograd=True)
    (question,) = questions(crew)
    lost = iter([CRASHED])
    crew.on("candidate", p.CheckContract, lambda _, honest: next(lost, honest))
    seat = crew.seat()
    found = ask_all(manifest, (question, question), seat, silent)
    assert [(one.status, one.code) for one in found] == [(Status.FAIL, "CRASHED"), (Status.PASS, None)]
    assert (seat.number, seat.losses) == (2, 1)


def test_a_check_that_nobody_waited_for_is_not_the_candidates_failure(crew: Crew) -> None:
    manifest = double_manifest(dtypes=("float32", "float64"), autograd=True)
    seat = crew.seat()
    seat.abandon()
    (check,) = ask_all(manifest, questions(crew), seat, silent)
    assert (check.status, check.code) == (Status.UNVERIFIED, "ABANDONED")


def test_a_library_that_does_not_load_a_second_time_is_one_failed_check(crew: Crew) -> None:
    fault = Finding(code="LOAD_CRASHED", message="it died")
    found = run_contract(
        GRADCHECK, double_manifest(), questions(crew), crew.seat(), load=lambda: fault, progress=silent
    )
    assert [(one.name, one.status, one.code) for one in found] == [("load", Status.FAIL, "LOAD_CRASHED")]


def test_a_library_is_not_loaded_a_second_time_to_ask_nothing(crew: Crew) -> None:
    def load() -> Finding | None:
        raise AssertionError("nothing is asked of it")

    assert run_contract(double_card(), double_manifest(), (), crew.seat(), load=load, progress=silent) == ()


def test_two_sizes_are_enough_for_a_dynamic_shape_and_one_is_not(crew: Crew) -> None:
    samples = collect_samples(GRADCHECK, crew.oracle())
    assert len(samples) >= 2
    two = Question(check="dynamic_shapes", samples=tuple(samples[:2]))
    one = Question(check="dynamic_shapes", samples=tuple(samples[:1]))
    seat = crew.seat()
    found = ask_all(double_manifest(), (one, two), seat, silent)
    assert [(check.status, check.code) for check in found] == [
        (Status.SKIPPED, "TOO_FEW_SIZES"),
        (Status.PASS, None),
    ]
    assert len(crew.asked(p.CheckContract)) == 1
