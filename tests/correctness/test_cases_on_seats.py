"""Cases run through the real seats of oracle and candidate, whose workers live in this process."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from fake_seats import CRASHED, SECRET_SEED, Asked, Crew, double_card, double_manifest, said
from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.card import Case, CaseKind, TaskCard
from mini_kv.core.records.correctness import CaseResult
from mini_kv.core.records.results import Status
from mini_kv.correctness.cases import run_cases
from mini_kv.system.workers import Answer, Lost

CARD = double_card()


@pytest.fixture
def crew() -> Crew:
    return Crew()


def only(*names: str) -> TaskCard:
    return msgspec.structs.replace(CARD, cases=tuple(CARD.case(name) for name in names))


def run(crew: Crew, card: TaskCard = CARD) -> dict[str, CaseResult]:
    return {result.case_id: result for result in run_cases(crew.subject(card=card), silent)}


def codes(results: Iterable[CaseResult]) -> list[str | None]:
    return [result.code for result in results]


def test_an_honest_candidate_passes_every_case(crew: Crew) -> None:
    found = run(crew)
    assert {name: (one.status, one.proves) for name, one in found.items()} == {
        "core_4": (Status.PASS, "values"),
        "core_6": (Status.PASS, "values"),
        "illegal_odd": (Status.PASS, "refusal"),
        "timed": (Status.PASS, "values"),
    }


# ------------------------------------------------------------------------------- what a card claims


def test_a_dtype_that_the_manifest_does_not_claim_is_not_run(crew: Crew) -> None:
    half = Case(id="half", kind=CaseKind.CORE, params={"n": 4, "dtype": "float16"})
    card = msgspec.structs.replace(CARD, cases=(half,))
    (result,) = run_cases(crew.subject(card=card), silent)
    assert (result.status, result.code) == (Status.FAIL, "DTYPE_NOT_CLAIMED")
    assert str(result.message) == "the card demands float16; the candidate's manifest claims only float32"
    assert not crew.asked(p.RunCase)
    claimed = double_manifest(dtypes=("float32", "float16"))
    (result,) = run_cases(crew.subject(card=card, manifest=claimed), silent)
    assert (result.status, result.code) == (Status.PASS, None)


# ------------------------------------------------------------------------------- audits


def nulls_that_pass(crew: Crew, *by_seed: tuple[str, ...]) -> None:
    audits = iter(by_seed)

    def behave(_: Asked, __: Answer) -> Answer:
        return said(p.CaseAudited(element_count=4, passed=next(audits)))

    crew.on("oracle", p.AuditCase, behave)


@pytest.mark.parametrize("by_seed", [(("zeros",), ()), ((), ("zeros",)), (("zeros",), ("a constant",))])
def test_a_case_was_audited_with_one_seed(crew: Crew, by_seed: tuple[tuple[str, ...], ...]) -> None:
    """A null that chance lets through once made the case INVALID."""
    nulls_that_pass(crew, *by_seed)
    result = run(crew, only("core_4"))["core_4"]
    assert (result.status, result.proves) == (Status.PASS, "values")
    fixed = crew.asked(p.MakeCase)[0].request.seed
    audited = [one.request.key for one in crew.asked(p.AuditCase)]
    assert audited == [f"core_4/{fixed}", f"core_4/{SECRET_SEED}"]
    assert fixed != SECRET_SEED


def test_a_null_that_passes_with_every_seed_makes_a_case_invalid(crew: Crew) -> None:
    nulls_that_pass(crew, ("zeros", "the mean"), ("the mean",))
    result = run(crew, only("core_4"))["core_4"]
    assert (result.status, result.code, result.proves) == (Status.INVALID, "NULL_PASSES", "nothing")


# ------------------------------------------------------------------------------- refusals


def at_refusal(crew: Crew, worker_lives: bool) -> None:
    def behave(asked: Asked, honest: Answer) -> Answer:
        if asked.request.key == "illegal_odd" and not worker_lives:
            crew.workers[asked.worker].kill()
        return honest

    crew.on("candidate", p.RunCase, behave)


@pytest.mark.parametrize("worker_lives", [True, False])
def test_a_worker_that_died_of_a_refusal_and_was_replaced_counted_as_still_usable(
    crew: Crew, worker_lives: bool
) -> None:
    at_refusal(crew, worker_lives)
    result = run(crew, only("core_4", "illegal_odd"))["illegal_odd"]
    if worker_lives:
        assert (result.status, result.code, result.worker) == (Status.PASS, None, 1)
    else:
        assert (result.status, result.code, result.worker) == (Status.FAIL, "UNUSABLE_AFTER_ILLEGAL", 2)
        assert str(result.message).endswith("the worker was replaced")


def test_a_worker_that_crashes_in_the_call_after_a_refusal_is_not_usable(crew: Crew) -> None:
    calls: list[str] = []

    def behave(asked: Asked, honest: Answer) -> Answer | Lost:
        calls.append(asked.request.key)
        return CRASHED if calls[-2:] == ["illegal_odd", "core_4"] else honest

    crew.on("candidate", p.RunCase, behave)
    found = run(crew, only("core_4", "illegal_odd"))
    assert codes(found.values()) == [None, "UNUSABLE_AFTER_ILLEGAL"]
    assert CRASHED.message in str(found["illegal_odd"].message)


def test_a_refusal_is_not_blamed_for_a_case_that_fails_by_itself(crew: Crew) -> None:
    def behave(asked: Asked, honest: Answer) -> Answer:
        if asked.request.key != "core_4":
            return honest
        return said(p.Raised(types=("RuntimeError", "Exception"), message="no", device_lost=False))

    crew.on("candidate", p.RunCase, behave)
    found = run(crew, only("core_4", "core_6", "illegal_odd"))
    assert codes(found.values()) == ["RAISED", None, None]


# ------------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize("types", [("GradientFault", "Exception"), ("RuntimeError", "Exception")])
def test_an_exception_of_an_ordinary_call_is_no_wrong_gradient(crew: Crew, types: tuple[str, ...]) -> None:
    raised = p.Raised(types=types, message="so it is", device_lost=False)
    crew.on("candidate", p.RunCase, lambda *_: said(raised))
    result = run(crew, only("core_4"))["core_4"]
    assert (result.status, result.code) == (Status.FAIL, "RAISED")
    assert result.message == f"the call raised {types[0]}: so it is"
