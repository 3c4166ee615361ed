"""One batch of timed calls, and what both stopwatches need around it: warm-up, memory, a quiet collector.

Part of the timer plan: see ``benchmark.plan.TIMER_PLAN`` before changing how calls are warmed up.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from mini_kv.worker.output_samples import Glimpse
from mini_kv.worker.storage import tensors_of

Call = Callable[..., object]
ArgumentSet = Sequence[object]
Seen = tuple[Glimpse | None, ...]
CacheMode = Literal["cold", "hot"]

# Outputs of timed calls are kept until the judge has named the ones to check.
KEPT_OUTPUT_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How a batch is taken: ``warmup`` untimed calls, then ``iterations`` samples.

    ``calls_per_sample`` of 0 leaves their number to the stopwatch. ``kept_at`` draws the call of each sample
    whose output is kept (0 the first, 1 the last).
    """

    warmup: int
    iterations: int
    calls_per_sample: int
    cache: CacheMode
    kept_at: float = 1.0


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


def grow_pool(result: object, count: int) -> None:
    """Have memory for ``count`` results like this one at hand before the first sample: timed calls' are kept.

    On the CPU the pages are written too: they are nowhere before.
    """
    tensors = tensors_of(result)
    held = [[torch.empty_like(tensor) for tensor in tensors] for _ in range(count)]
    for tensor in itertools.chain.from_iterable(held):
        if tensor.device.type == "cpu":
            tensor.zero_()


def warm(call: Call, sets: Sequence[ArgumentSet], warmup: int) -> object:
    """Make ``warmup`` calls, at least one, on the sets in turn; return what the last one gave."""
    result: object = None
    for position in range(max(warmup, 1)):
        result = call(*sets[position % len(sets)])
    return result


class QuietCollector:
    """The garbage collector may pause a sample for milliseconds; it runs between batches instead."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
