"""What the oracle says in typed words: the card's own faults are returned, the tool's are raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mini_kv.core import protocol as p
from mini_kv.core.errors import InternalError
from mini_kv.core.records.card import Case, CaseKind
from mini_kv.core.records.correctness import Numerics
from mini_kv.system.oracle_client import MadeCase, OracleClient, not_makeable
from mini_kv.system.workers import Answer

CASE = Case(id="case", kind=CaseKind.CORE, params={"n": 3})
MADE = p.CaseMade(arguments=(), expected=(), bytes_moved=None, flops=None, reference_within_tolerance=True)
FAILED = p.Failed(code="ValueError", message="cannot " + "x" * 600, traceback="line 7")
NUMERICS = Numerics(
    element_count=4,
    mismatch_count=1,
    nonfinite_mismatch_count=0,
    max_abs_error=1.0,
    max_rel_error=None,
    max_error_eps=None,
    reference_max_abs_error=0.0,
    reference_max_error_eps=0.0,
    first_mismatches=(),
)
BATCH = p.TimeBatch(case_id="case", warmup=1, iterations=2, calls_per_sample=0, cache="hot")


class Says(OracleClient):
    """An oracle with one reply to everything; ``asked`` holds requests with their time limits."""

    def __init__(self, reply: p.Reply) -> None:
        self.reply = reply
        self.asked: list[tuple[p.Request, float]] = []

    def ask(self, message: p.Request, payloads: Any = (), *, timeout_s: float, **_: Any) -> Answer:
        self.asked.append((message, timeout_s))
        return Answer(reply=self.reply, payloads=[bytearray(b"abc")])


def test_a_case_comes_with_the_bytes_of_its_inputs() -> None:
    oracle = Says(MADE)
    made = oracle.make_case("key", CASE, "0" * 16, timeout_s=7.0, expect_gradients=True)
    assert made == MadeCase(reply=MADE, payloads=[bytearray(b"abc")])
    request = p.MakeCase(key="key", params={"n": 3}, seed="0" * 16, expect_values=True, expect_gradients=True)
    assert oracle.asked == [(request, 7.0)]


def test_what_the_cards_own_code_raised_is_returned() -> None:
    assert Says(FAILED).make_case("key", CASE, "0" * 16, timeout_s=1.0) == FAILED
    assert Says(FAILED).compare("key", (), (), timeout_s=1.0) == FAILED


def test_a_comparison_brings_its_numbers() -> None:
    assert Says(p.Compared(numerics=NUMERICS)).compare("key", (), (), timeout_s=1.0) == NUMERICS


def test_the_sentence_about_a_case_that_cannot_be_made() -> None:
    plain, traced, short = (
        not_makeable(FAILED),
        not_makeable(FAILED, traced=True),
        not_makeable(FAILED, named=False),
    )
    assert {one.code for one in (plain, traced, short)} == {"CASE_NOT_MAKEABLE"}
    raised = "the card's input factory or reference raised"
    assert plain.message == traced.message == f"{raised} ValueError: {FAILED.message}"
    assert short.message == f"{raised}: {FAILED.message[:500]}"
    assert (plain.evidence, traced.evidence, short.evidence) == ((), ("line 7",), ())


def test_every_key_is_forgotten_in_its_turn() -> None:
    oracle = Says(p.Done())
    oracle.forget("a", "b", timeout_s=3.0)
    oracle.drop_timing("case", timeout_s=4.0)
    assert oracle.asked == [
        (p.Forget(key="a"), 3.0),
        (p.Forget(key="b"), 3.0),
        (p.DropTiming(case_id="case"), 4.0),
    ]


def test_who_is_lenient_hears_of_another_answer_as_of_a_failure() -> None:
    failed = p.Failed(code="PROTOCOL", message="an unexpected answer")
    assert Says(p.Done()).make_case("key", CASE, "0" * 16, timeout_s=1.0, lenient=True) == failed
    assert Says(p.Done()).compare("key", (), (), timeout_s=1.0, lenient=True) == failed


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda oracle: oracle.make_case("key", CASE, "0" * 16, timeout_s=1.0), "PROTOCOL"),
        (lambda oracle: oracle.compare("key", (), (), timeout_s=1.0), "PROTOCOL"),
        (lambda oracle: oracle.audit("key"), "NOT_AUDITED"),
        (lambda oracle: oracle.time_reference(BATCH, timeout_s=1.0), "REFERENCE_NOT_TIMED"),
        (lambda oracle: oracle.measure_timer("hot", timeout_s=1.0), "TIMER_FAILED"),
        (lambda oracle: oracle.time_copies("case", ("key",), timeout_s=1.0), "COPIES_NOT_TIMED"),
    ],
    ids=["make", "compare", "audit", "time", "timer", "copies"],
)
def test_an_answer_of_another_kind_is_a_fault_of_the_tool(
    ask: Callable[[OracleClient], object], code: str
) -> None:
    with pytest.raises(InternalError, match="Done") as caught:
        ask(Says(p.Done()))
    assert caught.value.code == code
