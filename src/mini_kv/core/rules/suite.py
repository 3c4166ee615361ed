"""The suite: the hash of everything in a card that changes what is measured. Pure."""

from __future__ import annotations

import msgspec

from mini_kv.core.canonical import canonical_sha256
from mini_kv.core.records.card import Contract, TaskCard
from mini_kv.core.rules.axes import expand_axes

# These came later: a card that leaves them at their defaults keeps the suite hash that it had.
_LATER_RULES: tuple[str, ...] = (
    "allow_library_calls",
    "allow_workspace",
    "allow_global_state",
    "secret_shapes",
)


def suite_hash(card: TaskCard) -> str:
    """Hash everything in a card that changes what is measured (not the candidate, not the device).

    The cases that axes generate are part of it, whether the card was expanded already or not.
    """
    measured = msgspec.to_builtins(msgspec.structs.replace(expand_axes(card), candidate="-", device="auto"))
    defaults = msgspec.to_builtins(Contract())
    for name in _LATER_RULES:
        if measured["contract"][name] == defaults[name]:
            del measured["contract"][name]
    if not card.benchmark.axes:
        del measured["benchmark"]["axes"]  # a card without axes keeps the hash it had before there were any
    return canonical_sha256(measured)
