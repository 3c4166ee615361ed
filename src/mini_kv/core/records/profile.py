"""One kernel under the profiler's eye, and two of them side by side."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from mini_kv.core.record import END, Record
from mini_kv.core.records.attempt import ArchivedFile
from mini_kv.core.records.card import DeviceKind, ParamValue
from mini_kv.core.records.correctness import CaseResult, Numerics
from mini_kv.core.records.results import Finding, Sha256, Status

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "WarpStateStats", "LaunchStats")

EXTRA_METRICS = (
    "dram__bytes.sum.per_second",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
)
"""Asked for by name, since not every release's sections hold them; a GPU that lacks one goes without all."""

REPLAY_NOTE = (
    "Times in a profile are those of the profiler's replays, with caches flushed and counters read; "
    "they never stand in for benchmark times."
)

Seed = Annotated[str, Meta(pattern=rf"^[0-9a-f]{{16}}{END}")]
Extent = Annotated[int, Meta(ge=1)]
Stage = Literal["profiler", "build", "load", "correctness", "capture", "analysis"]


# --------------------------------------------------------------------------- to the target process


class TargetPlan(Record, frozen=True, kw_only=True):
    """What the profiled process does: load, make the inputs, ``warmup_calls``, one call more, leave.

    ``library``, ``python`` and ``output_folder`` are absolute paths. Launches of the wanted kernel before
    the last call are skipped by the profiler's own count, so ``warmup_calls`` is that count too.
    """

    device: DeviceKind
    library: str
    library_sha256: Sha256
    python: str | None
    dispatcher: str
    schema: str
    input_factory: str
    params: dict[str, ParamValue]
    seed: Seed
    warmup_calls: Annotated[int, Meta(ge=0, le=1000)]
    output_folder: str


# --------------------------------------------------------------------------- facts


class StallReason(Record, frozen=True, kw_only=True):
    """Why warps waited: cycles a warp spends so for each instruction that is issued."""

    name: str
    cycles_per_issue: float


class KernelFacts(Record, frozen=True, kw_only=True):
    """What Nsight Compute counted of one launch. ``replay_*`` are no benchmark times (see REPLAY_NOTE).

    Fields that may be ``None`` come from :data:`EXTRA_METRICS`, or from a cache that nothing went through.
    A sector is 32 bytes; ``local_*`` is
    traffic to memory of one thread's own: spilled registers and indexed arrays. ``stalls`` are ordered,
    the largest first.
    """

    kernel: str
    function: str
    compute_capability: str
    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]
    waves_per_multiprocessor: float
    registers_per_thread: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    theoretical_occupancy_percent: float
    achieved_occupancy_percent: float
    replay_duration_us: float
    sm_throughput_percent: float
    dram_throughput_percent: float
    replay_dram_gb_per_s: float
    l1_hit_percent: float | None
    l2_hit_percent: float
    dram_read_bytes: int | None
    dram_write_bytes: int | None
    load_sectors_per_request: float | None
    store_sectors_per_request: float | None
    local_load_sectors: int | None
    local_store_sectors: int | None
    stalls: tuple[StallReason, ...]


# --------------------------------------------------------------------------- profile.json


class ProfilerRun(Record, frozen=True, kw_only=True):
    """How the profiler was run. ``command`` names this machine's folders by their role."""

    version: str
    command: tuple[str, ...]
    sections: tuple[str, ...]
    extra_metrics: tuple[str, ...]
    clock_control: Literal["none"]
    cache_control: Literal["all", "none"]
    kernel_name_regex: str
    warmup_calls: int
    returncode: int
    elapsed_s: float


class Profile(Record, frozen=True, kw_only=True):
    """``profile.json``: one case of one candidate, captured or not, bound by hash to all that decided it.

    ``failure`` says why there is no capture and ``stage`` where it ended. ``gate`` is the correctness
    gate's result for this case, ``numerics`` that of the profiled call's own output.
    """

    schema_version: str
    profile_id: str
    status: Status
    stage: Stage
    failure: Finding | None
    exit_code: int
    note: str
    task_id: str
    operator_version: str
    case_id: str
    params: dict[str, ParamValue]
    seed: Seed
    candidate_id: str
    candidate_version: str
    candidate_folder: str
    device: DeviceKind
    suite_sha256: Sha256
    card_sha256: Sha256
    manifest_sha256: Sha256
    source_sha256: dict[str, Sha256]
    reference_sha256: Sha256 | None
    build_key: Sha256 | None
    library_sha256: Sha256 | None
    environment_key: Sha256
    started_at: str
    elapsed_s: float
    profiler: ProfilerRun | None
    gate: CaseResult | None
    numerics: Numerics | None
    facts: KernelFacts | None
    files: tuple[ArchivedFile, ...]


# --------------------------------------------------------------------------- comparison of two


class ProfileSide(Record, frozen=True, kw_only=True):
    """One of two compared profiles, and what it is bound to."""

    profile_id: str
    profile_sha256: Sha256
    candidate_id: str
    candidate_version: str
    build_key: Sha256
    library_sha256: Sha256
    kernel: str
    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]


class MetricChange(Record, frozen=True, kw_only=True):
    """One metric before and after. ``ratio`` is after / before, ``None`` where that says nothing."""

    name: str
    unit: str
    before: float | None
    after: float | None
    ratio: float | None


class TimedSide(Record, frozen=True, kw_only=True):
    """One side of a timed comparison: benchmark time of the same case, never the profiler's."""

    candidate_id: str
    build_key: Sha256
    p50_us: float | None


class TimedEvidence(Record, frozen=True, kw_only=True):
    """The timed comparison that the two profiles were found to agree with, file by hash."""

    comparison_sha256: Sha256
    before: TimedSide
    after: TimedSide


class ProfileComparison(Record, frozen=True, kw_only=True):
    """What ``mini-kv compare-profiles --json`` prints. ``stalls`` hold every reason of either side."""

    schema_version: str
    note: str
    task_id: str
    case_id: str
    seed: Seed
    suite_sha256: Sha256
    environment_key: Sha256
    profiler_version: str
    before: ProfileSide
    after: ProfileSide
    metrics: tuple[MetricChange, ...]
    stalls: tuple[MetricChange, ...]
    timed: TimedEvidence | None
