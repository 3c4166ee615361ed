"""What the correctness stage works on: the cases' workers, and a second one for checks that take long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from mini_kv.core.records.card import CandidateManifest
from mini_kv.core.records.results import Finding
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.subject import StageSubject


@dataclass(frozen=True, kw_only=True)
class Subject(StageSubject):
    """Everything a case needs to be run."""

    manifest: CandidateManifest


@dataclass(frozen=True, kw_only=True)
class ContractWorker:
    """A second candidate worker, which runs contract checks while the cases are run in the first.

    ``load`` opens the library there and returns what is wrong with it. It imports for seconds, and holds
    ``turn`` from when it first touches the device to its end.
    """

    seat: CandidateSeat
    load: Callable[[], Finding | None]
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
