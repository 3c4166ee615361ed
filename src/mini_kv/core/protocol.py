"""What judge and workers say to each other: JSON headers with raw byte payloads, never pickle.

A frame is ``MAGIC | header length (u32) | payload count (u32) | payload lengths (u64 each) | header |
payloads``, all little-endian. Limits are checked before anything is allocated.
"""

from __future__ import annotations

import struct
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mini_kv.core.benchmark import KernelWitness
from mini_kv.core.card import DeviceKind, ParamValue, Tolerance
from mini_kv.core.correctness import CallTrace, Numerics
from mini_kv.core.process_state import ProcessState
from mini_kv.core.record import Record
from mini_kv.core.tensors import Argument, NonNegative, OutputSpec

MAGIC = b"mkv1"
PREFIX = struct.Struct("<4sII")
MAX_HEADER_BYTES = 8 << 20
MAX_PAYLOADS = 4096
DEFAULT_MAX_FRAME_BYTES = 4 << 30


class ProtocolError(Exception):
    """A peer sent something that is not a frame of this protocol."""


# --------------------------------------------------------------------------- requests, both


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """First request: pick the device and say what the process is."""

    device: DeviceKind
    threads: Annotated[int, Meta(ge=1)]


class Rouse(Record, frozen=True, kw_only=True, tag="rouse"):
    """Answer Done once the imports are over; the device stays untouched."""


class PrepareTiming(Record, frozen=True, kw_only=True, tag="prepare_timing"):
    """Give the process the rotating argument sets of one timed case (payloads: all storages)."""

    case_id: str
    argument_sets: tuple[tuple[Argument, ...], ...]


class TimeBatch(Record, frozen=True, kw_only=True, tag="time_batch"):
    """Take ``iterations`` samples of the prepared case after ``warmup`` untimed calls.

    ``kept_at`` says how far into a sample (0 first, 1 last) the call stands whose output is kept.
    ``elsewhere`` asks for copies of the inputs, which lie where no earlier batch of the case had them.
    """

    case_id: str
    warmup: int
    iterations: int
    calls_per_sample: int
    cache: Literal["cold", "hot"]
    kept_at: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    elsewhere: bool = False


def kept_call(kept_at: float, calls_per_sample: int) -> int:
    """Return the position within a sample, from 0, of the call whose output is kept."""
    return min(int(kept_at * calls_per_sample), calls_per_sample - 1)


class WitnessKernels(Record, frozen=True, kw_only=True, tag="witness_kernels"):
    """Trace ``calls`` calls of the prepared case with CUPTI (CUDA only)."""

    case_id: str
    calls: Annotated[int, Meta(ge=1)]
    cache: Literal["cold", "hot"]


class PrepareRepeats(Record, frozen=True, kw_only=True, tag="prepare_repeats"):
    """Make ready to make ``calls`` calls of the prepared case at one word."""

    case_id: str
    calls: Annotated[int, Meta(ge=1)]


class RunRepeats(Record, frozen=True, kw_only=True, tag="run_repeats"):
    """Make them and answer when they are done; the judge looks at its own clock.

    About ``kept_outputs`` of the results are kept until the next run (CPU only). Whether one is kept is drawn
    when its call has returned.
    """

    case_id: str
    calls: Annotated[int, Meta(ge=1)]
    kept_outputs: NonNegative = 0


class FetchRepeated(Record, frozen=True, kw_only=True, tag="fetch_repeated"):
    """Return a result that the last run of repeats kept, by the position of its call in the run."""

    case_id: str
    position: NonNegative


class MeasureTimer(Record, frozen=True, kw_only=True, tag="measure_timer"):
    """Measure the timer itself: empty-call floor, tick, copy bandwidth."""

    cache: Literal["cold", "hot"]


class DropTiming(Record, frozen=True, kw_only=True, tag="drop_timing"):
    """Free what PrepareTiming and TimeBatch hold."""

    case_id: str


# --------------------------------------------------------------------------- requests, oracle


class LoadReference(Record, frozen=True, kw_only=True, tag="load_reference"):
    """Import the card's reference and input factory."""

    reference: str
    input_factory: str
    tolerances: dict[str, Tolerance]


class MakeCase(Record, frozen=True, kw_only=True, tag="make_case"):
    """Make the inputs of a case from a seed and keep the expected values under ``key``.

    ``expect_values`` is false for illegal cases, of which the reference is not asked.
    """

    key: str
    params: dict[str, ParamValue]
    seed: str
    expect_values: bool


class Compare(Record, frozen=True, kw_only=True, tag="compare"):
    """Compare outputs (payloads: contiguous bytes, one an output) with the expected values of ``key``."""

    key: str
    outputs: tuple[OutputSpec, ...]


class AuditCase(Record, frozen=True, kw_only=True, tag="audit_case"):
    """Ask which null candidates would pass the case that was made under ``key``."""

    key: str


class Forget(Record, frozen=True, kw_only=True, tag="forget"):
    """Free the inputs and expected values of ``key``."""

    key: str


class PrepareReferenceTiming(Record, frozen=True, kw_only=True, tag="prepare_reference_timing"):
    """Time the reference on the inputs that were made under ``keys``."""

    case_id: str
    keys: tuple[str, ...]


# --------------------------------------------------------------------------- requests, candidate


class LoadCandidate(Record, frozen=True, kw_only=True, tag="load_candidate"):
    """Open the library, import the Python file if there is one, look the operator up."""

    library: str
    library_sha256: str
    python: str | None
    dispatcher: str
    schema: str


class RunCase(Record, frozen=True, kw_only=True, tag="run_case"):
    """Call the operator once (payloads: input storages) with poisoned allocator memory.

    ``poison`` fills the guard zones around the inputs too. The outputs stay allocated under the name
    ``keep`` until another ``key`` is run. ``mode`` says whether gradients are off, on, or
    demanded by the inputs.
    """

    key: str
    arguments: tuple[Argument, ...]
    poison: Annotated[int, Meta(ge=0, le=255)]
    poison_bytes: tuple[int, ...]
    keep: str | None = None
    mode: Literal["no_grad", "grad", "requires_grad"] = "no_grad"


class Recall(Record, frozen=True, kw_only=True, tag="recall"):
    """Copy the kept outputs of ``key`` once more, those of every name in ``kept``, in this order."""

    key: str
    kept: tuple[str, ...]


class CheckContract(Record, frozen=True, kw_only=True, tag="check_contract"):
    """Run one contract check on the given argument sets (payloads: all storages).

    Every check uses the first set; ``dynamic_shapes`` compares all of them.
    """

    check: str
    argument_sets: Annotated[tuple[tuple[Argument, ...], ...], Meta(min_length=1)]
    autograd: bool


class TraceCalls(Record, frozen=True, kw_only=True, tag="trace_calls"):
    """Call the operator once with each argument set and say what it called (payloads: all storages).

    ``kernels`` asks for the device's kernels too (CUDA only).
    """

    argument_sets: Annotated[tuple[tuple[Argument, ...], ...], Meta(min_length=1)]
    kernels: bool


class DescribeState(Record, frozen=True, kw_only=True, tag="describe_state"):
    """Describe the process as it was before the library was opened, and as it is now."""


class TimeUnseen(Record, frozen=True, kw_only=True, tag="time_unseen"):
    """Time one call on arguments that come with this request (payloads: all storages); CPU only.

    Nothing is called between their arrival and the timed call. The result is kept as sample 0 of ``case_id``.
    """

    case_id: str
    arguments: tuple[Argument, ...]


class FetchTimedOutput(Record, frozen=True, kw_only=True, tag="fetch_timed_output"):
    """Return the output of one timed call (and which argument set it used)."""

    case_id: str
    sample: int


class FetchTimedInputs(Record, frozen=True, kw_only=True, tag="fetch_timed_inputs"):
    """Return the storages of one argument set as they are after the timed calls.

    ``place`` draws which of the copies that the last batch rotated over (0 the first).
    """

    case_id: str
    argument_set: int
    place: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0


Request = (
    Hello
    | Rouse
    | PrepareTiming
    | TimeBatch
    | MeasureTimer
    | WitnessKernels
    | PrepareRepeats
    | RunRepeats
    | FetchRepeated
    | DropTiming
    | LoadReference
    | MakeCase
    | Compare
    | AuditCase
    | Forget
    | PrepareReferenceTiming
    | LoadCandidate
    | RunCase
    | Recall
    | CheckContract
    | TraceCalls
    | DescribeState
    | TimeUnseen
    | FetchTimedOutput
    | FetchTimedInputs
)


# --------------------------------------------------------------------------- replies


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """Answer to Hello."""

    torch: str
    torch_cuda: str | None
    device: str
    device_count: int
    compute_capability: str | None = None
    device_name: str | None = None
    total_memory_bytes: int | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None


class Done(Record, frozen=True, kw_only=True, tag="done"):
    """Asked and done; nothing to tell."""


class Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """The request could not be carried out: whose fault it is follows from the request."""

    code: str
    message: str
    traceback: str = ""


class ReferenceLoaded(Record, frozen=True, kw_only=True, tag="reference_loaded"):
    """Answer to LoadReference; ``source_sha256`` hashes the modules' source files."""

    source_sha256: str
    has_cost_model: bool


class ExpectedOutput(Record, frozen=True, kw_only=True):
    """What the plan demands of one output."""

    shape: tuple[int, ...]
    dtype: str
    device: str


class CaseMade(Record, frozen=True, kw_only=True, tag="case_made"):
    """Answer to MakeCase (payloads: input storages)."""

    arguments: tuple[Argument, ...]
    expected: tuple[ExpectedOutput, ...]
    bytes_moved: int | None
    flops: int | None
    reference_within_tolerance: bool


class Compared(Record, frozen=True, kw_only=True, tag="compared"):
    """Answer to Compare."""

    numerics: Numerics


class CaseAudited(Record, frozen=True, kw_only=True, tag="case_audited"):
    """Answer to AuditCase: the null candidates that pass, by name.

    ``lower_precision`` names narrower dtypes whose rounding alone the tolerance forgives: a remark.
    """

    element_count: int
    passed: tuple[str, ...]
    lower_precision: tuple[str, ...] = ()


class CandidateLoaded(Record, frozen=True, kw_only=True, tag="candidate_loaded"):
    """Answer to LoadCandidate: the schema and kernels the dispatcher really has."""

    schema: str
    kernels: dict[str, bool]


class Ran(Record, frozen=True, kw_only=True, tag="ran"):
    """The call returned (payloads: outputs as contiguous bytes, then the input storages after it).

    Behind those follow the guard zones of each input storage: ``GUARD_BYTES`` before it and as many
    behind it, nothing for a storage without bytes. ``stray_writes`` counts the blocks that lay beside
    the outputs' memory and were written to.
    """

    outputs: tuple[OutputSpec, ...]
    input_blobs: tuple[NonNegative, ...]
    guard_blobs: tuple[NonNegative, ...]
    stray_writes: NonNegative


class Recalled(Record, frozen=True, kw_only=True, tag="recalled"):
    """Answer to Recall (payloads: outputs as contiguous bytes)."""


class Raised(Record, frozen=True, kw_only=True, tag="raised"):
    """The call raised; ``types`` is the exception's method resolution order, by name.

    ``device_lost`` says that the device no longer works in this process, so it must be replaced.
    """

    types: Annotated[tuple[str, ...], Meta(min_length=1)]
    message: str
    device_lost: bool


class ContractAnswer(Record, frozen=True, kw_only=True, tag="contract_answer"):
    """Answer to CheckContract: one verdict a sub-check."""

    results: dict[str, str | None]


class CallsTraced(Record, frozen=True, kw_only=True, tag="calls_traced"):
    """Answer to TraceCalls."""

    trace: CallTrace


class StateDescribed(Record, frozen=True, kw_only=True, tag="state_described"):
    """Answer to DescribeState."""

    before: ProcessState
    after: ProcessState


class TimerMeasured(Record, frozen=True, kw_only=True, tag="timer_measured"):
    """Answer to MeasureTimer. Floors and ticks in microseconds, bandwidth in GB/s (1e9 bytes)."""

    floor_us: float
    tick_us: float
    copy_gb_per_s: float | None
    l2_bytes: int | None


class KernelsWitnessed(Record, frozen=True, kw_only=True, tag="kernels_witnessed"):
    """Answer to WitnessKernels."""

    witness: KernelWitness


class Timed(Record, frozen=True, kw_only=True, tag="timed"):
    """Answer to TimeBatch; exposed samples and samples whose output is kept are given by index."""

    samples_us: tuple[float, ...]
    launch_exposed: tuple[int, ...]
    kept: tuple[int, ...]
    calls_per_sample: int
    floor_us: float
    tick_us: float


class Repeated(Record, frozen=True, kw_only=True, tag="repeated"):
    """Answer to RunRepeats where outputs are to be kept: the positions of the calls whose results were."""

    kept: tuple[NonNegative, ...]


class TimedOutput(Record, frozen=True, kw_only=True, tag="timed_output"):
    """Answer to FetchTimedOutput and FetchRepeated (payloads as in Ran, without inputs)."""

    argument_set: int
    outputs: tuple[OutputSpec, ...]


class TimedInputs(Record, frozen=True, kw_only=True, tag="timed_inputs"):
    """Answer to FetchTimedInputs (payloads: the set's storages)."""


Reply = (
    Ready
    | Done
    | Failed
    | ReferenceLoaded
    | CaseMade
    | Compared
    | CaseAudited
    | CandidateLoaded
    | Ran
    | Recalled
    | Raised
    | ContractAnswer
    | CallsTraced
    | StateDescribed
    | TimerMeasured
    | KernelsWitnessed
    | Timed
    | Repeated
    | TimedOutput
    | TimedInputs
)

Message = Request | Reply

_ENCODER = msgspec.json.Encoder()
_REQUESTS = msgspec.json.Decoder(Request)
_REPLIES = msgspec.json.Decoder(Reply)


def encode_prefix(header: bytes, payload_sizes: tuple[int, ...]) -> bytes:
    """Return the fixed part of a frame that carries ``header`` and payloads of these sizes."""
    sizes = struct.pack(f"<{len(payload_sizes)}Q", *payload_sizes)
    return PREFIX.pack(MAGIC, len(header), len(payload_sizes)) + sizes


def encode_message(message: Message) -> bytes:
    """Return a message's header bytes."""
    return _ENCODER.encode(message)


def decode_request(header: bytes) -> Request:
    """Decode a request header; raises :class:`ProtocolError`."""
    try:
        return _REQUESTS.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a request of this protocol: {error}") from error


def decode_reply(header: bytes) -> Reply:
    """Decode a reply header; raises :class:`ProtocolError`."""
    try:
        return _REPLIES.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a reply of this protocol: {error}") from error


def parse_prefix(raw: bytes) -> tuple[int, int]:
    """Return (header bytes, payload count); raises :class:`ProtocolError`."""
    magic, header_bytes, payloads = PREFIX.unpack(raw)
    if magic != MAGIC:
        raise ProtocolError("the frame does not begin with this protocol's magic")
    if header_bytes > MAX_HEADER_BYTES:
        raise ProtocolError(f"a header of {header_bytes} bytes passes the limit of {MAX_HEADER_BYTES}")
    if payloads > MAX_PAYLOADS:
        raise ProtocolError(f"{payloads} payloads pass the limit of {MAX_PAYLOADS}")
    return header_bytes, payloads
