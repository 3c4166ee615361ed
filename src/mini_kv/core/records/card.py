"""Task Card and candidate manifest: what is tested, and what claims to pass."""

from __future__ import annotations

import enum
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mini_kv.core.dtypes import DTypeName
from mini_kv.core.record import END, Record

SCHEMA_VERSION = "1.0.0"

# An axis of 8 to 16 points a decade is a curve; more only costs time.
MAX_AXES = 8
MAX_AXIS_VALUES = 64
MAX_CASES = 4096

IDENTIFIER = rf"^[a-z][a-z0-9_]{{0,63}}{END}"
AXIS_NAME = rf"^[a-z][a-z0-9_]{{0,15}}{END}"
SEMANTIC_VERSION = rf"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*){END}"
IMPORT_PATH = rf"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*{END}"
DISPATCHER_NAME = rf"^[A-Za-z_][A-Za-z0-9_]*::[A-Za-z_][A-Za-z0-9_]*{END}"
# A record of another major version must not slip through a reader of this one.
SAME_MAJOR = rf"^{SCHEMA_VERSION.partition('.')[0]}\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*){END}"
EXCEPTION_NAME = rf"^[A-Za-z_][A-Za-z0-9_.]*{END}"

# Folders of an archive that hold other evidence, as well as those of the tasks.
PROFILES_FOLDER = "profiles"
COMPARISONS_FOLDER = "comparisons"
RESERVED_TASK_IDS = frozenset({PROFILES_FOLDER, COMPARISONS_FOLDER})

Identifier = Annotated[str, Meta(pattern=IDENTIFIER)]
SemanticVersion = Annotated[str, Meta(pattern=SEMANTIC_VERSION)]
ImportPath = Annotated[str, Meta(pattern=IMPORT_PATH)]
DispatcherName = Annotated[str, Meta(pattern=DISPATCHER_NAME)]
RelativePath = Annotated[str, Meta(min_length=1, max_length=512)]

DeviceRequest = Literal["cuda", "cpu", "auto"]
DeviceKind = Literal["cuda", "cpu"]

Scalar = bool | int | float | str
ParamValue = Scalar | tuple[Scalar, ...]
AxisValue = int | float | str


class CaseKind(enum.Enum):
    """The input classes: what ``cases[].kind`` may be."""

    CORE = "core"
    BOUNDARY = "boundary"
    VALUE = "value"
    LAYOUT = "layout"
    ILLEGAL = "illegal"
    BENCHMARK = "benchmark"


class Raises(Record, frozen=True, kw_only=True):
    """What an illegal case must raise: the exception's class name and a part of its message."""

    exception: Annotated[str, Meta(pattern=EXCEPTION_NAME)]
    message: Annotated[str, Meta(min_length=1, max_length=200)]


class Case(Record, frozen=True, kw_only=True):
    """One input class. ``params`` goes to the input factory as it stands."""

    id: Identifier
    kind: CaseKind
    params: dict[str, ParamValue]
    raises: Raises | None = None


class Tolerance(Record, frozen=True, kw_only=True):
    """``|candidate - reference| <= atol + rtol * |reference|``, element by element."""

    rtol: Annotated[float, Meta(ge=0.0, le=1.0)]
    atol: Annotated[float, Meta(ge=0.0)]


class Contract(Record, frozen=True, kw_only=True):
    """What the candidate must keep beyond the right numbers, and what it may do.

    ``allow_library_calls``: computing operators of PyTorch and kernels of vendors' libraries.
    ``allow_workspace``: memory of torch's allocator that outlives a call's results.
    ``allow_global_state``: changes of the process, such as torch's flags, threads, the environment.
    ``secret_shapes``: the operator takes any ``shape`` like those of the core cases, so unseen ones count.
    """

    functional: bool = True
    opcheck: bool = True
    gradcheck: bool = True
    deterministic: bool = True
    streams: bool = True
    allow_library_calls: bool = True
    allow_workspace: bool = True
    allow_global_state: bool = False
    secret_shapes: bool = True


class PowersOfTwo(Record, frozen=True, kw_only=True):
    """All powers of two from the first to the last, both of them included."""

    first: Annotated[int, Meta(ge=1, le=1 << 40)] = msgspec.field(name="from")
    last: Annotated[int, Meta(ge=1, le=1 << 40)] = msgspec.field(name="to")


class SweepAxis(Record, frozen=True, kw_only=True):
    """Times a template case once for each value of one of its parameters (or of one position in a list).

    Exactly one of ``values`` and ``powers_of_two`` says which values; see ``core.rules.axes``.
    """

    name: Annotated[str, Meta(pattern=AXIS_NAME)]
    case: Identifier
    param: Identifier
    position: Annotated[int, Meta(ge=0)] | None = None
    values: Annotated[tuple[AxisValue, ...], Meta(min_length=1, max_length=MAX_AXIS_VALUES)] | None = None
    powers_of_two: PowersOfTwo | None = None


class BenchmarkPlan(Record, frozen=True, kw_only=True):
    """What is timed and how often: ``repeats`` x ``iterations`` samples a side and case.

    The cases that ``axes`` generate are timed as well as those of ``case_ids``.
    """

    case_ids: Annotated[tuple[Identifier, ...], Meta(min_length=1)]
    primary_case_id: Identifier
    warmup: Annotated[int, Meta(ge=1, le=10_000)] = 20
    iterations: Annotated[int, Meta(ge=1, le=10_000)] = 100
    repeats: Annotated[int, Meta(ge=1, le=100)] = 5
    cache: Literal["cold", "hot"] = "cold"
    axes: Annotated[tuple[SweepAxis, ...], Meta(max_length=MAX_AXES)] = ()


class TaskCard(Record, frozen=True, kw_only=True):
    """One Task Card, already validated; paths are project-relative POSIX strings."""

    schema_version: str
    task_id: Identifier
    operator: Identifier
    operator_version: SemanticVersion
    reference: ImportPath
    input_factory: ImportPath
    candidate: RelativePath
    device: DeviceRequest
    cases: Annotated[tuple[Case, ...], Meta(min_length=1, max_length=MAX_CASES)]
    tolerances: dict[DTypeName, Tolerance]
    contract: Contract
    benchmark: BenchmarkPlan

    def case(self, case_id: str) -> Case:
        """Return the case with that id; raises ``KeyError``."""
        for case in self.cases:
            if case.id == case_id:
                return case
        raise KeyError(case_id)


class CandidateManifest(Record, frozen=True, kw_only=True):
    """``candidate.yaml``: what the candidate is called, built from, and claims."""

    schema_version: str
    candidate_id: Identifier
    operator: Identifier
    version: SemanticVersion
    dispatcher: DispatcherName
    schema: Annotated[str, Meta(min_length=3, max_length=2000)]
    sources: Annotated[tuple[RelativePath, ...], Meta(min_length=1, max_length=64)]
    cxx_flags: tuple[str, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    backends: Annotated[tuple[Literal["cpu", "cuda", "meta"], ...], Meta(min_length=1)]
    autograd: bool
    python: RelativePath | None = None
    kernel_name_regex: Annotated[str, Meta(min_length=1, max_length=200)]
    dtypes: Annotated[tuple[DTypeName, ...], Meta(min_length=1)]


def is_readable_version(schema_version: str) -> bool:
    """Say whether this mini-kv reads records of that schema version: of the same major one."""
    return re.search(SAME_MAJOR, schema_version) is not None
