"""What is said to the candidate's worker: a library, calls, contract checks, and what the process is like."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from mini_kv.core.record import Record
from mini_kv.core.records.correctness import CallTrace
from mini_kv.core.records.process_state import ProcessState
from mini_kv.core.tensors import Argument, NonNegative, OutputSpec


class LoadCandidate(Record, frozen=True, kw_only=True, tag="load_candidate"):
    """Open the library, import the Python file if there is one, look the operator up."""

    library: str
    library_sha256: str
    python: str | None
    dispatcher: str
    schema: str


class CandidateLoaded(Record, frozen=True, kw_only=True, tag="candidate_loaded"):
    """Answer to LoadCandidate: the schema and kernels the dispatcher really has."""

    schema: str
    kernels: dict[str, bool]


CallMode = Literal["no_grad", "grad", "requires_grad", "gradients"]
# What a call may leave other than it was in a tensor that it is given, apart from the bytes of its storage.
Trait = Literal[
    "shape", "strides", "storage_offset", "dtype", "storage", "version", "requires_grad", "grad", "hooks"
]


class RunCase(Record, frozen=True, kw_only=True, tag="run_case"):
    """Call the operator once (payloads: input storages) with poisoned allocator memory.

    ``poison`` fills the guard zones around the inputs too. The outputs stay allocated under the name
    ``keep`` until another ``key`` is run. ``mode`` says whether gradients are off, on, or
    demanded by the inputs; ``gradients`` has those of the inputs returned in place of the outputs.

    ``refill`` asks for the tensors of the call before, where ``key`` and forms are the same: their values are
    replaced in place, as an optimizer's step does, and their versions counted up. Otherwise memory is fresh,
    and ``version`` is how often it counts as written to. ``weights_seed`` decides what gradients start from.
    """

    key: str
    arguments: tuple[Argument, ...]
    poison: Annotated[int, Meta(ge=0, le=255)]
    poison_bytes: tuple[int, ...]
    keep: str | None = None
    mode: CallMode = "no_grad"
    refill: bool = False
    version: NonNegative = 0
    weights_seed: str = ""


class Altered(Record, frozen=True, kw_only=True):
    """A tensor among the arguments, by position, and what of it is another than before the call."""

    argument: NonNegative
    traits: Annotated[tuple[Trait, ...], Meta(min_length=1)]


class Ran(Record, frozen=True, kw_only=True, tag="ran"):
    """The call returned (payloads: outputs as contiguous bytes, then the input storages after it).

    Behind those follow the guard zones of each input storage: ``GUARD_BYTES`` before it and as many
    behind it, nothing for a storage without bytes. ``stray_writes`` counts the blocks that lay next to
    the outputs' memory and were written to.
    """

    outputs: tuple[OutputSpec, ...]
    input_blobs: tuple[NonNegative, ...]
    guard_blobs: tuple[NonNegative, ...]
    stray_writes: NonNegative
    altered: tuple[Altered, ...] = ()


class Raised(Record, frozen=True, kw_only=True, tag="raised"):
    """The call raised; ``types`` is the exception's method resolution order, by name.

    ``device_lost`` says that the device no longer works in this process, so it must be replaced.
    """

    types: Annotated[tuple[str, ...], Meta(min_length=1)]
    message: str
    device_lost: bool


class Recall(Record, frozen=True, kw_only=True, tag="recall"):
    """Copy the kept outputs of ``key`` once more, those of every name in ``kept``, in this order."""

    key: str
    kept: tuple[str, ...]


class Recalled(Record, frozen=True, kw_only=True, tag="recalled"):
    """Answer to Recall (payloads: outputs as contiguous bytes)."""


class CheckContract(Record, frozen=True, kw_only=True, tag="check_contract"):
    """Run one contract check on the given argument sets (payloads: all storages).

    Every check uses the first set; ``dynamic_shapes`` compares all of them.
    """

    check: str
    argument_sets: Annotated[tuple[tuple[Argument, ...], ...], Meta(min_length=1)]
    autograd: bool


class ContractAnswer(Record, frozen=True, kw_only=True, tag="contract_answer"):
    """Answer to CheckContract: one verdict a sub-check."""

    results: dict[str, str | None]


class TraceCalls(Record, frozen=True, kw_only=True, tag="trace_calls"):
    """Call the operator once with each argument set and say what it called (payloads: all storages).

    ``kernels`` asks for the device's kernels too (CUDA only).
    """

    argument_sets: Annotated[tuple[tuple[Argument, ...], ...], Meta(min_length=1)]
    kernels: bool


class CallsTraced(Record, frozen=True, kw_only=True, tag="calls_traced"):
    """Answer to TraceCalls."""

    trace: CallTrace


class DescribeState(Record, frozen=True, kw_only=True, tag="describe_state"):
    """Describe the process as it was before the library was opened, and as it is now."""


class StateDescribed(Record, frozen=True, kw_only=True, tag="state_described"):
    """Answer to DescribeState."""

    before: ProcessState
    after: ProcessState


CandidateRequest = LoadCandidate | RunCase | Recall | CheckContract | TraceCalls | DescribeState
CandidateReply = CandidateLoaded | Ran | Raised | Recalled | ContractAnswer | CallsTraced | StateDescribed
