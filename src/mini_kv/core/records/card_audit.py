"""What ``mini-kv audit-task`` says of a card: which of its cases prove nothing."""

from __future__ import annotations

from mini_kv.core.record import Record
from mini_kv.core.records.card import CaseKind, DeviceKind
from mini_kv.core.records.correctness import Proves
from mini_kv.core.records.results import Finding, Sha256, Status


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
