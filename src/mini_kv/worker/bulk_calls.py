"""Many calls at one word of the judge, so that the judge's own clock can bound what a call takes.

On CUDA the calls are captured in a graph: replaying it needs no host work a call, so the wall time of
two lengths differs by device time alone. On the CPU they run in a loop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mini_kv.worker.batches import kept_indices
from mini_kv.worker.device import one_thread
from mini_kv.worker.output_samples import Glimpse, Looker


@dataclass(frozen=True, kw_only=True)
class KeptResult:
    """What one call of a run returned, the arguments it had, and a glimpse of it at return."""

    result: object
    argument_set: int
    seen: tuple[Glimpse | None, ...]


class Repeats:
    """One case's repeated calls, prepared by count. ``kept`` are results of the last run, by position."""

    def __init__(self, call: Callable[..., object], sets: Sequence[Sequence[object]], device: torch.device):
        self._call = call
        self._sets = sets
        self._device = device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.kept: dict[int, KeptResult] = {}

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

    def run(self, calls: int, kept_outputs: int = 0) -> None:
        """Make the calls and wait until they are done; keep about ``kept_outputs`` results (CPU only).

        Which ones is drawn after each call has returned, from a source that nobody can read ahead: work that
        is skipped where it is not looked at would have to be skipped by luck.
        """
        if self._device.type == "cuda":
            self._graphs[calls].replay()
            torch.cuda.synchronize()
            return
        # One thread, as when it is timed: threads that wait for each other burn time that is no work.
        with one_thread():
            if kept_outputs:
                self._run_and_keep(calls, kept_outputs)
            else:
                for position in range(calls):
                    self._call(*self._sets[position % len(self._sets)])

    def _run_and_keep(self, calls: int, kept_outputs: int) -> None:
        self.kept = {}
        chance, looker = random.SystemRandom(), Looker()
        share, room = kept_outputs / calls, 0
        for position in range(calls):
            used = position % len(self._sets)
            result = self._call(*self._sets[used])
            if chance.random() >= share:
                continue
            seen = looker.look(result)
            room = room or len(kept_indices(result, kept_outputs, "cpu"))
            if len(self.kept) >= room:
                del self.kept[chance.choice(tuple(self.kept))]
            self.kept[position] = KeptResult(result=result, argument_set=used, seen=seen)
