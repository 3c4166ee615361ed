"""Inputs after the timed calls: the storages of a set, drawn afterwards, must be what was sent."""

from __future__ import annotations

from mini_kv.benchmark.samples import REPLY_SLACK_BYTES, Sets, TimedSubject, expect_reply
from mini_kv.core import protocol as p
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.card import Case
from mini_kv.core.results import Finding
from mini_kv.system.workers import Answer


def check_inputs(subject: TimedSubject, case: Case, sets: Sets) -> tuple[Finding, ...]:
    """Compare whole storages of one set with what was sent; raises ``CaseLost`` for no proper answer.

    A set that was written to in any of its calls stays changed, so one look after all of them sees it.
    """
    if not (sets.storages and subject.card.contract.functional):
        return ()
    # Which set is looked at is drawn only after all calls have been made.
    chosen = subject.chooser.randrange(len(sets.storages))
    sent = sets.storages[chosen]
    outcome = subject.seat.ask(
        p.FetchTimedInputs(case_id=case.id, argument_set=chosen),
        timeout_s=subject.timeout_s,
        max_reply_bytes=sum(size for size, _ in sent) + REPLY_SLACK_BYTES,
    )
    expect_reply(outcome, p.TimedInputs)
    assert isinstance(outcome, Answer)
    if len(outcome.payloads) != len(sent):
        message = f"{len(outcome.payloads)} storages came back after the timed calls; {len(sent)} were sent"
        return (Finding(code="INPUT_MUTATED_WHILE_TIMED", message=message),)
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
    return (Finding(code="INPUT_MUTATED_WHILE_TIMED", message=message),)
