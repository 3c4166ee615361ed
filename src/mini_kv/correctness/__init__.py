"""Correctness and contract: one function from typed inputs to one frozen record."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.progress import Progress, silent
from mini_kv.core.records.card import SCHEMA_VERSION, CaseKind
from mini_kv.core.records.correctness import CallTrace, CaseResult, ContractCheck, Correctness
from mini_kv.core.records.results import Status
from mini_kv.correctness.cases import run_cases
from mini_kv.correctness.contract_plan import (
    HEAVY_CHECKS,
    Question,
    Sample,
    ask_all,
    collect_samples,
    judged_apart,
    plan_questions,
    run_contract,
)
from mini_kv.correctness.process_changes import check_state
from mini_kv.correctness.subject import ContractWorker, Subject
from mini_kv.correctness.tracing import run_trace
from mini_kv.correctness.unmakeable_cases import confirm_invalid
from mini_kv.system.seats import CandidateSeat

__all__ = ["ContractWorker", "Subject", "check", "judged_apart", "traced_last"]

_Told = tuple[CallTrace | None, tuple[ContractCheck, ...]]


def _nothing(_: Correctness) -> None:
    return None


def check(
    subject: Subject,
    contract: ContractWorker | None,
    progress: Progress,
    *,
    device_count: int,
    meanwhile: Callable[[Correctness], None] = _nothing,
    left: Callable[[Correctness], None] = _nothing,
) -> Correctness:
    """Run every case and, at the same time in a second candidate worker, the contract checks that take long.

    What is wrong with loading the library in that ``contract`` worker is a failed check of its own. A card
    that has nothing :func:`judged_apart` needs none: see :func:`traced_last`. ``meanwhile`` is called, with
    the record so far, once the cases have passed and only that second worker is still busy. ``left`` is
    called with what is known where the stage ends by an exception, Ctrl-C among them.

    Raises ``InternalError`` when the oracle is lost; a candidate's faults are in the record.
    """
    started = time.monotonic()
    samples = collect_samples(subject.card, subject.oracle)
    questions = plan_questions(subject.card, samples, subject.device, device_count)
    heavy = [question for question in questions if question.check in HEAVY_CHECKS]
    light = [question for question in questions if question.check not in HEAVY_CHECKS]
    seats = (subject.seat,) if contract is None else (subject.seat, contract.seat)
    record = functools.partial(_record, subject, seats, started=started)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="contract") as other:
        if contract is not None:
            ask = functools.partial(_ask_contract, subject, contract, progress)
            told_later = other.submit(ask, samples=samples, questions=heavy)
        results: list[CaseResult] = []
        known: list[ContractCheck] = []
        try:
            cases = run_cases(subject, progress, results)
            # Before the contract checks, which leave traces of their own (autograd's threads).
            changes, state = check_state(subject.seat, subject.card.contract)
            known.append(state)
            own_checks = ask_all(subject.manifest, light, subject.seat, silent)
            known += own_checks
            if overall(cases, own_checks) is Status.PASS:
                meanwhile(_incomplete(record(cases, (*own_checks, state))))
            told: _Told = (None, ())
            if contract is not None:
                told = _heard(told_later, contract.seat, cases, subject.timeout_s)
        except BaseException:
            # Ctrl-C or a lost oracle: leaving the block waits for the other thread, which may be in a
            # check that takes minutes.
            if contract is not None:
                contract.seat.abandon()
            left(_incomplete(record(tuple(results), tuple(known))))
            raise
    cases = confirm_invalid(subject, contract.seat if contract is not None else None, cases)
    trace, contract_checks = told
    made = record(cases, (*contract_checks, *own_checks, state))
    return msgspec.structs.replace(made, trace=trace, state_changes=changes)


def _incomplete(record: Correctness) -> Correctness:
    """Return a record of which more was to come: what failed has failed, and nothing has passed."""
    failed = record.status is Status.FAIL
    return msgspec.structs.replace(
        record, complete=False, status=Status.FAIL if failed else Status.UNVERIFIED
    )


def _record(
    subject: Subject,
    seats: Sequence[CandidateSeat],
    cases: tuple[CaseResult, ...],
    checks: tuple[ContractCheck, ...],
    *,
    started: float,
) -> Correctness:
    return Correctness(
        schema_version=SCHEMA_VERSION,
        status=overall(cases, checks),
        device=subject.device,
        planned_cases=len(subject.card.cases),
        passed_cases=sum(case.status is Status.PASS for case in cases),
        cases=cases,
        contract=checks,
        workers_started=sum(seat.number for seat in seats),
        workers_lost=sum(seat.losses for seat in seats),
        elapsed_s=round(time.monotonic() - started, 4),
    )


def _heard(
    contract: Future[_Told], seat: CandidateSeat, cases: Sequence[CaseResult], timeout_s: float
) -> _Told:
    """Wait for the second worker; where a call hung, no longer than one may take: it hangs there too."""
    hung = any(
        finding.code == Code.TIMEOUT for case in cases for one in case.rounds for finding in one.findings
    )
    if hung:
        wait([contract], timeout=timeout_s)
        if not contract.done():
            seat.abandon()
    return contract.result()


def traced_last(subject: Subject, record: Correctness) -> Correctness:
    """Trace the candidate's own worker when nothing else will be asked there: a traced worker is never timed.

    For cards that have nothing :func:`judged_apart`, so that nothing depends on the trace. Where a worker was
    lost there is none: the same calls would be met again. Raises ``InternalError`` when the oracle is lost.
    """
    if subject.seat.losses:
        return record
    samples = collect_samples(subject.card, subject.oracle)
    trace, _ = run_trace(subject.card, subject.manifest, samples, subject.seat, load=lambda: None, last=True)
    return msgspec.structs.replace(record, trace=trace)


def _ask_contract(
    subject: Subject,
    contract: ContractWorker,
    progress: Progress,
    *,
    samples: Sequence[Sample],
    questions: Sequence[Question],
) -> _Told:
    card, manifest, seat = subject.card, subject.manifest, contract.seat
    load_once = functools.cache(contract.load)
    seat.rouse()
    with contract.turn:
        # First of all: memory that a later check makes the candidate keep would not be seen as kept.
        trace, policies = run_trace(card, manifest, samples, seat, load=load_once, last=not questions)
        checks = run_contract(card, manifest, questions, seat, load=load_once, progress=progress)
    return trace, (*policies, *checks)


def overall(cases: Sequence[CaseResult], checks: Sequence[ContractCheck]) -> Status:
    """PASS only when every legal or illegal case and every check passed and there was evidence at all.

    An INVALID case gives no evidence but is the card's fault, so it does not fail the candidate.
    """
    kept: list[Status] = [case.status for case in cases if case.status is not Status.INVALID]
    kept += [check.status for check in checks if check.status is not Status.SKIPPED]
    if any(status is not Status.PASS for status in kept):
        return Status.FAIL
    if not any(case.kind is CaseKind.CORE and case.status is Status.PASS for case in cases):
        return Status.UNVERIFIED
    return Status.PASS
