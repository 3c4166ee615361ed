"""The traced run: what the candidate calls, archived always and held against the card's policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.card import CandidateManifest, TaskCard
from mini_kv.core.records.correctness import CallTrace, ContractCheck
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.policies import judge_trace, judges_trace
from mini_kv.core.time_limits import TRACE_TIMEOUT_S
from mini_kv.correctness.contract_plan import Sample, joined, without_answer
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.workers import Lost

CHECK = "policies"


def run_trace(
    card: TaskCard,
    manifest: CandidateManifest,
    samples: Sequence[Sample],
    seat: CandidateSeat,
    *,
    load: Callable[[], Finding | None],
    last: bool = False,
) -> tuple[CallTrace | None, tuple[ContractCheck, ...]]:
    """Trace one call of every sample in the contract worker, before anything else was called there.

    ``last`` says that nothing else will be.

    A card that forbids something gets a check, which fails when there is no trace; one that forbids
    nothing gets the trace alone, where there is one.
    """
    started = time.monotonic()
    contract = card.contract
    # Without the policy the kernels of the timed cases are enough: CUPTI takes a second to start.
    trace, missing = _trace(samples, seat, load, kernels=not contract.allow_library_calls, last=last)
    if not judges_trace(contract):
        return trace, ()
    if trace is None:
        found: tuple[Finding, ...] = (missing,)
    else:
        found = judge_trace(trace, contract, manifest.dispatcher.partition("::")[0])
    elapsed_s = round(time.monotonic() - started, 4)
    if not found:
        return trace, (_check(Status.PASS, None, None, elapsed_s),)
    return trace, tuple(_check(without_answer(one.code), one.code, one.message, elapsed_s) for one in found)


def _trace(
    samples: Sequence[Sample],
    seat: CandidateSeat,
    load: Callable[[], Finding | None],
    *,
    kernels: bool,
    last: bool,
) -> tuple[CallTrace | None, Finding]:
    untraced = Finding(code=Code.NOT_TRACED, message="no call could be traced")
    fault = load() if samples else untraced
    if fault is not None:
        return None, fault
    arguments, payloads = joined(samples)
    outcome = seat.ask(
        p.TraceCalls(argument_sets=arguments, kernels=kernels),
        payloads,
        timeout_s=TRACE_TIMEOUT_S,
        max_reply_bytes=0,
        last=last,
    )
    if isinstance(outcome, Lost):
        return None, Finding(code=outcome.code, message=outcome.message)
    if isinstance(outcome.reply, p.CallsTraced):
        return outcome.reply.trace, untraced
    if isinstance(outcome.reply, p.Failed):
        untraced = Finding(code=Code.NOT_TRACED, message=outcome.reply.message[:500])
    return None, untraced


def _check(status: Status, code: str | None, message: str | None, elapsed_s: float) -> ContractCheck:
    return ContractCheck(
        name=CHECK, case_id=None, status=status, code=code, message=message, elapsed_s=elapsed_s
    )
