"""How far a candidate's process is shut off: ordered levels, and the features that make them."""

from __future__ import annotations

import enum
from collections.abc import Collection

from mini_kv.core.record import Record


class IsolationLevel(enum.StrEnum):
    """Each level holds all that the one before it does."""

    NONE = "none"
    PROCESS = "process"
    RESTRICTED = "restricted"
    CONFINED = "confined"
    ISOLATED = "isolated"

    def reaches(self, other: IsolationLevel) -> bool:
        """Say whether this level is ``other`` or above it."""
        order = list(IsolationLevel)
        return order.index(self) >= order.index(other)


# What a level adds to the one before it.
LEVEL_FEATURES: dict[IsolationLevel, frozenset[str]] = {
    IsolationLevel.PROCESS: frozenset({"own_process", "scrubbed_environment"}),
    IsolationLevel.RESTRICTED: frozenset(
        {"no_new_privileges", "no_capabilities", "resource_limits", "system_call_filter"}
    ),
    IsolationLevel.CONFINED: frozenset({"file_access"}),
    IsolationLevel.ISOLATED: frozenset(
        {"own_user", "process_namespace", "network_namespace", "ipc_namespace"}
    ),
}


LEVEL_MEANING: dict[IsolationLevel, str] = {
    IsolationLevel.NONE: "candidates run in the judge's own surroundings",
    IsolationLevel.PROCESS: "a process of its own with a scrubbed environment",
    IsolationLevel.RESTRICTED: "no privileges, bounded resources, no network and no dangerous system calls",
    IsolationLevel.CONFINED: "restricted, and only granted files can be read or written",
    IsolationLevel.ISOLATED: "confined, and a user, processes and a network of its own",
}


class MissingFeature(Record, frozen=True, kw_only=True):
    """A feature that was not reached, and what stood in the way."""

    name: str
    reason: str


class Isolation(Record, frozen=True, kw_only=True):
    """What was reached on this machine, by trial."""

    level: IsolationLevel
    features: tuple[str, ...]
    missing: tuple[MissingFeature, ...]

    def reason(self, wanted: IsolationLevel) -> str:
        """Return in a sentence what ``wanted`` lacks here; empty when nothing."""
        needed = {name for level, names in LEVEL_FEATURES.items() if wanted.reaches(level) for name in names}
        told = {one.name: one.reason for one in self.missing}
        lacking = sorted(needed - set(self.features))
        return "; ".join(f"{name}: {told.get(name, 'not available')}" for name in lacking)


def level_of(features: Collection[str]) -> IsolationLevel:
    """Return the highest level whose features, and those of all below it, are there."""
    reached = IsolationLevel.NONE
    for level in list(IsolationLevel)[1:]:
        if not LEVEL_FEATURES[level] <= set(features):
            break
        reached = level
    return reached
