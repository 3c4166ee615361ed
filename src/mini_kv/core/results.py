"""What each stage leaves: frozen records, each with its status, code and evidence."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mini_kv.core.card import AxisValue, CandidateManifest, CaseKind, DeviceKind, ParamValue
from mini_kv.core.device_code import DeviceCode
from mini_kv.core.record import Record
from mini_kv.core.tensors import OutputSpec

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Status(enum.Enum):
    """The state of one axis or one check. Only explicit evidence gives PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    INVALID = "INVALID"
    ERROR = "ERROR"
    UNVERIFIED = "UNVERIFIED"
    SKIPPED = "SKIPPED"


class Finding(Record, frozen=True, kw_only=True):
    """Why something is not PASS, or worth a remark: code, sentence, evidence."""

    code: str
    message: str
    evidence: tuple[str, ...] = ()


# --------------------------------------------------------------------------- environment


class GpuFacts(Record, frozen=True, kw_only=True):
    """Facts of one GPU as NVML and torch give them; jittery readings stay out of the key."""

    index: int
    name: str
    uuid: str | None
    compute_capability: str
    total_memory_bytes: int
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    memory_clock_mhz: int | None = None
    memory_bus_bits: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None


class ToolFact(Record, frozen=True, kw_only=True):
    """One tool found (or not) on this machine."""

    name: str
    path: str | None
    version: str | None


class Environment(Record, frozen=True, kw_only=True):
    """``environment.json``. ``key`` hashes ``KEY_FIELDS`` and nothing that jitters."""

    schema_version: str
    key: Sha256
    device: DeviceKind
    os: str
    kernel: str
    machine: str
    cpu_model: str
    cpu_count: int
    memory_bytes: int
    python: str
    mini_kv: str
    torch: str
    torch_cuda: str | None
    driver: str | None
    gpus: tuple[GpuFacts, ...]
    tools: tuple[ToolFact, ...]
    timer_plan: str
    isolation: str
    isolation_features: tuple[str, ...] = ()


# --------------------------------------------------------------------------- compile


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


# --------------------------------------------------------------------------- correctness


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
    seed: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]
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
    """``correctness.json``."""

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


# --------------------------------------------------------------------------- benchmark


class Series(Record, frozen=True, kw_only=True):
    """Raw samples of one side and case, in the order taken, and what follows from them.

    ``samples_us[r][i]`` is sample ``i`` of repeat ``r``. ``floor_us`` is what this process's timer adds
    to a call: on CUDA its empty event pair less the empty kernel's own device time, on the CPU the loop
    and an empty call. ``net_p50_us`` is ``p50_us`` less that. ``robust_cv`` is of the repeats' P50s and
    never below what the clock's tick leaves unknown.
    """

    samples_us: tuple[tuple[float, ...], ...]
    calls_per_sample: int
    launch_exposed: int
    p50_us: float
    p95_us: float
    min_us: float
    mean_us: float
    std_us: float
    cv: float
    floor_us: float
    tick_us: float
    net_p50_us: float
    repeat_p50_us: tuple[float, ...]
    repeat_p95_us: tuple[float, ...]
    mad_us: float
    robust_cv: float
    robust_cv_p95: float


class KernelSeen(Record, frozen=True, kw_only=True):
    """One kernel, copy or fill the device ran inside the traced calls."""

    name: str
    launches_per_call: float
    median_us: float


class KernelWitness(Record, frozen=True, kw_only=True):
    """Device-side times by CUPTI: per traced call the union of all its activities, on any stream.

    ``marker_us`` is an empty kernel's own device time, the part of the event floor that is kernel.
    """

    kernel_us: float
    samples_us: tuple[float, ...]
    marker_us: float
    kernels: tuple[KernelSeen, ...]


class Telemetry(Record, frozen=True, kw_only=True):
    """One reading of one GPU. ``None`` where the driver does not tell.

    ``process_ids`` are all that hold a compute context, this run's own workers among them; inside a
    container they may be the host's numbers or missing.
    """

    index: int
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    utilization_percent: int | None
    throttle_reasons: tuple[str, ...]
    process_ids: tuple[int, ...]


TimingTrust = Literal["verified", "bounded", "unverified"]


class BenchmarkCase(Record, frozen=True, kw_only=True):
    """One timed case. ``stable`` is the quality gate's word; ``findings`` says why not.

    ``axis_values`` says where the case lies on the card's axes, by axis name.
    """

    case_id: str
    status: Status
    stable: bool
    findings: tuple[Finding, ...]
    params: dict[str, ParamValue]
    candidate: Series | None
    reference: Series | None
    speedup: float | None
    bytes_moved: int | None
    flops: int | None
    gb_per_s: float | None
    gflop_per_s: float | None
    percent_of_copy_bandwidth: float | None
    floor_bound_us: float | None
    candidate_kernel: KernelWitness | None
    reference_kernel: KernelWitness | None
    kernel_speedup: float | None
    outside_us: float | None
    timing_trust: TimingTrust
    checked_outputs: int
    tries: int
    batch_order: tuple[str, ...]
    axis_values: dict[str, AxisValue] = msgspec.field(default_factory=dict)


class Benchmark(Record, frozen=True, kw_only=True):
    """``benchmark.json``."""

    schema_version: str
    status: Status
    device: DeviceKind
    timer: str
    cache: Literal["cold", "hot"]
    stable: bool
    cases: tuple[BenchmarkCase, ...]
    primary_case_id: str
    geomean_speedup: float | None
    copy_gb_per_s: float | None
    peak_gb_per_s: float | None
    l2_bytes: int | None
    telemetry: tuple[Telemetry, ...]
    elapsed_s: float


# --------------------------------------------------------------------------- regression


class Decision(enum.Enum):
    """The gate's vocabulary (SPEC 7)."""

    PASS = "PASS"
    PASS_WITH_WARNING = "PASS_WITH_WARNING"
    SLOWER = "SLOWER"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INCOMPARABLE = "INCOMPARABLE"
    NO_BASELINE = "NO_BASELINE"


class PairedTest(Record, frozen=True, kw_only=True):
    """Candidate against rebuilt baseline over pairs of fresh processes, in net time.

    ``ratio`` is the geometric mean of candidate / baseline (> 1 is slower), ``lower`` and ``upper`` its
    one-sided bounds; ``adjusted_p_value`` is after Holm's correction over the cases. ``set_ratios`` are
    the same mean of each set of pairs alone: a second set is taken where the first leaves a doubt.
    """

    pairs: int
    ratio: float
    lower: float
    upper: float
    p_value: float
    adjusted_p_value: float
    log_ratios: tuple[float, ...] = ()
    set_ratios: tuple[float, ...] = ()


class CaseComparison(Record, frozen=True, kw_only=True):
    """Current against baseline for one case; ratios are current / baseline, > 1 is slower."""

    case_id: str
    decision: Decision
    code: str
    message: str
    p50_ratio: float | None
    p95_ratio: float | None
    reference_ratio: float | None
    confirmation_p50_ratio: float | None = None
    paired: PairedTest | None = None


class Regression(Record, frozen=True, kw_only=True):
    """``regression.json``."""

    schema_version: str
    decision: Decision
    code: str
    message: str
    baseline: str | None
    baseline_sha256: Sha256 | None
    cases: tuple[CaseComparison, ...]


# --------------------------------------------------------------------------- attempt


class ArchivedFile(Record, frozen=True, kw_only=True):
    """One file of an attempt's folder, by POSIX path relative to it."""

    path: str
    sha256: Sha256
    size_bytes: int


class Axis(Record, frozen=True, kw_only=True):
    """One axis of the verdict."""

    name: str
    status: Status
    code: str | None
    message: str | None


class Attempt(Record, frozen=True, kw_only=True):
    """``attempt.json``: the verdict and the hash of every other file in the folder."""

    schema_version: str
    attempt_id: str
    task_id: str
    operator: str
    operator_version: str
    candidate_id: str
    candidate_version: str
    candidate_folder: str
    device: DeviceKind | None
    suite_sha256: Sha256
    environment_key: Sha256 | None
    build_key: Sha256 | None
    reference_sha256: Sha256 | None
    started_at: str
    elapsed_s: float
    stage_elapsed_s: dict[str, float]
    complete: bool
    accepted: bool
    exit_code: int
    axes: tuple[Axis, ...]
    findings: tuple[Finding, ...]
    secret_seeds: dict[str, str]
    benchmark_stable: bool | None
    geomean_speedup: float | None
    primary_p50_us: float | None
    files: tuple[ArchivedFile, ...]


class IndexRow(Record, frozen=True, kw_only=True):
    """One attempt as the index knows it; ``attempt_sha256`` is of ``attempt.json`` itself.

    ``correct`` leaves speed aside: an attempt that only its regression gate failed is correct.
    """

    task_id: str
    attempt_id: str
    path: str
    attempt_sha256: Sha256
    candidate_id: str
    candidate_version: str
    device: DeviceKind | None
    suite_sha256: Sha256
    environment_key: Sha256 | None
    environment: str | None
    started_at: str
    complete: bool
    accepted: bool
    correct: bool
    benchmark_stable: bool | None
    geomean_speedup: float | None
    primary_p50_us: float | None
    exit_code: int


class ArtifactIndex(Record, frozen=True, kw_only=True):
    """``artifact_index.json``: every attempt found in the folders, ordered by task and id.

    ``damaged`` names what looked like an attempt and could not be trusted; it is not among ``attempts``.
    """

    schema_version: str
    attempts: tuple[IndexRow, ...]
    damaged: tuple[Finding, ...] = ()


class LeaderboardRow(Record, frozen=True, kw_only=True):
    """One ranked candidate."""

    rank: int
    candidate_id: str
    candidate_version: str
    attempt_id: str
    geomean_speedup: float
    primary_p50_us: float | None
    started_at: str


class LeaderboardGroup(Record, frozen=True, kw_only=True):
    """Rows that may be compared: same task, suite and environment key."""

    task_id: str
    suite_sha256: Sha256
    environment_key: Sha256
    device: DeviceKind
    environment: str
    rows: tuple[LeaderboardRow, ...]


class Leaderboard(Record, frozen=True, kw_only=True):
    """What ``mini-kv leaderboard --json`` prints."""

    schema_version: str
    groups: tuple[LeaderboardGroup, ...]


class Baseline(Record, frozen=True, kw_only=True):
    """A promoted attempt: raw samples, sources and everything comparison needs."""

    schema_version: str
    promoted_at: str
    attempt: Attempt
    attempt_sha256: Sha256
    candidate_manifest: CandidateManifest
    environment: Environment
    benchmark: Benchmark
    sources: dict[str, str]
    sources_sha256: dict[str, Sha256]
