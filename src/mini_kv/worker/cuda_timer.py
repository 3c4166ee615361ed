"""The stopwatch on a GPU, the same in both workers.

Every sample is one event pair around one call. The stream is first held by a delay kernel while a chunk of
calls is enqueued, so that the host's 15-30 us a launch cannot leak into a pair; a sample whose start event
has already fired when its end has been enqueued is reported as exposed. In cold mode a buffer of twice the
L2 is overwritten before each sample, outside the pair.

All of this is part of the timer plan: another value, call or order changes measured times, and needs a new
name in ``benchmark.plan.TIMER_PLAN``. A test holds the code against the fingerprint that stands there.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from mini_kv.core.rules.statistics import tick_median
from mini_kv.worker.batches import (
    ArgumentSet,
    Batch,
    BatchPlan,
    CacheMode,
    Call,
    QuietCollector,
    grow_pool,
    kept_indices,
    tick_us,
    warm,
)

CHUNK_SAMPLES = 20
FLOOR_SAMPLES = 60
# The delay kernel's time is DELAY_US and DELAY_FACTOR times what the host takes for the calls behind it.
DELAY_US, DELAY_FACTOR = 200.0, 2.0
# Before the host's time is known: long enough for an uncounted chunk, and for a chunk that is only enqueued.
PILOT_DELAY_US, HOST_DELAY_US = 2_000.0, 5_000.0
FLUSHED_L2 = 2
# The delay hides at most this much host time a call; an operator that needs more shows as exposed.
MAX_HOST_US = 150.0
_COPY_BYTES = 512 << 20
_COPY_SAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """What is timed sample by sample: ``outputs`` takes the results of the samples in ``keep``."""

    call: Call
    sets: Sequence[ArgumentSet]
    cache: CacheMode
    keep: range = range(0)
    outputs: dict[int, object] = field(default_factory=dict)


class CudaTimer:
    """Event pairs on the current stream, with the host hidden behind a delay kernel."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        self._flush: torch.Tensor | None = None
        self._runtime = _loaded_cuda_runtime()
        self._cycles_per_us = self._calibrate_delay()

    def batch(self, call: Call, sets: Sequence[ArgumentSet], plan: BatchPlan) -> Batch:
        """Take the samples, :data:`CHUNK_SAMPLES` behind each delay; every sample is one call."""
        if plan.cache == "cold" and self._runtime is not None:
            # Lines that some kernel pinned would survive the overwriting.
            self._runtime.cudaCtxResetPersistingL2Cache()
        floor_us, floor_tick_us = self.floor(plan.cache)
        result = warm(call, sets, plan.warmup)
        torch.cuda.synchronize(self._device)
        keep = kept_indices(result, plan.iterations, "cuda")
        grow_pool(result, len(keep))
        calls = _Calls(call=call, sets=sets, cache=plan.cache, keep=keep)
        samples, exposed = self._samples(calls, plan.iterations)
        return Batch(
            samples_us=tuple(samples),
            launch_exposed=tuple(exposed),
            calls_per_sample=1,
            floor_us=floor_us,
            tick_us=tick_us(samples) or floor_tick_us,
            outputs=calls.outputs,
        )

    def floor(self, cache: CacheMode) -> tuple[float, float]:
        """Time an empty kernel (a delay of zero cycles) exactly as a call is timed."""
        samples, _ = self._samples(_Calls(call=_empty_kernel, sets=((),), cache=cache), FLOOR_SAMPLES)
        tick = tick_us(samples)
        return tick_median(samples, tick), tick

    def copy_gb_per_s(self) -> float | None:
        """Time device-to-device copies far larger than the L2; median of :data:`_COPY_SAMPLES`."""
        source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        copies = _Calls(call=target.copy_, sets=((source,),), cache="hot")
        samples, _ = self._samples(copies, _COPY_SAMPLES)
        return 2.0 * _COPY_BYTES / (statistics.median(samples) * 1e3)

    def _samples(self, calls: _Calls, iterations: int) -> tuple[list[float], list[int]]:
        # A pilot, which is not counted, and of which nothing is kept.
        self._enqueue(replace(calls, keep=range(0), outputs={}), range(CHUNK_SAMPLES), PILOT_DELAY_US)
        host_us = self._host_us_a_sample(calls)
        samples: list[float] = []
        exposed: list[int] = []
        with QuietCollector():
            for first in range(0, iterations, CHUNK_SAMPLES):
                chunk = range(first, min(first + CHUNK_SAMPLES, iterations))
                delay_us = DELAY_US + DELAY_FACTOR * host_us * len(chunk)
                taken, late = self._enqueue(calls, chunk, delay_us)
                samples += taken
                exposed += late
                if late:
                    # A slow stretch of the host is met with a longer delay; a slow operator stays exposed.
                    host_us = min(2.0 * host_us, MAX_HOST_US)
        return samples, exposed

    def _enqueue(self, calls: _Calls, chunk: range, delay_us: float) -> tuple[list[float], list[int]]:
        # Names of this function alone: between the events of a pair nothing is looked up in a record.
        call, sets, keep, outputs = calls.call, calls.sets, calls.keep, calls.outputs
        starts = [torch.cuda.Event(enable_timing=True) for _ in chunk]
        ends = [torch.cuda.Event(enable_timing=True) for _ in chunk]
        late: list[int] = []
        cold = calls.cache == "cold"
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

    def _host_us_a_sample(self, calls: _Calls) -> float:
        call, sets = calls.call, calls.sets
        # Enqueue behind a long delay and look at the host's clock only: the device is not waited for.
        torch.cuda.synchronize(self._device)
        torch.cuda._sleep(int(HOST_DELAY_US * self._cycles_per_us))
        cold = calls.cache == "cold"
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


def _loaded_cuda_runtime() -> ctypes.CDLL | None:
    # torch brings its own runtime library; another copy would have a state of its own.
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart.so" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[5])
    return None


def _empty_kernel() -> None:
    torch.cuda._sleep(0)
