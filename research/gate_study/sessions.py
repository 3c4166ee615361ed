"""Several sessions as one study: of a kernel that was measured again, the last session counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.record import Record
from mini_kv.regression import Policy
from research.gate_study.decisions import Evidence, disjoint_groups
from research.gate_study.records import Raw, StudyError, load_raw


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a session contributes: its processes, and the kernels that no later session measured."""

    evidence: Evidence
    kernels: tuple[str, ...]
    left_out: tuple[str, ...]
    file: str
    sha256: str


class Session(Record, frozen=True, kw_only=True):
    """One session in the summary. ``file`` and ``sha256`` are its raw times'; empty where none were read.

    Kernels ``left_out`` were measured again in a later session. ``equal_decisions`` counts what its disjoint
    groups decided on equal code, for the kernels that count.
    """

    file: str
    sha256: str
    processes: int
    disjoint_groups: int
    kernels: tuple[str, ...]
    left_out: tuple[str, ...]
    equal_decisions: int


def load_shares(files: Sequence[tuple[str, bytes]]) -> tuple[Share, ...]:
    """Return what every raw file (name and content) contributes, the latest last.

    Raises ``msgspec.ValidationError``, and :class:`StudyError` as :func:`shares_of` does.
    """
    shares = shares_of([load_raw(content) for _, content in files])
    return tuple(
        Share(
            evidence=share.evidence,
            kernels=share.kernels,
            left_out=share.left_out,
            file=name,
            sha256=sha256_bytes(content),
        )
        for share, (name, content) in zip(shares, files, strict=True)
    )


def shares_of(raws: Sequence[Raw]) -> tuple[Share, ...]:
    """Return what every session contributes, the latest last.

    Raises :class:`StudyError` where there is none, or they are not of one device, torch and list of levels.
    """
    if not raws:
        raise StudyError("there is no session to summarise")
    for named in ("device_name", "device", "torch", "levels"):
        found = [getattr(raw, named) for raw in raws]
        if any(one != found[0] for one in found):
            told = " and ".join(dict.fromkeys(map(str, found)))
            raise StudyError(f"sessions of different '{named}' are no one study: {told}")
    shares: list[Share] = []
    for number, raw in enumerate(raws):
        again = {name for later in raws[number + 1 :] for name in later.pilot.net_us}
        names = tuple(raw.pilot.net_us)
        shares.append(
            Share(
                evidence=Evidence(raw),
                kernels=tuple(name for name in names if name not in again),
                left_out=tuple(name for name in names if name in again),
                file="",
                sha256="",
            )
        )
    return tuple(shares)


def described(share: Share, policy: Policy) -> Session:
    """Return a session as the summary tells of it."""
    raw = share.evidence.raw
    groups = sum(1 for _ in disjoint_groups(share.evidence, policy, 0))
    return Session(
        file=share.file,
        sha256=share.sha256,
        processes=len(raw.processes),
        disjoint_groups=groups,
        kernels=share.kernels,
        left_out=share.left_out,
        equal_decisions=groups * len(share.kernels) * len(raw.levels),
    )
