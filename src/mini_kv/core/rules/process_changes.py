"""What a candidate changed in its process: two descriptions in, changes and a finding out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mini_kv.core.codes import Code
from mini_kv.core.records.correctness import StateChange
from mini_kv.core.records.results import Finding

# Worth a remark and no fault by itself: a thread pool, an open file, a library that came along.
REMARKS = ("threads.", "descriptors.", "libraries.")
MAX_CHANGES = 200
_TEXT_LIMIT = 200
_SHOWN = 5


def compare_states(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[StateChange, ...]:
    """Return every fact that came, went or differs, faults first; at most ``MAX_CHANGES``."""
    names = sorted(set(before) | set(after))
    changes = [
        StateChange(
            name=name[:_TEXT_LIMIT],
            before=_clipped(before.get(name)),
            after=_clipped(after.get(name)),
            remark=name.startswith(REMARKS),
        )
        for name in names
        if before.get(name) != after.get(name)
    ]
    return tuple(sorted(changes, key=lambda change: change.remark)[:MAX_CHANGES])


def _clipped(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT_LIMIT]


def judge_changes(changes: Sequence[StateChange]) -> Finding | None:
    """Return what the changes say against the candidate, if anything."""
    faults = [change for change in changes if not change.remark]
    if not faults:
        return None
    shown = "; ".join(_sentence(change) for change in faults[:_SHOWN])
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return Finding(
        code=Code.GLOBAL_STATE_CHANGED,
        message=f"after the candidate was loaded and called, its process differs: {shown}{more}",
        evidence=tuple(change.name for change in faults),
    )


def _sentence(change: StateChange) -> str:
    return f"{change.name} was {change.before or 'absent'}, is {change.after or 'gone'}"
