"""Timed calls on arguments that did not exist before: nothing can have been worked out in advance.

A batch has its argument sets in the process before the first call, and warms up on them, so a candidate that
looks for them there could compute every result beforehand. Here they arrive with the request, are copied to
where the call finds them, and the clock starts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

from mini_kv.worker.batches import Batch
from mini_kv.worker.device import one_thread
from mini_kv.worker.output_samples import PLACES, Looker

LEAST_PLACES = 4


def time_unseen(call: Callable[..., object], make: Callable[[], Sequence[Sequence[object]]]) -> Batch:
    """Call once with every argument set that ``make`` gives; a batch of one sample, with one torch thread.

    A short call is hidden by what a call on its own costs as well, so several are timed as one. How much of
    each result is looked at is shared among them: a thread that fills them later has no time to.
    """
    clock = time.perf_counter_ns
    with one_thread():
        try:
            # No garbage is collected here: what is called back for that would find the new arguments.
            sets = make()
            looker = Looker(max(PLACES // len(sets), LEAST_PLACES))
            start = clock()
            results = [call(*arguments) for arguments in sets]
            elapsed_ns = clock() - start
            seen = [looker.look(result) for result in results]
        finally:
            gc.enable()
    return Batch(
        samples_us=(elapsed_ns / 1000.0 / len(results),),
        launch_exposed=(),
        calls_per_sample=1,
        floor_us=0.0,
        tick_us=time.get_clock_info("perf_counter").resolution * 1e6,
        outputs=dict(enumerate(results)),
        seen=dict(enumerate(seen)),
    )
