"""Looked at again later: results that a later call overwrites, inputs that only timed calls write to."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from mini_kv.benchmark.case_timing import TimedSubject, take_case
from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.card import Case, CaseKind, Contract
from mini_kv.core.records.correctness import CaseResult, Round
from mini_kv.core.records.results import Status
from mini_kv.core.rules.verdict import TIMING_EXIT_CODES
from mini_kv.correctness.cases import run_cases
from mini_kv.correctness.kept_outputs import look_again
from mini_kv.system.workers import Answer, Lost
from probe import candidate_seat, oracle_seat, probe_card, probe_case, probe_subject

HONEST, RETURNS_ONE_BUFFER, WRITES_TO_INPUT_LATE = 0, 7, 8


def run(*cases: Case, contract: Contract | None = None) -> list[CaseResult]:
    return list(run_cases(probe_subject(probe_card(*cases, contract=contract)), silent))


def timed(mode: int, contract: Contract | None = None) -> Any:
    case = probe_case("timed", mode, kind=CaseKind.BENCHMARK, shape=(16, 33))
    subject = TimedSubject(
        card=probe_card(probe_case("core", HONEST), case, contract=contract),
        device="cpu",
        oracle=oracle_seat(),  # type: ignore[arg-type]
        seat=candidate_seat(),  # type: ignore[arg-type]
        secret_seeds={"timed": "00ff00ff00ff00ff"},
        gpu=None,
        timeout_s=30.0,
        chooser=random.Random(1),
    )
    return take_case(subject, case)


def test_one_buffer_that_every_call_returns_is_found() -> None:
    (result,) = run(probe_case("buffer", RETURNS_ONE_BUFFER))
    assert (result.status, result.code) == (Status.FAIL, "OUTPUT_HELD")
    (result,) = run(probe_case("buffer", RETURNS_ONE_BUFFER), contract=Contract(functional=False))
    assert (result.status, result.code) == (Status.FAIL, "OUTPUT_CHANGED_LATER")
    assert [one.name for one in result.rounds if one.status is Status.FAIL] == ["fixed"]


def test_results_of_an_honest_operator_stay() -> None:
    found = run(probe_case("a", HONEST), probe_case("empty", HONEST, shape=(0, 3)))
    assert [one.status for one in found] == [Status.PASS] * 2


def test_an_input_that_only_timed_calls_write_to_is_found() -> None:
    found = timed(WRITES_TO_INPUT_LATE)
    assert "INPUT_MUTATED_WHILE_TIMED" in [finding.code for finding in found.wrong]
    assert TIMING_EXIT_CODES["INPUT_MUTATED_WHILE_TIMED"] == 4


def test_an_honest_operator_leaves_its_inputs_alone_while_timed() -> None:
    assert timed(HONEST).wrong == ()


def test_an_operator_that_may_write_to_its_inputs_is_not_asked() -> None:
    codes = [finding.code for finding in timed(WRITES_TO_INPUT_LATE, Contract(functional=False)).wrong]
    assert "INPUT_MUTATED_WHILE_TIMED" not in codes


class Says:
    def __init__(self, outcome: Answer | Lost) -> None:
        self.outcome = outcome

    def ask(self, *_: Any, **__: Any) -> Answer | Lost:
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Lost(code="CRASHED", message="gone", output=""), "CRASHED"),
        (Answer(reply=p.Done(), payloads=[]), "OUTPUTS_NOT_KEPT"),
        (Answer(reply=p.Recalled(), payloads=[]), "OUTPUTS_NOT_KEPT"),
        (Answer(reply=p.Recalled(), payloads=[bytearray(b"x")] * 3), "OUTPUT_CHANGED_LATER"),
    ],
    ids=["lost", "another-answer", "nothing", "other-bytes"],
)
def test_results_that_do_not_come_again_are_no_proof(outcome: Answer | Lost, code: str) -> None:
    case = probe_case("a", HONEST)
    (result,) = run(case)
    rounds = look_again(Says(outcome), case, result.rounds, 1.0)  # type: ignore[arg-type]
    assert rounds[-1].status is Status.FAIL
    assert [finding.code for finding in rounds[-1].findings] == [code]
    failed: Round = msgspec.structs.replace(result.rounds[0], status=Status.FAIL)
    assert look_again(Says(outcome), case, [failed, failed], 1.0) == [failed, failed]  # type: ignore[arg-type]
