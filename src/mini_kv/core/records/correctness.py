"""What the correctness stage leaves: every case with its rounds, and the contract's checks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from mini_kv.core.record import END, Record
from mini_kv.core.records.card import CaseKind, DeviceKind
from mini_kv.core.records.results import Finding, Sha256, Status
from mini_kv.core.tensors import OutputSpec


class Mismatch(Record, frozen=True, kw_only=True):
    """One wrong element; values as text because they may be NaN or infinite."""

    output: int
    index: tuple[int, ...]
    expected: str
    actual: str


class Numerics(Record, frozen=True, kw_only=True):
    """Errors over every element, recorded passing or not. Non-finite pairs are counted apart.

    ``max_abs_error`` and ``max_rel_error`` compare with the FP64 reference; ``max_error_eps`` is
    ``max(|candidate - reference64| / (eps(dtype) * max(|reference64|, tiny(dtype))))``.
    ``reference_*`` are the same figures for the reference at the working dtype.
    """

    element_count: int
    mismatch_count: int
    nonfinite_mismatch_count: int
    max_abs_error: float | None
    max_rel_error: float | None
    max_error_eps: float | None
    reference_max_abs_error: float | None
    reference_max_error_eps: float | None
    first_mismatches: tuple[Mismatch, ...]


class Round(Record, frozen=True, kw_only=True):
    """One call of one case: with the fixed seed, or with a secret one archived afterwards."""

    name: str
    seed: Annotated[str, Meta(pattern=rf"^[0-9a-f]{{16}}{END}")]
    status: Status
    findings: tuple[Finding, ...]
    numerics: Numerics | None
    outputs: tuple[OutputSpec, ...]
    output_sha256: tuple[Sha256, ...]
    raised: str | None = None


# What a passed case is evidence of. "form": an empty result has a shape and a dtype and no value.
# "nothing": a null candidate (zeros, an input, half the work) passes too.
Proves = Literal["values", "form", "refusal", "nothing"]


class CaseResult(Record, frozen=True, kw_only=True):
    """One case of the plan: present for every case, whatever the workers said.

    ``proves`` is known of passed and of INVALID cases.
    """

    case_id: str
    kind: CaseKind
    status: Status
    code: str | None
    message: str | None
    rounds: tuple[Round, ...]
    inputs: tuple[str, ...]
    worker: int
    elapsed_s: float
    proves: Proves | None = None


class ContractCheck(Record, frozen=True, kw_only=True):
    """One contract question (opcheck.test_schema, gradcheck, ...) with its own answer."""

    name: str
    case_id: str | None
    status: Status
    code: str | None
    message: str | None
    elapsed_s: float


class CallTrace(Record, frozen=True, kw_only=True):
    """What one call of every legal case made: dispatcher operators, device kernels, memory it kept.

    Told by the candidate's own process. ``kept_bytes`` are of torch's allocators, after the results were
    freed.
    """

    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    kept_bytes: int


class StateChange(Record, frozen=True, kw_only=True):
    """One fact of the candidate's process that came, went or differs; a ``remark`` is no fault by itself."""

    name: str
    before: str | None
    after: str | None
    remark: bool


class Correctness(Record, frozen=True, kw_only=True):
    """``correctness.json``. One that is not ``complete`` is of a run that ended before its time."""

    schema_version: str
    status: Status
    device: DeviceKind
    planned_cases: int
    passed_cases: int
    cases: tuple[CaseResult, ...]
    contract: tuple[ContractCheck, ...]
    workers_started: int
    workers_lost: int
    elapsed_s: float
    trace: CallTrace | None = None
    state_changes: tuple[StateChange, ...] = ()
    complete: bool = True
