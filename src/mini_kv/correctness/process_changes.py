"""Asks the candidate's process, after all cases, what is different from before its library was opened."""

from __future__ import annotations

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.card import Contract
from mini_kv.core.records.correctness import ContractCheck, StateChange
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.process_changes import compare_states, judge_changes
from mini_kv.core.time_limits import STATE_TIMEOUT_S
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.workers import Lost

CHECK = "process_state"


def check_state(seat: CandidateSeat, contract: Contract) -> tuple[tuple[StateChange, ...], ContractCheck]:
    """Return what changed, remarks included, and the check that says whether the card allows it."""
    if not seat.occupied:
        # The last case took the process with it, and has failed for that.
        return (), _check(Status.SKIPPED, Code.WORKER_GONE, "the process ended before it could be asked")
    outcome = seat.ask(p.DescribeState(), timeout_s=STATE_TIMEOUT_S, max_reply_bytes=0)
    if isinstance(outcome, Lost):
        return (), _check(Status.FAIL, outcome.code, outcome.message)
    if not isinstance(outcome.reply, p.StateDescribed):
        return (), _check(Status.FAIL, Code.UNANSWERED, "the worker did not describe its process")
    changes = compare_states(outcome.reply.before.facts, outcome.reply.after.facts)
    finding = judge_changes(changes)
    if finding is None:
        return changes, _check(Status.PASS, None, None)
    if contract.allow_global_state:
        return changes, _check(Status.SKIPPED, Code.GLOBAL_STATE_ALLOWED, finding.message)
    return changes, _failed(finding)


def _failed(finding: Finding) -> ContractCheck:
    return _check(Status.FAIL, finding.code, finding.message)


def _check(status: Status, code: str | None, message: str | None) -> ContractCheck:
    return ContractCheck(name=CHECK, case_id=None, status=status, code=code, message=message, elapsed_s=0.0)
