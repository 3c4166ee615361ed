"""What the null candidates say of a card: which of its cases prove nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.core import protocol as p
from mini_kv.core.card import CaseKind, DeviceKind
from mini_kv.core.correctness import Proves
from mini_kv.core.record import Record
from mini_kv.core.results import Finding, Sha256, Status


class CaseAudit(Record, frozen=True, kw_only=True):
    """One legal case. ``passed`` are the nulls that pass with every seed tried.

    ``lower_precision`` are narrower dtypes whose rounding alone the tolerance forgives: a remark, since
    some cards mean it so.
    """

    case_id: str
    kind: CaseKind
    status: Status
    proves: Proves | None
    passed: tuple[str, ...]
    lower_precision: tuple[str, ...]
    findings: tuple[Finding, ...]
    seeds: tuple[str, ...]


class CardAudit(Record, frozen=True, kw_only=True):
    """What ``mini-kv audit-task --json`` prints. ``status`` is INVALID when any case is."""

    schema_version: str
    status: Status
    task_id: str
    operator: str
    operator_version: str
    suite_sha256: Sha256
    reference_sha256: Sha256
    device: DeviceKind
    cases: tuple[CaseAudit, ...]


def common_nulls(audits: Sequence[p.CaseAudited]) -> tuple[str, ...]:
    """Return the nulls that pass under every seed: one that chance let through once is caught by another."""
    if not audits:
        return ()
    return tuple(name for name in audits[0].passed if all(name in audit.passed for audit in audits))


def judge_audits(audits: Sequence[p.CaseAudited]) -> tuple[Proves, Finding | None]:
    """Return what the case is evidence of, and why not of values.

    An empty result proves form and is no fault of the card; any other that a null passes proves nothing.
    """
    if all(audit.element_count == 0 for audit in audits):
        return "form", None
    passed = common_nulls(audits)
    if not passed:
        return "values", None
    return "nothing", Finding(
        code="NULL_PASSES",
        message=f"{_listed(passed)} would pass too, without computing anything: the case proves nothing; "
        "its inputs or tolerance must change",
        evidence=passed,
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
