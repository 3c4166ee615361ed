"""What the benchmark stage leaves: series of samples, kernel times, and the machine meanwhile."""

from __future__ import annotations

from typing import Literal

import msgspec

from mini_kv.core.record import Record
from mini_kv.core.records.card import AxisValue, DeviceKind, ParamValue
from mini_kv.core.records.results import Finding, Status


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
    ``outside_us`` is the work that no event pair around the call could see, microseconds a call: on another
    stream, and before the call began on its own or after it had ended there. ``None`` in older evidence.
    """

    kernel_us: float
    samples_us: tuple[float, ...]
    marker_us: float
    kernels: tuple[KernelSeen, ...]
    outside_us: float | None = None


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
