"""How true the timer reads: spin kernels of known length through the product's own stopwatch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from mini_kv.core.record import Record
from mini_kv.core.records.card import DeviceKind

Positive = Annotated[float, Meta(gt=0.0)]


class SpinReading(Record, frozen=True, kw_only=True):
    """One spin length in one fresh process; times in microseconds a call.

    ``true_us`` is the kernel's whole device time by its own stamps: the stamped spin plus what every
    launch adds around it. ``net_us`` is what the timer reads, net of the process's own empty call;
    ``witness_us`` is CUPTI's kernel time (``None`` on the CPU, and for the longer of two lengths).
    """

    process: int
    nominal_us: Positive
    true_us: float
    p50_us: float
    floor_us: float
    net_us: float
    witness_us: float | None
    launch_exposed: int


class SpinRatio(Record, frozen=True, kw_only=True):
    """A spin of 1.05 x ``nominal_us`` next to one of ``nominal_us`` in the same process."""

    process: int
    nominal_us: Positive
    true_ratio: float
    read_ratio: float


class CalibrationLength(Record, frozen=True, kw_only=True):
    """Medians over the processes for one length, and the spread of the net time between them."""

    nominal_us: Positive
    true_us: float
    net_us: float
    witness_us: float | None
    net_spread_us: float
    error_us: float


class WideReading(Record, frozen=True, kw_only=True):
    """A kernel of ``blocks`` blocks of 256 threads in one fresh process, in microseconds a call.

    Each block spins for the same time, or each thread copies one 2-byte element (``work``).

    ``stamped_us`` is the time from the first block's start to the last one's end by the global timer, in
    the calls that were timed; ``witness_stamped_us`` the same in the calls that CUPTI watched. ``net_us``
    is what the timer reads and ``witness_us`` CUPTI's kernel time.
    """

    process: int
    work: Literal["spin", "copy"]
    blocks: Annotated[int, Meta(ge=1)]
    stamped_us: float
    net_us: float
    witness_us: float
    witness_stamped_us: float


class CalibrationBar(Record, frozen=True, kw_only=True):
    """One demand on the timer, what was found, and whether it holds."""

    name: str
    demand: str
    found: str
    passed: bool


class Calibration(Record, frozen=True, kw_only=True):
    """``calibration.json``.

    ``global_timer_step_ns`` is the step of the GPU's global timer, ``ns_per_cycle`` that of the clock the
    kernels spin by, in nanoseconds of the global timer; ``launch_overhead_us`` is the part of a kernel's
    device time that lies outside its own stamps; ``outside_us`` the longest spin's time a call by the
    judge's own clock, over replays of a graph.
    """

    schema_version: str
    device: DeviceKind
    device_name: str
    torch: str
    timer: str
    processes: int
    global_timer_step_ns: float | None
    ns_per_cycle: float
    launch_overhead_us: float
    slope: float
    intercept_us: float
    outside_us: float | None
    lengths: tuple[CalibrationLength, ...]
    readings: tuple[SpinReading, ...]
    ratios: tuple[SpinRatio, ...]
    wide: tuple[WideReading, ...] = ()
    bars: tuple[CalibrationBar, ...]
    passed: bool
    elapsed_s: float
