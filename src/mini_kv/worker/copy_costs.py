"""How long plain copies of uncached inputs take on this machine.

An operator that does little more than read and write is honestly slower on inputs and results that no call
has touched, twice or three times where rotating ones fit a near cache. How much slower depends on the sizes
and the machine, so it is measured, in the trusted process: nothing that a candidate does can lengthen it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mini_kv.core.rules.statistics import median
from mini_kv.worker.batches import ArgumentSet, BatchPlan
from mini_kv.worker.cpu_timer import CpuTimer
from mini_kv.worker.rotation import copied
from mini_kv.worker.unseen_calls import time_unseen

ROTATING_SAMPLES = 10


def time_copies(
    timer: CpuTimer,
    rotating: Sequence[ArgumentSet],
    fresh: Sequence[ArgumentSet],
    results: Sequence[torch.Tensor],
) -> tuple[float, float]:
    """Return what moving a call's bytes takes on fresh and on rotating argument sets, microseconds a call.

    Every input is copied and memory of every result's form written. Fresh sets are met as a candidate meets
    them: copied to new memory just before, called once each, and all results kept.
    """

    def move(*arguments: object) -> list[torch.Tensor]:
        moved = [value.clone() for value in arguments if isinstance(value, torch.Tensor)]
        return moved + [torch.empty_like(one).fill_(1) for one in results]

    timer.ready(move, rotating, len(fresh))
    (fresh_us,) = time_unseen(move, lambda: [copied(arguments) for arguments in fresh]).samples_us
    plan = BatchPlan(warmup=len(rotating), iterations=ROTATING_SAMPLES, calls_per_sample=0, cache="hot")
    batch = timer.batch(move, rotating, plan)
    return fresh_us, median(batch.samples_us)
