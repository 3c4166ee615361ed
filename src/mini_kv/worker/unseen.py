"""One timed call on arguments that did not exist before: nothing can have been worked out in advance.

A batch has its argument sets in the process before the first call, and warms up on them, so a candidate that
looks for them there could compute every result beforehand. Here they arrive with the request, are copied to
where the call finds them, and the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from mini_kv.worker.glimpse import Looker
from mini_kv.worker.timing import Batch, QuietCollector


def time_unseen(call: Callable[..., object], make: Callable[[], Sequence[object]]) -> Batch:
    """Call once with the arguments that ``make`` gives; a batch of one sample, with one torch thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    looker = Looker()
    clock = time.perf_counter_ns
    try:
        with QuietCollector():
            arguments = make()
            start = clock()
            result = call(*arguments)
            elapsed_ns = clock() - start
            seen = looker.look(result)
    finally:
        torch.set_num_threads(threads)
    return Batch(
        samples_us=(elapsed_ns / 1000.0,),
        launch_exposed=(),
        calls_per_sample=1,
        floor_us=0.0,
        tick_us=time.get_clock_info("perf_counter").resolution * 1e6,
        outputs={0: result},
        seen={0: seen},
    )
