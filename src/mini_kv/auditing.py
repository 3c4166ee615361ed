"""``audit-task``: the oracle alone runs null candidates against every legal case of a card."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.core import protocol as p
from mini_kv.core.canonical import canonical_sha256, fixed_seed
from mini_kv.core.codes import Code
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.card import SCHEMA_VERSION, Case, CaseKind, DeviceKind, TaskCard
from mini_kv.core.records.card_audit import CardAudit, CaseAudit
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.null_candidates import common_nulls, judge_audits
from mini_kv.core.rules.suite import suite_hash
from mini_kv.core.time_limits import AUDITED_CASE_TIMEOUT_S
from mini_kv.system.host import usable_cpus
from mini_kv.system.oracle_client import OracleClient, not_makeable
from mini_kv.system.scratch import scratch_folder, sweep_scratch
from mini_kv.system.seats import OracleSeat
from mini_kv.system.workers import Nursery

# With one seed a single value can be right by chance; a null must be right with all of them.
SEEDS = 3


def audit_in_fresh_oracle(
    card: TaskCard, import_path: Sequence[str], device: DeviceKind, progress: Progress
) -> CardAudit:
    """Start an oracle that imports from ``import_path``, audit the card, and end it."""
    sweep_scratch()
    with scratch_folder() as scratch:
        nursery = Nursery(scratch, import_path)
        try:
            oracle = OracleSeat(nursery, p.Hello(device=device, threads=usable_cpus()))
            progress(Event(stage="audit", done=0, total=len(card.cases), detail="the oracle starts"))
            oracle.greet()
            return audit_card(card, device, oracle, progress)
        finally:
            nursery.close()


def audit_card(card: TaskCard, device: DeviceKind, oracle: OracleClient, progress: Progress) -> CardAudit:
    """Import the card's reference in the greeted ``oracle`` and audit every case that is not illegal.

    Raises ``ConfigurationError`` when the reference cannot be imported, ``InternalError`` when the oracle
    is lost.
    """
    loaded = oracle.load_card(card)
    legal = [case for case in card.cases if case.kind is not CaseKind.ILLEGAL]
    audits: list[CaseAudit] = []
    for case in legal:
        progress(Event(stage="audit", done=len(audits), total=len(legal), detail=case.id))
        audits.append(_audit(card, case, oracle))
    progress(Event(stage="audit", done=len(legal), total=len(legal), detail="done"))
    invalid = any(audit.status is not Status.PASS for audit in audits)
    return CardAudit(
        schema_version=SCHEMA_VERSION,
        status=Status.INVALID if invalid or not audits else Status.PASS,
        task_id=card.task_id,
        operator=card.operator,
        operator_version=card.operator_version,
        suite_sha256=suite_hash(card),
        reference_sha256=loaded.source_sha256,
        device=device,
        cases=tuple(audits),
    )


def audit_seeds(task_id: str, case: Case) -> tuple[str, ...]:
    """Return the seeds of an audit: the fixed round's, and for all but large shapes derived ones."""
    further = 0 if case.kind is CaseKind.BENCHMARK else SEEDS - 1
    return (
        f"{fixed_seed(task_id, case.id):016x}",
        *(canonical_sha256([task_id, case.id, "audit", number])[:16] for number in range(further)),
    )


def _audit(card: TaskCard, case: Case, oracle: OracleClient) -> CaseAudit:
    seeds = audit_seeds(card.task_id, case)
    audits: list[p.CaseAudited] = []
    for seed in seeds:
        answer = _one(case, seed, oracle)
        if isinstance(answer, Finding):
            return _case(case, seeds, audits, (answer,))
        audits.append(answer)
    _, degenerate = judge_audits(audits)
    return _case(case, seeds, audits, (degenerate,) if degenerate is not None else ())


def _one(case: Case, seed: str, oracle: OracleClient) -> p.CaseAudited | Finding:
    key = f"audit/{case.id}/{seed}"
    made = oracle.make_case(key, case, seed, timeout_s=AUDITED_CASE_TIMEOUT_S)
    if isinstance(made, p.Failed):
        return not_makeable(made)
    audited = oracle.audit(key)
    oracle.forget(key, timeout_s=AUDITED_CASE_TIMEOUT_S)
    if not made.reply.reference_within_tolerance:
        return Finding(
            code=Code.REFERENCE_OUTSIDE_TOLERANCE,
            message="the reference at the working dtype misses the card's own tolerance against FP64",
        )
    return audited


def _case(
    case: Case, seeds: tuple[str, ...], audits: list[p.CaseAudited], findings: tuple[Finding, ...]
) -> CaseAudit:
    complete = len(audits) == len(seeds)
    return CaseAudit(
        case_id=case.id,
        kind=case.kind,
        status=Status.INVALID if findings else Status.PASS,
        proves=judge_audits(audits)[0] if complete else None,
        passed=common_nulls(audits) if complete else (),
        lower_precision=audits[0].lower_precision if audits else (),
        findings=findings,
        seeds=seeds,
    )
