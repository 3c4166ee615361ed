"""The stopwatch both workers use: the same plan, the same code, on CPU and on CUDA.

CUDA: every sample is one event pair around one call. The stream is first held by a delay kernel while
a chunk of calls is enqueued, so that the host's 15-30 us a launch cannot leak into a pair; a sample
whose start event has already fired when its end has been enqueued is reported as exposed. In cold
mode a buffer of twice the L2 is overwritten before each sample, outside the pair.

CPU: every sample is one ``perf_counter_ns`` interval around enough calls to last at least 1 ms, with
one torch thread: with more, a core that is busy elsewhere stalls every parallel loop at its barrier.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from mini_kv.core.protocol import kept_call
from mini_kv.core.rules.statistics import tick_median
from mini_kv.worker.device import one_thread
from mini_kv.worker.heap import mallopt
from mini_kv.worker.output_samples import Glimpse, Looker
from mini_kv.worker.rotation import copied
from mini_kv.worker.storage import tensors_of

Call = Callable[..., object]
ArgumentSet = Sequence[object]
Seen = tuple[Glimpse | None, ...]
CacheMode = Literal["cold", "hot"]

MIN_CPU_SAMPLE_NS = 1_000_000
READY_CALLS = 3
CHUNK_SAMPLES = 20
FLOOR_SAMPLES = 60
# The delay kernel's time is DELAY_US and DELAY_FACTOR times what the host takes for the calls behind it.
DELAY_US, DELAY_FACTOR = 200.0, 2.0
# Before the host's time is known: long enough for an uncounted chunk, and for a chunk that is only enqueued.
PILOT_DELAY_US, HOST_DELAY_US = 2_000.0, 5_000.0
FLUSHED_L2 = 2
# The delay hides at most this much host time a call; an operator that needs more shows as exposed.
MAX_HOST_US = 150.0
# Outputs of timed calls are kept until the judge has named the ones to check.
KEPT_OUTPUT_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
# glibc's mallopt: what is freed stays in the process, and blocks of up to 32 MiB (the most that it takes)
# come from there. The defaults hand pages back and fault them in anew inside samples: 4 ms read as 11 ms.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_FREE_BYTES, _MMAPPED_FROM_BYTES = 1 << 30, 32 << 20
# Small objects settle between large blocks, and a gap that one of them has split holds no output any more.
_SPARE_OUTPUTS = 8
_COPY_BYTES = 512 << 20
_COPY_SAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Raw samples of one batch, in microseconds a call, and the outputs kept by sample index.

    ``seen`` holds, on the CPU, a few elements of these as they were at return.
    """

    samples_us: tuple[float, ...]
    launch_exposed: tuple[int, ...]
    calls_per_sample: int
    floor_us: float
    tick_us: float
    outputs: dict[int, object] = field(repr=False)
    seen: dict[int, Seen] = field(repr=False, default_factory=dict)


def kept_indices(result: object, iterations: int, device: str) -> range:
    """Return the samples whose outputs fit the budget: the last ones, at least one."""
    size = max(1, sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(result)))
    count = max(1, min(iterations, KEPT_OUTPUT_BYTES[device] // size))
    return range(iterations - count, iterations)


def tick_us(samples: Sequence[float]) -> float:
    """Return the smallest step between distinct readings (0.0 when all are equal)."""
    distinct = sorted(set(samples))
    # Below a nanosecond two readings differ by the float's own rounding, not by a tick.
    steps = [high - low for low, high in itertools.pairwise(distinct) if high - low > 1e-3]
    return min(steps, default=0.0)


class CpuTimer:
    """``perf_counter_ns`` around enough calls to last :data:`MIN_CPU_SAMPLE_NS`."""

    def __init__(self) -> None:
        _keep_freed_memory()

    def batch(
        self,
        call: Call,
        sets: Sequence[ArgumentSet],
        *,
        warmup: int,
        iterations: int,
        calls_per_sample: int,
        cache: CacheMode,
        kept_at: float = 1.0,
    ) -> Batch:
        """Take the samples; inputs rotate from call to call (there is no L2 to clear outside a pair)."""
        with one_thread():
            return self._batch(call, sets, warmup, iterations, calls_per_sample, cache, kept_at)

    def _batch(
        self,
        call: Call,
        sets: Sequence[ArgumentSet],
        warmup: int,
        iterations: int,
        calls_per_sample: int,
        cache: CacheMode,
        kept_at: float,
    ) -> Batch:
        result = _warm(call, sets, warmup)
        calls = calls_per_sample or self._calls_for_a_sample(call, sets)
        keep = kept_indices(result, iterations, "cpu")
        _grow_pool(result, len(keep) + _SPARE_OUTPUTS)
        # The judge says which call is kept: one that does its work on some calls only must not know which.
        kept_in_sample = kept_call(kept_at, calls) + 1
        kept: object = None
        outputs: dict[int, object] = {}
        seen: dict[int, Seen] = {}
        looker = Looker()
        looker.look(result)
        samples: list[float] = []
        clock = time.perf_counter_ns
        count = len(sets)
        with QuietCollector():
            for sample in range(iterations):
                first = sample * calls
                start = clock()
                for position in range(first, first + kept_in_sample):
                    kept = call(*sets[position % count])
                elapsed_ns = clock() - start
                if sample in keep:
                    outputs[sample] = kept
                    seen[sample] = looker.look(kept)
                start = clock()
                for position in range(first + kept_in_sample, first + calls):
                    call(*sets[position % count])
                elapsed_ns += clock() - start
                samples.append(elapsed_ns / 1000.0 / calls)
        floor_us, _ = self.floor(cache)
        resolution_us = time.get_clock_info("perf_counter").resolution * 1e6
        return Batch(
            samples_us=tuple(samples),
            launch_exposed=(),
            calls_per_sample=calls,
            floor_us=floor_us,
            tick_us=resolution_us / calls,
            outputs=outputs,
            seen=seen,
        )

    def ready(self, call: Call, sets: Sequence[ArgumentSet], calls: int) -> None:
        """Spend what only first calls cost, and leave the collector off; ``calls`` on other sets follow."""
        with one_thread():
            # What comes takes memory too: as it is received, and where the calls find it.
            held = [copied(sets[0]) for _ in range(2 * calls)]
            _grow_pool(call(*sets[0]), calls + _SPARE_OUTPUTS)
            del held
            gc.collect()
            gc.disable()
            _warm(call, sets, READY_CALLS)

    def floor(self, cache: CacheMode) -> tuple[float, float]:
        """Return what the loop and an empty Python call cost, and the clock's resolution."""
        calls = 10_000
        samples = []
        for _ in range(9):
            start = time.perf_counter_ns()
            for _ in range(calls):
                _nothing()
            samples.append((time.perf_counter_ns() - start) / 1000.0 / calls)
        return statistics.median(samples), time.get_clock_info("perf_counter").resolution * 1e6

    def copy_gb_per_s(self) -> float | None:
        """Time copies of 64 MiB between two CPU buffers."""
        size = 64 << 20
        source = torch.ones(size, dtype=torch.uint8)
        target = torch.zeros(size, dtype=torch.uint8)
        rates = []
        for _ in range(7):
            start = time.perf_counter_ns()
            target.copy_(source)
            rates.append(2.0 * size / (time.perf_counter_ns() - start))
        return statistics.median(rates)

    def _calls_for_a_sample(self, call: Call, sets: Sequence[ArgumentSet]) -> int:
        calls = 1
        while True:
            start = time.perf_counter_ns()
            for position in range(calls):
                call(*sets[position % len(sets)])
            elapsed_ns = time.perf_counter_ns() - start
            if elapsed_ns >= MIN_CPU_SAMPLE_NS:
                return calls
            # Aim a quarter above the minimum, so that a slightly faster sample still reaches it.
            grow = 1.25 * MIN_CPU_SAMPLE_NS / max(elapsed_ns, 1)
            calls = max(calls + 1, min(int(calls * grow) + 1, calls * 100))


class CudaTimer:
    """Event pairs on the current stream, with the host hidden behind a delay kernel."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        self._flush: torch.Tensor | None = None
        self._runtime = _loaded_cuda_runtime()
        self._cycles_per_us = self._calibrate_delay()

    def batch(
        self,
        call: Call,
        sets: Sequence[ArgumentSet],
        *,
        warmup: int,
        iterations: int,
        calls_per_sample: int,
        cache: CacheMode,
        kept_at: float = 1.0,
    ) -> Batch:
        """Take the samples, :data:`CHUNK_SAMPLES` behind each delay."""
        if cache == "cold" and self._runtime is not None:
            # Lines that some kernel pinned would survive the overwriting.
            self._runtime.cudaCtxResetPersistingL2Cache()
        floor_us, floor_tick_us = self.floor(cache)
        result = _warm(call, sets, warmup)
        torch.cuda.synchronize(self._device)
        keep = kept_indices(result, iterations, "cuda")
        _grow_pool(result, len(keep))
        outputs: dict[int, object] = {}
        samples, exposed = self._samples(call, sets, iterations, cache, keep, outputs)
        return Batch(
            samples_us=tuple(samples),
            launch_exposed=tuple(exposed),
            calls_per_sample=1,
            floor_us=floor_us,
            tick_us=tick_us(samples) or floor_tick_us,
            outputs=outputs,
        )

    def floor(self, cache: CacheMode) -> tuple[float, float]:
        """Time an empty kernel (a delay of zero cycles) exactly as a call is timed."""
        samples, _ = self._samples(_empty_kernel, ((),), FLOOR_SAMPLES, cache, range(0), {})
        tick = tick_us(samples)
        return tick_median(samples, tick), tick

    def copy_gb_per_s(self) -> float | None:
        """Time device-to-device copies far larger than the L2; median of :data:`_COPY_SAMPLES`."""
        source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        samples, _ = self._samples(target.copy_, ((source,),), _COPY_SAMPLES, "hot", range(0), {})
        return 2.0 * _COPY_BYTES / (statistics.median(samples) * 1e3)

    def _samples(
        self,
        call: Call,
        sets: Sequence[ArgumentSet],
        iterations: int,
        cache: CacheMode,
        keep: range,
        outputs: dict[int, object],
    ) -> tuple[list[float], list[int]]:
        # A pilot, which is not counted.
        self._enqueue(call, sets, range(CHUNK_SAMPLES), cache, PILOT_DELAY_US, range(0), {})
        host_us = self._host_us_a_sample(call, sets, cache)
        samples: list[float] = []
        exposed: list[int] = []
        with QuietCollector():
            for first in range(0, iterations, CHUNK_SAMPLES):
                chunk = range(first, min(first + CHUNK_SAMPLES, iterations))
                delay_us = DELAY_US + DELAY_FACTOR * host_us * len(chunk)
                taken, late = self._enqueue(call, sets, chunk, cache, delay_us, keep, outputs)
                samples += taken
                exposed += late
                if late:
                    # A slow stretch of the host is met with a longer delay; a slow operator stays exposed.
                    host_us = min(2.0 * host_us, MAX_HOST_US)
        return samples, exposed

    def _enqueue(
        self,
        call: Call,
        sets: Sequence[ArgumentSet],
        chunk: range,
        cache: CacheMode,
        delay_us: float,
        keep: range,
        outputs: dict[int, object],
    ) -> tuple[list[float], list[int]]:
        starts = [torch.cuda.Event(enable_timing=True) for _ in chunk]
        ends = [torch.cuda.Event(enable_timing=True) for _ in chunk]
        late: list[int] = []
        cold = cache == "cold"
        if cold:
            self._flush_buffer()
        torch.cuda.synchronize(self._device)
        torch.cuda._sleep(int(delay_us * self._cycles_per_us))
        for start, end, sample in zip(starts, ends, chunk, strict=True):
            arguments = sets[sample % len(sets)]
            if cold:
                self.clear_cache(sample)
            start.record()
            result = call(*arguments)
            end.record()
            if start.query():
                late.append(sample)
            if sample in keep:
                outputs[sample] = result
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) * 1e3 for start, end in zip(starts, ends, strict=True)], late

    def _host_us_a_sample(self, call: Call, sets: Sequence[ArgumentSet], cache: CacheMode) -> float:
        # Enqueue behind a long delay and look at the host's clock only: the device is not waited for.
        torch.cuda.synchronize(self._device)
        torch.cuda._sleep(int(HOST_DELAY_US * self._cycles_per_us))
        cold = cache == "cold"
        begin = time.perf_counter_ns()
        for sample in range(CHUNK_SAMPLES):
            event = torch.cuda.Event(enable_timing=True)
            if cold:
                self.clear_cache(sample)
            event.record()
            call(*sets[sample % len(sets)])
            event.record()
            event.query()
        elapsed_us = (time.perf_counter_ns() - begin) / 1e3
        torch.cuda.synchronize(self._device)
        # A call that waits for the device would read as milliseconds here: bounded, then reported as exposed.
        return min(elapsed_us / CHUNK_SAMPLES, MAX_HOST_US)

    def clear_cache(self, position: int) -> None:
        """Overwrite a buffer of twice the L2, with another value each time, on the current stream."""
        self._flush_buffer().fill_(position & 0x7F)

    def _flush_buffer(self) -> torch.Tensor:
        if self._flush is None:
            self._flush = torch.empty(FLUSHED_L2 * self.l2_bytes, dtype=torch.uint8, device=self._device)
        return self._flush

    def _calibrate_delay(self) -> float:
        cycles = 2_000_000
        torch.cuda._sleep(cycles)
        readings: list[float] = []
        for _ in range(5):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
            readings.append(cycles / (start.elapsed_time(end) * 1e3))
        return statistics.median(readings)


def _grow_pool(result: object, count: int) -> None:
    # Outputs of timed calls are kept: let the allocator fetch that memory before the first sample, and on
    # the CPU the kernel its pages, which are nowhere until they are written.
    tensors = tensors_of(result)
    held = [[torch.empty_like(tensor) for tensor in tensors] for _ in range(count)]
    for tensor in itertools.chain.from_iterable(held):
        if tensor.device.type == "cpu":
            tensor.zero_()


def _keep_freed_memory() -> None:
    tune = mallopt()
    if tune is not None:
        tune(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
        tune(_M_MMAP_THRESHOLD, _MMAPPED_FROM_BYTES)


def _loaded_cuda_runtime() -> ctypes.CDLL | None:
    # torch brings its own runtime library; another copy would have a state of its own.
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart.so" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[5])
    return None


def _warm(call: Call, sets: Sequence[ArgumentSet], warmup: int) -> object:
    result: object = None
    for position in range(max(warmup, 1)):
        result = call(*sets[position % len(sets)])
    return result


def _empty_kernel() -> None:
    torch.cuda._sleep(0)


def _nothing() -> None:
    return None


class QuietCollector:
    """The garbage collector may pause a sample for milliseconds; it runs between batches instead."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


def timer_for(device: torch.device) -> CpuTimer | CudaTimer:
    """Return the stopwatch of a device."""
    return CudaTimer(device) if device.type == "cuda" else CpuTimer()
