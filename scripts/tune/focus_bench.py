"""One operator on one shape under the second witness's conditions (see focus.py)."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import RULE, Bench, Call

PLACES = 12
PAGE_BYTES = 2 << 20
SLOT_PAGES, SLOTS = 16, 63
CALLS_PER_PROFILE = 3000
MARKER = "spin_kernel"
LARGE_ELEMENTS = 1 << 25

Event = tuple[str, int, int]


def runs_of(labels: Sequence[str], runs: int, calls: int, rng: random.Random) -> list[tuple[str, int]]:
    """Return (label, position in its run), every label in ``runs`` runs, their order random."""
    order = [label for label in labels for _ in range(runs)]
    rng.shuffle(order)
    return [(label, position) for label in order for position in range(calls)]


def between_markers(events: Sequence[Event]) -> list[float]:
    """Return what ran between each pair of markers, microseconds; events are (name, start, duration), ns."""
    sums: list[float] = []
    inside = False
    for name, _, duration_ns in sorted(events, key=lambda e: e[1]):
        if MARKER in name:
            inside = not inside
            if inside:
                sums.append(0.0)
        elif inside:
            sums[-1] += duration_ns / 1e3
    return sums


class FocusBench(Bench):
    """One operator on one shape, under the second witness's conditions."""

    places = PLACES

    def prepare(self, rows: int, hidden: int, dtype: str = "f16") -> None:
        """Make inputs and results at many places of an arena, or one of each where they are large."""
        torch = self.torch
        self.rows, self.hidden, self.dtype = rows, hidden, dtype
        self.kind = torch.float32 if dtype == "f32" else torch.float16
        self.large = rows * hidden > LARGE_ELEMENTS
        self.sets = 1 if self.large else self.places
        self.kept: list[Any] = [None] * self.sets
        pages = -(-rows * hidden * self.kind.itemsize // PAGE_BYTES)
        self.slot_pages = max(SLOT_PAGES, 2 * pages)
        slot_bytes = self.slot_pages * PAGE_BYTES
        arena = None if self.large else torch.empty(SLOTS * slot_bytes, dtype=torch.uint8, device="cuda")
        self.free = list(range(0, SLOTS * slot_bytes, slot_bytes))
        self.rng.shuffle(self.free)
        self.x = [self._placed(arena, rows, hidden).normal_() for _ in range(self.sets)]
        if self.group == "vector_add":
            self.w = [self._placed(arena, rows, hidden).normal_() for _ in range(self.sets)]
        else:
            self.w = [self._random(hidden) for _ in range(self.sets)]
        self.out = [self._placed(arena, rows, hidden) for _ in range(self.sets)]
        self.flush = torch.empty(
            2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda"
        )
        self.other = torch.zeros(self.flush.numel() // 4, dtype=torch.int32, device="cuda")
        self.expected = self.reference(self.x[0], self.w[0])

    def _placed(self, arena: Any, rows: int, hidden: int) -> Any:
        """Return memory for a matrix at one of the arena's places that are free, or memory of its own."""
        size = rows * hidden * self.kind.itemsize
        if arena is None:
            return self.torch.empty(rows, hidden, device="cuda", dtype=self.kind)
        pages = -(-size // PAGE_BYTES)
        first = self.free.pop() + self.rng.randrange(self.slot_pages - pages) * PAGE_BYTES
        return arena[first : first + size].view(self.kind).view(rows, hidden)

    def held(self, call: Call) -> Call:
        """Keep a peer's results for a while, so that they too move over many places."""

        def kept(i: int) -> object:
            self.kept[i] = call(i)
            return None

        return kept

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda", dtype=self.kind)

    def wrong(self, function: Any) -> str | None:
        """Return what is wrong with a kernel's result: its first and last elements, all rows and fewer."""
        rtol, atol = RULE[self.dtype]
        for rows in (self.rows,) if self.rows == 1 else (self.rows, self.rows - 3):
            self.out[0].fill_(float("nan"))
            try:
                self.native(function, rows)(0)
            except AssertionError as error:
                return str(error)
            out, expected = self.out[0].view(-1), self.expected.view(-1)
            end = rows * self.hidden
            part = min(end, 1 << 21)
            for first in (0, end - part):
                got = out[first : first + part].float()
                want = expected[first : first + part].float()
                if not bool(((got - want).abs() <= atol + rtol * want.abs()).all()):
                    return f"wrong values with {rows} rows"
            if end < out.numel() and not bool(out[end:].isnan().all()):
                return "wrote past the last row"
        return None

    def clear_dirty(self, position: int) -> None:
        """Leave the L2 full of lines that are yet to be written to memory, as the witness does."""
        self.flush.fill_(position & 0x7F)

    def clear_clean(self, position: int) -> None:
        """Leave the L2 full of lines that memory has already."""
        self.flush.fill_(position & 0x7F)
        for _ in range(2):
            self.torch.amax(self.other, dim=0)

    def forget_kept_lines(self) -> None:
        """Let the L2 cache give up lines that some kernel asked it to keep."""
        self.torch.cuda.synchronize()
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "libcudart.so" in line:
                ctypes.CDLL(line.split(maxsplit=5)[5]).cudaCtxResetPersistingL2Cache()
                return

    def timed(
        self, calls: dict[str, Call], runs: int, per_run: int, clear: Callable[[int], None] | None = None
    ) -> dict[str, list[float]]:
        """Return kernel times per label, microseconds; the first call of each run is left out."""
        torch = self.torch
        clear = clear or self.clear_dirty
        times: dict[str, list[float]] = {label: [] for label in calls}
        plan = runs_of(list(calls), runs, per_run, self.rng)
        chunk = CALLS_PER_PROFILE // per_run * per_run
        for start in range(0, len(plan), chunk):
            part = plan[start : start + chunk]
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for position, (label, number) in enumerate(part):
                    clear(position)
                    torch.cuda._sleep(0)
                    calls[label](number % self.sets)
                    torch.cuda._sleep(0)
                torch.cuda.synchronize()
            events = [
                (e.name(), e.start_ns(), e.duration_ns())
                for e in profile.profiler.kineto_results.events()
                if e.device_type() == torch.autograd.DeviceType.CUDA and e.duration_ns() > 0
            ]
            sums = between_markers(events)
            if len(sums) != len(part):
                print(f"  a profile of {len(part)} calls has {len(sums)} segments: dropped", flush=True)
                continue
            for (label, number), value in zip(part, sums, strict=True):
                if number:
                    times[label].append(value)
        return {label: values for label, values in times.items() if values}


def through(function: Callable[[Any, Any], Any], bench: FocusBench, i: int) -> object:
    """Call a compiled peer with a bench's i-th inputs."""
    return function(bench.x[i], bench.w[i])
