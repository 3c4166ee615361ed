"""Inputs after the timed calls: the storages of a set, drawn afterwards, must be what was sent."""

from __future__ import annotations

from mini_kv.benchmark.samples import REPLY_SLACK_BYTES, Sets, TimedSubject, expect_reply
from mini_kv.core import protocol as p
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.records.card import Case
from mini_kv.core.records.results import Finding
from mini_kv.system.workers import Answer

# Cold sets rotate over copies of themselves, and a call that writes may have met any of them.
INPUT_LOOKS = 3


def check_inputs(subject: TimedSubject, case: Case, sets: Sets) -> tuple[Finding, ...]:
    """Compare whole storages of some sets with what was sent; raises ``CaseLost`` for no proper answer.

    A set that was written to in any of its calls stays changed, so a look after all of them sees it.
    """
    if not (sets.storages and subject.card.contract.functional):
        return ()
    for _ in range(INPUT_LOOKS):
        # Which set is looked at, and which copy of it, is drawn only after all calls have been made.
        chosen, place = subject.chooser.randrange(len(sets.storages)), subject.chooser.random()
        found = _look(subject, p.FetchTimedInputs(case_id=case.id, argument_set=chosen, place=place), sets)
        if found:
            return found
    return ()


def _look(subject: TimedSubject, request: p.FetchTimedInputs, sets: Sets) -> tuple[Finding, ...]:
    sent = sets.storages[request.argument_set]
    outcome = subject.seat.ask(
        request,
        timeout_s=subject.timeout_s,
        max_reply_bytes=sum(size for size, _ in sent) + REPLY_SLACK_BYTES,
    )
    expect_reply(outcome, p.TimedInputs)
    assert isinstance(outcome, Answer)
    if len(outcome.payloads) != len(sent):
        message = f"{len(outcome.payloads)} storages came back after the timed calls; {len(sent)} were sent"
        return (Finding(code=Code.INPUT_MUTATED_WHILE_TIMED, message=message),)
    changed = [
        position
        for position, (payload, (_, digest)) in enumerate(zip(outcome.payloads, sent, strict=True))
        if sha256_bytes(payload) != digest
    ]
    if not changed:
        return ()
    message = (
        f"after the timed calls input payload {changed[0]} is not what was sent, although the same case left "
        "its inputs alone untimed"
    )
    return (Finding(code=Code.INPUT_MUTATED_WHILE_TIMED, message=message),)
