"""What the build stage leaves: every unit's command and outcome, and the library that they made."""

from __future__ import annotations

from mini_kv.core.record import Record
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.device_code import DeviceCode
from mini_kv.core.records.results import Sha256, Status


class BuildUnit(Record, frozen=True, kw_only=True):
    """One compiler invocation. Paths in ``command`` are project-relative where they can be."""

    source: str
    command: tuple[str, ...]
    returncode: int
    elapsed_s: float


class Build(Record, frozen=True, kw_only=True):
    """``compile.json``: the build that was used, or why there is none.

    ``library`` is project-relative; ``library_sha256`` is of the file that the worker opened.
    ``device_code`` is there for a CUDA build whose assembler told what it made.
    """

    schema_version: str
    status: Status
    code: str | None
    message: str | None
    key: Sha256
    cached: bool
    elapsed_s: float
    device: DeviceKind
    library: str | None
    library_sha256: Sha256 | None
    library_bytes: int | None
    torch: str
    cxx: str | None
    cuda_compiler: str | None
    arch_list: tuple[str, ...]
    units: tuple[BuildUnit, ...]
    source_sha256: dict[str, Sha256]
    first_error: str | None = None
    device_code: DeviceCode | None = None
