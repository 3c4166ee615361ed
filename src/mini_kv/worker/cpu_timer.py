"""The stopwatch on a CPU, the same in both workers.

Every sample is one ``perf_counter_ns`` interval around enough calls to last at least 1 ms, with one torch
thread: with more, a core that is busy elsewhere stalls every parallel loop at its barrier.

All of this is part of the timer plan: another value, call or order changes measured times, and needs a new
name in ``benchmark.plan.TIMER_PLAN``. A test holds the code against the fingerprint that stands there.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence

import torch

from mini_kv.core.protocol import kept_call
from mini_kv.worker.batches import (
    ArgumentSet,
    Batch,
    BatchPlan,
    CacheMode,
    Call,
    QuietCollector,
    Seen,
    grow_pool,
    kept_indices,
    warm,
)
from mini_kv.worker.device import one_thread
from mini_kv.worker.heap import mallopt
from mini_kv.worker.output_samples import Looker
from mini_kv.worker.rotation import copied

MIN_CPU_SAMPLE_NS = 1_000_000
READY_CALLS = 3
# glibc's mallopt: what is freed stays in the process, and blocks of up to 32 MiB (the most that it takes)
# come from there. The defaults hand pages back and fault them in anew inside samples: 4 ms read as 11 ms.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_FREE_BYTES, _MMAPPED_FROM_BYTES = 1 << 30, 32 << 20
# Small objects settle between large blocks, and a gap that one of them has split holds no output any more.
_SPARE_OUTPUTS = 8


class CpuTimer:
    """``perf_counter_ns`` around enough calls to last :data:`MIN_CPU_SAMPLE_NS`."""

    def __init__(self) -> None:
        _keep_freed_memory()

    def batch(self, call: Call, sets: Sequence[ArgumentSet], plan: BatchPlan) -> Batch:
        """Take the samples; inputs rotate from call to call (there is no L2 to clear outside a pair)."""
        with one_thread():
            return self._batch(call, sets, plan)

    def _batch(self, call: Call, sets: Sequence[ArgumentSet], plan: BatchPlan) -> Batch:
        result = warm(call, sets, plan.warmup)
        calls = plan.calls_per_sample or self._calls_for_a_sample(call, sets)
        keep = kept_indices(result, plan.iterations, "cpu")
        grow_pool(result, len(keep) + _SPARE_OUTPUTS)
        # The judge says which call is kept: one that does its work on some calls only must not know which.
        kept_in_sample = kept_call(plan.kept_at, calls) + 1
        kept: object = None
        outputs: dict[int, object] = {}
        seen: dict[int, Seen] = {}
        looker = Looker()
        looker.look(result)
        samples: list[float] = []
        clock = time.perf_counter_ns
        count = len(sets)
        with QuietCollector():
            for sample in range(plan.iterations):
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
        floor_us, _ = self.floor(plan.cache)
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
            grow_pool(call(*sets[0]), calls + _SPARE_OUTPUTS)
            del held
            gc.collect()
            gc.disable()
            warm(call, sets, READY_CALLS)

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


def _keep_freed_memory() -> None:
    tune = mallopt()
    if tune is not None:
        tune(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
        tune(_M_MMAP_THRESHOLD, _MMAPPED_FROM_BYTES)


def _nothing() -> None:
    return None
