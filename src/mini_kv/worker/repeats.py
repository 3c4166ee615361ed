"""Many calls at one word of the judge, so that the judge's own clock can bound what a call takes.

On CUDA the calls are captured in a graph: replaying it needs no host work a call, so the wall time of
two lengths differs by device time alone. On the CPU they run in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


class Repeats:
    """One case's repeated calls, prepared by count."""

    def __init__(self, call: Callable[..., object], sets: Sequence[Sequence[object]], device: torch.device):
        self._call = call
        self._sets = sets
        self._device = device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def prepare(self, calls: int) -> None:
        """Capture ``calls`` calls (CUDA); raises ``RuntimeError`` when the operator cannot be captured."""
        if self._device.type != "cuda":
            return
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self._call(*self._sets[0])
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for position in range(calls):
                self._call(*self._sets[position % len(self._sets)])
        graph.replay()
        torch.cuda.synchronize()
        self._graphs[calls] = graph

    def run(self, calls: int) -> None:
        """Make the calls and wait until they are done."""
        if self._device.type == "cuda":
            self._graphs[calls].replay()
            torch.cuda.synchronize()
            return
        # One thread, as when it is timed: threads that wait for each other burn time that is no work.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for position in range(calls):
                self._call(*self._sets[position % len(self._sets)])
        finally:
            torch.set_num_threads(threads)
