"""An illegal case: what the candidate must refuse, and whether it still works after it has."""

from __future__ import annotations

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.card import Case
from mini_kv.core.records.correctness import CaseResult, Round
from mini_kv.core.records.results import Finding, Status
from mini_kv.correctness.calls import (
    Call,
    ask_candidate,
    case_result,
    forget,
    lost_finding,
    make_case,
    play,
    round_record,
    with_exception,
)
from mini_kv.correctness.grading import describe_argument, grade_illegal
from mini_kv.correctness.rounds import fixed_round
from mini_kv.correctness.subject import Subject
from mini_kv.system.workers import Lost


def run_illegal(subject: Subject, case: Case, probe: Case | None) -> CaseResult:
    """Make the call that must be refused; ``probe`` is a legal case that must still pass right after it."""
    plan = fixed_round(subject.card, case)
    made = make_case(subject, case, plan.seed, expect_values=False)
    if isinstance(made, Finding):
        return case_result(subject, case, Status.INVALID, made)
    described = tuple(map(describe_argument, made.reply.arguments))
    call = Call(case=case, plan=plan, made=made)
    outcome = ask_candidate(subject, call)
    if isinstance(outcome, Lost):
        record = round_record(plan, Status.FAIL, (lost_finding(outcome),))
    elif isinstance(outcome.reply, p.Ran | p.Raised):
        record = _grade_reply(subject, call, outcome.reply, probe)
    else:
        code = outcome.reply.code if isinstance(outcome.reply, p.Failed) else Code.PROTOCOL_VIOLATION
        text = outcome.reply.message if isinstance(outcome.reply, p.Failed) else "unexpected answer"
        record = round_record(plan, Status.FAIL, (Finding(code=code, message=text[:500]),))
    finding = record.findings[0] if record.findings else None
    result = case_result(subject, case, record.status, finding, rounds=(record,), inputs=described)
    refused = "refusal" if record.status is Status.PASS else None
    return msgspec.structs.replace(result, proves=refused)


def _grade_reply(subject: Subject, call: Call, reply: p.Ran | p.Raised, probe: Case | None) -> Round:
    findings = list(grade_illegal(call.case, reply))
    if isinstance(reply, p.Raised) and reply.device_lost:
        findings.append(
            Finding(code=Code.DEVICE_LOST, message="after the refused call the device no longer works")
        )
        subject.seat.retire()
    elif probe is not None:
        findings += _still_usable(subject, probe)
    record = round_record(call.plan, Status.FAIL if findings else Status.PASS, tuple(findings))
    return with_exception(record, reply) if isinstance(reply, p.Raised) else record


def _still_usable(subject: Subject, probe: Case) -> tuple[Finding, ...]:
    # The same worker must still do legal work right after it has refused an illegal call.
    worker = subject.seat.number
    plan = fixed_round(subject.card, probe, "after")
    made = make_case(subject, probe, plan.seed, expect_values=True)
    if isinstance(made, Finding):
        return ()
    record = play(subject, Call(case=probe, plan=plan, made=made))
    forget(subject, probe, plan.seed)
    if record.status is Status.PASS and subject.seat.number == worker:
        return ()
    reason = record.findings[0].message if record.findings else "the worker was replaced"
    return (
        Finding(
            code=Code.UNUSABLE_AFTER_ILLEGAL,
            message=f"after the refused call, the legal case '{probe.id}' no longer passes in the same "
            f"process: {reason}",
        ),
    )
