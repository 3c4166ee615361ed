"""One moment of a worker process, as flat facts."""

from __future__ import annotations

from mini_kv.core.record import Record


class ProcessState(Record, frozen=True, kw_only=True):
    """One moment of a process, as flat facts: ``torch.default_dtype``, ``environment.PATH``, ..."""

    facts: dict[str, str]
