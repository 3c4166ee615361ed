"""Runs the card's cases through oracle and candidate and grades the plan, not the replies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.canonical import derived_seed, sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.errors import InternalError
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.card import CandidateManifest, Case, CaseKind, DeviceKind, TaskCard
from mini_kv.core.records.correctness import CaseResult, Numerics, Round
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.byte_locations import Places
from mini_kv.core.rules.null_candidates import judge_audits
from mini_kv.core.rules.operator_schema import parse_schema
from mini_kv.core.rules.output_form import grade_form
from mini_kv.core.tensors import OutputSpec
from mini_kv.core.time_limits import CASE_TIMEOUT_S, FORGET_TIMEOUT_S
from mini_kv.correctness.grading import (
    describe_argument,
    grade_altered,
    grade_guards,
    grade_illegal,
    grade_inputs,
    grade_numerics,
    grade_raised,
    in_gradients,
    output_bytes,
)
from mini_kv.correctness.kept_outputs import look_again
from mini_kv.correctness.rounds import RoundPlan, fixed_round, plan_rounds, seed_text, wants_gradients
from mini_kv.system.seats import CandidateSeat, OracleSeat
from mini_kv.system.workers import Answer, Lost

_REPLY_SLACK_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Everything a case needs to be run."""

    card: TaskCard
    manifest: CandidateManifest
    device: DeviceKind
    oracle: OracleSeat
    seat: CandidateSeat
    secret_seeds: dict[str, str]
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class _Made:
    reply: p.CaseMade
    payloads: Sequence[bytearray]


def run_cases(
    subject: Subject, progress: Progress, so_far: list[CaseResult] | None = None
) -> tuple[CaseResult, ...]:
    """Run every case of the card, benchmark shapes included; one result for each, in card order.

    ``so_far`` gets each as soon as it is known: what there is when the run is interrupted.
    """
    results = so_far if so_far is not None else []
    total = len(subject.card.cases)
    for case in subject.card.cases:
        progress(Event(stage="correctness", done=len(results), total=total, detail=case.id))
        started = time.monotonic()
        if case.kind is CaseKind.ILLEGAL:
            result = _illegal(subject, case, recovery_case(subject.card, results))
        else:
            result = _positive(subject, case)
        elapsed_s = round(time.monotonic() - started, 4)
        results.append(_replace_elapsed(result, elapsed_s))
    progress(Event(stage="correctness", done=total, total=total, detail="all cases answered"))
    return tuple(results)


def _replace_elapsed(result: CaseResult, elapsed_s: float) -> CaseResult:
    return msgspec.structs.replace(result, elapsed_s=elapsed_s)


def recovery_case(card: TaskCard, results: Sequence[CaseResult]) -> Case | None:
    """Return the core case that must still pass after a refusal: one that passed, or was not run yet.

    A case that failed by itself would be blamed on the refusal.
    """
    core = [case for case in card.cases if case.kind is CaseKind.CORE]
    known = {result.case_id: result.status for result in results}
    passed = [case for case in core if known.get(case.id) is Status.PASS]
    unknown = [case for case in core if case.id not in known]
    return next(iter(passed or unknown), None)


def make_case(
    subject: Subject, case: Case, seed: str, *, expect_values: bool, expect_gradients: bool = False
) -> _Made | Finding:
    """Have the oracle make a case, or return what is wrong with the card's factory or reference."""
    answer = subject.oracle.ask(
        p.MakeCase(
            key=f"{case.id}/{seed}",
            params=case.params,
            seed=seed,
            expect_values=expect_values,
            expect_gradients=expect_gradients,
        ),
        timeout_s=max(subject.timeout_s, CASE_TIMEOUT_S),
    )
    match answer.reply:
        case p.CaseMade() as made:
            fault = _unusable(made) if expect_values else None
            return fault or _Made(reply=made, payloads=answer.payloads)
        case p.Failed() as failed:
            return Finding(
                code=Code.CASE_NOT_MAKEABLE,
                message=f"the card's input factory or reference raised {failed.code}: {failed.message}",
                evidence=(failed.traceback,),
            )
        case other:
            raise InternalError(Code.PROTOCOL, f"the oracle answered MakeCase with {type(other).__name__}")


def _unusable(made: p.CaseMade) -> Finding | None:
    strange = [want.dtype for want in made.expected if want.dtype not in ITEM_SIZE_BYTES]
    if made.expected and not strange:
        return None
    what = f"a tensor of {strange[0]}" if strange else "no tensor"
    return Finding(
        code=Code.CASE_NOT_MAKEABLE,
        message=f"the card's reference returns {what}; allowed: {', '.join(ITEM_SIZE_BYTES)}",
    )


def _positive(subject: Subject, case: Case) -> CaseResult:
    dtype = case.params.get("dtype")
    if isinstance(dtype, str) and dtype not in subject.manifest.dtypes:
        finding = Finding(
            code=Code.DTYPE_NOT_CLAIMED,
            message=f"the card demands {dtype}; the candidate's manifest claims only "
            f"{', '.join(subject.manifest.dtypes)}",
        )
        return _result(subject, case, Status.FAIL, finding, (), ())
    rounds: list[Round] = []
    made_by_seed: dict[str, _Made] = {}
    secret_seed = subject.secret_seeds[case.id]
    gradients = wants_gradients(subject.card, subject.manifest, case)
    for plan in plan_rounds(subject.card, subject.manifest, case, secret_seed):
        known = made_by_seed.get(plan.seed)
        made = known or make_case(
            subject,
            case,
            plan.seed,
            expect_values=True,
            expect_gradients=gradients and plan.seed == secret_seed,
        )
        if isinstance(made, Finding):
            return _result(subject, case, Status.INVALID, made, tuple(rounds), ())
        made_by_seed[plan.seed] = made
        if not plan.expected(made.reply):
            continue  # a reference without gradients, or none that are within tolerance themselves
        rounds.append(_round(subject, case, plan, made, rounds))
        if rounds[-1].status is not Status.PASS:
            break
    rounds = look_again(subject.seat, case, rounds, subject.timeout_s)
    last = rounds[-1]
    audits = (
        [subject.oracle.audit(f"{case.id}/{seed}") for seed in made_by_seed]
        if last.status is Status.PASS
        else []
    )
    for seed in made_by_seed:
        _forget(subject, case, seed)
    described = tuple(map(describe_argument, next(iter(made_by_seed.values())).reply.arguments))
    if audits:
        proves, degenerate = judge_audits(audits)
        status = Status.PASS if degenerate is None else Status.INVALID
        passed = _result(subject, case, status, degenerate, tuple(rounds), described)
        return msgspec.structs.replace(passed, proves=proves)
    reason = last.findings[0] if last.findings else None
    return _result(subject, case, last.status, reason, tuple(rounds), described)


def _forget(subject: Subject, case: Case, seed: str) -> None:
    subject.oracle.ask(p.Forget(key=f"{case.id}/{seed}"), timeout_s=FORGET_TIMEOUT_S)


def _round(subject: Subject, case: Case, plan: RoundPlan, made: _Made, before: Sequence[Round]) -> Round:
    if not made.reply.reference_within_tolerance:
        finding = Finding(
            code=Code.REFERENCE_OUTSIDE_TOLERANCE,
            message="the reference at the working dtype misses the card's own tolerance against FP64: "
            "the case proves nothing",
        )
        return _round_record(plan, Status.INVALID, (finding,))
    outcome = _call(subject, case, plan, made)
    if isinstance(outcome, Lost):
        return _round_record(plan, Status.FAIL, (_lost(outcome),))
    match outcome.reply:
        case p.Ran() as ran:
            return _grade_ran(subject, case, plan, made, ran, outcome.payloads, before)
        case p.Raised() as raised:
            if raised.device_lost:
                subject.seat.retire()
            return _with_exception(
                _round_record(plan, Status.FAIL, (grade_raised(plan.mode, raised),)), raised
            )
        case p.Failed() as failed:
            return _round_record(
                plan, Status.FAIL, (Finding(code=Code.WORKER_FAILED, message=failed.message[:500]),)
            )
        case other:
            finding = Finding(
                code=Code.PROTOCOL_VIOLATION, message=f"unexpected answer {type(other).__name__}"
            )
            return _round_record(plan, Status.FAIL, (finding,))


def _with_exception(record: Round, raised: p.Raised) -> Round:
    """Return the round with the exception's name noted."""
    return msgspec.structs.replace(record, raised=f"{raised.types[0]}: {raised.message[:1000]}")


def _call(subject: Subject, case: Case, plan: RoundPlan, made: _Made) -> Answer | Lost:
    sizes = tuple(output_bytes(expected) for expected in plan.expected(made.reply))
    limit = 4 * sum(sizes) + sum(map(len, made.payloads)) + _REPLY_SLACK_BYTES
    return subject.seat.ask(
        p.RunCase(
            key=case.id,
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


def _lost(lost: Lost) -> Finding:
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


def _grade_ran(
    subject: Subject,
    case: Case,
    plan: RoundPlan,
    made: _Made,
    ran: p.Ran,
    payloads: Sequence[bytearray],
    before: Sequence[Round],
) -> Round:
    expected = plan.expected(made.reply)
    findings = list(grade_form(ran.outputs, expected, subject.card.contract))
    blobs = _select(payloads, tuple(spec.blob for spec in ran.outputs))
    returned = _select(payloads, ran.input_blobs)
    zones = _select(payloads, ran.guard_blobs)
    if blobs is None and findings:
        return _round_record(plan, Status.FAIL, tuple(findings))  # on another device there are no bytes
    if blobs is None or returned is None or zones is None:
        finding = Finding(code=Code.PROTOCOL_VIOLATION, message="the reply names payloads it does not carry")
        return _round_record(plan, Status.FAIL, (finding,))
    places = Places(
        arguments=made.reply.arguments, names=parse_schema(subject.manifest.schema).argument_names
    )
    if subject.card.contract.functional:
        findings += grade_inputs(made.payloads, returned, places)
        findings += grade_altered(ran.altered, places)
    findings += grade_guards(made.payloads, zones, plan.poison, ran.stray_writes, places)
    digests = tuple(map(sha256_bytes, blobs))
    numerics: Numerics | None = None
    if not any(finding.code in _UNCOMPARABLE for finding in findings):
        compared = _compare(subject, plan.key(case), ran.outputs, blobs)
        if isinstance(compared, Finding):
            findings.append(compared)
        else:
            numerics = compared
            wrong = grade_numerics(numerics, expected[0].dtype, subject.card.tolerances)
            if plan.mode == "gradients":
                wrong = tuple(in_gradients(one, numerics, places) for one in wrong)
            findings += wrong
    if plan.name == "repeat" and before and before[-1].output_sha256 != digests:
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
    answer = subject.oracle.ask(
        p.Compare(key=key, outputs=renumbered), blobs, timeout_s=max(subject.timeout_s, CASE_TIMEOUT_S)
    )
    match answer.reply:
        case p.Compared() as compared:
            return compared.numerics
        case p.Failed() as failed:
            return Finding(code=Code.NOT_COMPARABLE, message=failed.message[:500])
        case other:
            raise InternalError(Code.PROTOCOL, f"the oracle answered Compare with {type(other).__name__}")


def _illegal(subject: Subject, case: Case, probe: Case | None) -> CaseResult:
    plan = fixed_round(subject.card, case)
    made = make_case(subject, case, plan.seed, expect_values=False)
    if isinstance(made, Finding):
        return _result(subject, case, Status.INVALID, made, (), ())
    described = tuple(map(describe_argument, made.reply.arguments))
    outcome = _call(subject, case, plan, made)
    if isinstance(outcome, Lost):
        record = _round_record(plan, Status.FAIL, (_lost(outcome),))
    elif isinstance(outcome.reply, p.Ran | p.Raised):
        record = _grade_illegal_reply(subject, case, plan, outcome.reply, probe)
    else:
        code = outcome.reply.code if isinstance(outcome.reply, p.Failed) else Code.PROTOCOL_VIOLATION
        text = outcome.reply.message if isinstance(outcome.reply, p.Failed) else "unexpected answer"
        record = _round_record(plan, Status.FAIL, (Finding(code=code, message=text[:500]),))
    finding = record.findings[0] if record.findings else None
    result = _result(subject, case, record.status, finding, (record,), described)
    refused = "refusal" if record.status is Status.PASS else None
    return msgspec.structs.replace(result, proves=refused)


def _grade_illegal_reply(
    subject: Subject, case: Case, plan: RoundPlan, reply: p.Ran | p.Raised, probe: Case | None
) -> Round:
    findings = list(grade_illegal(case, reply))
    if isinstance(reply, p.Raised) and reply.device_lost:
        findings.append(
            Finding(code=Code.DEVICE_LOST, message="after the refused call the device no longer works")
        )
        subject.seat.retire()
    elif probe is not None:
        findings += _still_usable(subject, probe)
    record = _round_record(plan, Status.FAIL if findings else Status.PASS, tuple(findings))
    return _with_exception(record, reply) if isinstance(reply, p.Raised) else record


def _still_usable(subject: Subject, probe: Case) -> tuple[Finding, ...]:
    # The same worker must still do legal work right after it has refused an illegal call.
    worker = subject.seat.number
    plan = fixed_round(subject.card, probe, "after")
    made = make_case(subject, probe, plan.seed, expect_values=True)
    if isinstance(made, Finding):
        return ()
    record = _round(subject, probe, plan, made, ())
    _forget(subject, probe, plan.seed)
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


def _round_record(plan: RoundPlan, status: Status, findings: tuple[Finding, ...]) -> Round:
    return Round(
        name=plan.name,
        seed=plan.seed,
        status=status,
        findings=findings,
        numerics=None,
        outputs=(),
        output_sha256=(),
    )


def _result(
    subject: Subject,
    case: Case,
    status: Status,
    finding: Finding | None,
    rounds: tuple[Round, ...],
    inputs: tuple[str, ...],
) -> CaseResult:
    return CaseResult(
        case_id=case.id,
        kind=case.kind,
        status=status,
        code=finding.code if finding else None,
        message=finding.message if finding else None,
        rounds=rounds,
        inputs=inputs,
        worker=subject.seat.number,
        elapsed_s=0.0,
    )


__all__ = ["Subject", "make_case", "run_cases", "seed_text"]
