"""Looks at a case's results once more, after the calls that came later: what was returned must stay."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.records.card import Case
from mini_kv.core.records.correctness import Round
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.tensors import element_count
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.workers import Lost

_SLACK_BYTES = 1 << 20


def look_again(seat: CandidateSeat, case: Case, rounds: Sequence[Round], timeout_s: float) -> list[Round]:
    """Copy out the kept outputs of all rounds again; a round whose outputs changed since has failed.

    Asked only when every round passed and there was a later call: one of several.
    """
    if len(rounds) < 2 or any(one.status is not Status.PASS for one in rounds):
        return list(rounds)
    known = sum(sum(_bytes(one)) for one in rounds)
    outcome = seat.ask(
        p.Recall(key=case.id, kept=tuple(one.name for one in rounds)),
        timeout_s=timeout_s,
        max_reply_bytes=known + _SLACK_BYTES,
    )
    if isinstance(outcome, Lost):
        return _fail(rounds, len(rounds) - 1, Finding(code=outcome.code, message=outcome.message))
    digests = [sha256_bytes(payload) for payload in outcome.payloads]
    if not isinstance(outcome.reply, p.Recalled) or len(digests) != sum(len(r.output_sha256) for r in rounds):
        missing = Finding(
            code=Code.OUTPUTS_NOT_KEPT, message="the worker did not give the kept outputs again"
        )
        return _fail(rounds, len(rounds) - 1, missing)
    first = 0
    for position, one in enumerate(rounds):
        last = first + len(one.output_sha256)
        if tuple(digests[first:last]) != one.output_sha256:
            return _fail(rounds, position, _changed(one))
        first = last
    return list(rounds)


def _changed(one: Round) -> Finding:
    return Finding(
        code=Code.OUTPUT_CHANGED_LATER,
        message=f"the result of the {one.name} round was right when it was returned and is another now: "
        "a later call, or work that was still going on, wrote to it",
    )


def _fail(rounds: Sequence[Round], position: int, finding: Finding) -> list[Round]:
    # The failed round comes last, as where a round ends a case; those after it prove no more.
    failed = msgspec.structs.replace(
        rounds[position], status=Status.FAIL, findings=(*rounds[position].findings, finding)
    )
    return [*rounds[:position], *rounds[position + 1 :], failed]


def _bytes(one: Round) -> list[int]:
    return [element_count(spec.shape) * ITEM_SIZE_BYTES.get(spec.dtype, 8) for spec in one.outputs]
