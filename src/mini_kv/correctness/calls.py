"""One call of a case: its inputs made, the candidate asked, the reply graded into a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.canonical import derived_seed, sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.records.card import Case
from mini_kv.core.records.correctness import CaseResult, Numerics, Round
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.byte_locations import Places
from mini_kv.core.rules.operator_schema import parse_schema
from mini_kv.core.rules.output_form import grade_form
from mini_kv.core.tensors import OutputSpec
from mini_kv.core.time_limits import CASE_TIMEOUT_S, FORGET_TIMEOUT_S
from mini_kv.correctness.grading import (
    grade_altered,
    grade_gradients,
    grade_guards,
    grade_inputs,
    grade_numerics,
    grade_raised,
    output_bytes,
)
from mini_kv.correctness.rounds import RoundPlan
from mini_kv.correctness.subject import Subject
from mini_kv.system.oracle_client import MadeCase, not_makeable
from mini_kv.system.workers import Answer, Lost

_REPLY_SLACK_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a case: the plan of its round, its inputs, and the rounds of the case before it."""

    case: Case
    plan: RoundPlan
    made: MadeCase
    before: Sequence[Round] = ()

    @property
    def expected(self) -> tuple[p.ExpectedOutput, ...]:
        """The form of what the call is to give."""
        return self.plan.expected(self.made.reply)


def make_case(
    subject: Subject, case: Case, seed: str, *, expect_values: bool, expect_gradients: bool = False
) -> MadeCase | Finding:
    """Have the oracle make a case, or return what is wrong with the card's factory or reference."""
    made = subject.oracle.make_case(
        f"{case.id}/{seed}",
        case,
        seed,
        timeout_s=max(subject.timeout_s, CASE_TIMEOUT_S),
        expect_values=expect_values,
        expect_gradients=expect_gradients,
    )
    if isinstance(made, p.Failed):
        return not_makeable(made, traced=True)
    fault = _unusable(made.reply) if expect_values else None
    return fault or made


def _unusable(made: p.CaseMade) -> Finding | None:
    strange = [want.dtype for want in made.expected if want.dtype not in ITEM_SIZE_BYTES]
    if made.expected and not strange:
        return None
    what = f"a tensor of {strange[0]}" if strange else "no tensor"
    return Finding(
        code=Code.CASE_NOT_MAKEABLE,
        message=f"the card's reference returns {what}; allowed: {', '.join(ITEM_SIZE_BYTES)}",
    )


def play(subject: Subject, call: Call) -> Round:
    """Make a legal call and grade what comes of it; a worker whose device is lost is retired."""
    plan = call.plan
    if not call.made.reply.reference_within_tolerance:
        finding = Finding(
            code=Code.REFERENCE_OUTSIDE_TOLERANCE,
            message="the reference at the working dtype misses the card's own tolerance against FP64: "
            "the case proves nothing",
        )
        return round_record(plan, Status.INVALID, (finding,))
    outcome = ask_candidate(subject, call)
    if isinstance(outcome, Lost):
        return round_record(plan, Status.FAIL, (lost_finding(outcome),))
    match outcome.reply:
        case p.Ran() as ran:
            return _grade_ran(subject, call, ran, outcome.payloads)
        case p.Raised() as raised:
            if raised.device_lost:
                subject.seat.retire()
            return with_exception(round_record(plan, Status.FAIL, (grade_raised(plan.mode, raised),)), raised)
        case p.Failed() as failed:
            return round_record(
                plan, Status.FAIL, (Finding(code=Code.WORKER_FAILED, message=failed.message[:500]),)
            )
        case other:
            finding = Finding(
                code=Code.PROTOCOL_VIOLATION, message=f"unexpected answer {type(other).__name__}"
            )
            return round_record(plan, Status.FAIL, (finding,))


def with_exception(record: Round, raised: p.Raised) -> Round:
    """Return the round with the exception's name noted."""
    return msgspec.structs.replace(record, raised=f"{raised.types[0]}: {raised.message[:1000]}")


def ask_candidate(subject: Subject, call: Call) -> Answer | Lost:
    """Have the candidate's worker make the call."""
    plan, made = call.plan, call.made
    sizes = tuple(output_bytes(expected) for expected in call.expected)
    limit = 4 * sum(sizes) + sum(map(len, made.payloads)) + _REPLY_SLACK_BYTES
    return subject.seat.ask(
        p.RunCase(
            key=call.case.id,
            arguments=made.reply.arguments,
            poison=plan.poison,
            poison_bytes=sizes,
            keep=plan.name,
            mode=plan.mode,
            refill=plan.refill,
            version=plan.version,
            weights_seed=derived_seed(plan.seed, p.WEIGHTS_OF_GRADIENTS),
        ),
        made.payloads,
        timeout_s=subject.timeout_s,
        max_reply_bytes=limit,
    )


def lost_finding(lost: Lost) -> Finding:
    """Return the finding about a call whose worker was lost, with its last words where it crashed."""
    said = _last_words(lost.output) if lost.code == Code.CRASHED else ""
    return Finding(
        code=lost.code,
        message=lost.message + (f"; its last words: {said[:200]!r}" if said else ""),
        evidence=(lost.output[-4000:],) if lost.output else (),
    )


def _last_words(output: str) -> str:
    """Return what a process printed last before Python's own report of its death: the C library's reason."""
    lines = output.partition("Fatal Python error")[0].splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _grade_ran(subject: Subject, call: Call, ran: p.Ran, payloads: Sequence[bytearray]) -> Round:
    plan, made = call.plan, call.made
    findings = list(grade_form(ran.outputs, call.expected, subject.card.contract))
    blobs = _select(payloads, tuple(spec.blob for spec in ran.outputs))
    returned = _select(payloads, ran.input_blobs)
    zones = _select(payloads, ran.guard_blobs)
    if blobs is None and findings:
        return round_record(plan, Status.FAIL, tuple(findings))  # on another device there are no bytes
    if blobs is None or returned is None or zones is None:
        finding = Finding(code=Code.PROTOCOL_VIOLATION, message="the reply names payloads it does not carry")
        return round_record(plan, Status.FAIL, (finding,))
    names = parse_schema(subject.manifest.schema).argument_names
    places = Places(arguments=made.reply.arguments, names=names)
    if subject.card.contract.functional:
        findings += grade_inputs(made.payloads, returned, places)
        findings += grade_altered(ran.altered, places)
    findings += grade_guards(made.payloads, zones, plan.poison, ran.stray_writes, places)
    digests = tuple(map(sha256_bytes, blobs))
    numerics: Numerics | None = None
    if not any(finding.code in _UNCOMPARABLE for finding in findings):
        compared = _compare(subject, plan.key(call.case), ran.outputs, blobs)
        if isinstance(compared, Finding):
            findings.append(compared)
        else:
            numerics = compared
            dtypes = tuple(want.dtype for want in call.expected)
            if plan.mode == "gradients":
                findings += grade_gradients(numerics, dtypes, subject.card.tolerances, places)
            else:
                findings += grade_numerics(numerics, dtypes, subject.card.tolerances)
    if plan.name == "repeat" and call.before and call.before[-1].output_sha256 != digests:
        findings.append(
            Finding(
                code=Code.NOT_DETERMINISTIC,
                message="a second call on equal inputs gave other bytes: an element is unwritten, or the "
                "result depends on chance",
            )
        )
    return Round(
        name=plan.name,
        seed=plan.seed,
        status=Status.FAIL if findings else Status.PASS,
        findings=tuple(findings),
        numerics=numerics,
        outputs=ran.outputs,
        output_sha256=digests,
    )


_UNCOMPARABLE = frozenset(code for code in Code if code.facts.uncomparable)


def _select(payloads: Sequence[bytearray], blobs: Sequence[int | None]) -> list[bytearray] | None:
    if any(blob is None or not 0 <= blob < len(payloads) for blob in blobs):
        return None
    return [payloads[blob] for blob in blobs if blob is not None]


def _compare(
    subject: Subject, key: str, outputs: tuple[OutputSpec, ...], blobs: Sequence[bytearray]
) -> Numerics | Finding:
    renumbered = tuple(msgspec.structs.replace(spec, blob=position) for position, spec in enumerate(outputs))
    compared = subject.oracle.compare(
        key, renumbered, blobs, timeout_s=max(subject.timeout_s, CASE_TIMEOUT_S)
    )
    if isinstance(compared, p.Failed):
        return Finding(code=Code.NOT_COMPARABLE, message=compared.message[:500])
    return compared


def forget(subject: Subject, case: Case, seed: str) -> None:
    """Free what the oracle keeps of a case that :func:`make_case` made from a seed."""
    subject.oracle.forget(f"{case.id}/{seed}", timeout_s=FORGET_TIMEOUT_S)


def round_record(plan: RoundPlan, status: Status, findings: tuple[Finding, ...]) -> Round:
    """Return the round of a call that gave nothing to be compared."""
    return Round(
        name=plan.name,
        seed=plan.seed,
        status=status,
        findings=findings,
        numerics=None,
        outputs=(),
        output_sha256=(),
    )


def case_result(
    subject: Subject,
    case: Case,
    status: Status,
    finding: Finding | None,
    *,
    rounds: Sequence[Round] = (),
    inputs: tuple[str, ...] = (),
) -> CaseResult:
    """Return a case's record; ``finding`` says why it has not passed, ``inputs`` describes its arguments."""
    return CaseResult(
        case_id=case.id,
        kind=case.kind,
        status=status,
        code=finding.code if finding else None,
        message=finding.message if finding else None,
        rounds=tuple(rounds),
        inputs=inputs,
        worker=subject.seat.number,
        elapsed_s=0.0,
    )
