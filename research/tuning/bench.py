"""One operator on one shape under the second witness's conditions: variants and peers checked and timed.

Conditions of the second witness (src/mini_kv/worker/cupti.py): before each call a buffer of twice the L2
is overwritten and an empty marker kernel launched, and the time is CUPTI's.
"""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from research.tuning.build import ALL_SHIPPED, symbol
from research.tuning.variants import LANES, Variant

PLACES = 12
PAGE_BYTES = 2 << 20
SLOT_PAGES, SLOTS = 16, 63
CALLS_PER_PROFILE = 3000
MARKER = "spin_kernel"
LARGE_ELEMENTS = 1 << 25
EPS = 1e-5
RULE = {"f16": (4e-3, 1e-3), "f32": (3e-5, 1e-5)}
# Kinds whose blocks hold a row exactly: so many threads times so many packs (times the blocks of a cluster).
EXACT_KINDS = ("row", "held", "bulk", "bulk_once", "shipped", "reread", "staged", "cluster")

Call = Callable[[int], object]
Event = tuple[str, int, int]


def fit(variant: Variant, rows: int, hidden: int, dtype: str) -> bool:
    """Tell whether a variant can run on a shape."""
    if variant.dtype != dtype:
        return False
    if variant.kind == "odd":
        return LANES[dtype] <= hidden and rows * hidden < 1 << 31
    if hidden % LANES[dtype]:
        return False
    if variant.kind not in EXACT_KINDS:
        return True
    blocks, threads, packs = (int(str(variant.axes.get(axis, 1))) for axis in ("c", "t", "k"))
    return hidden // LANES[dtype] == blocks * threads * packs


def reference_of(group: str) -> Callable[[Any, Any], Any]:
    """Return the operator as eager PyTorch writes it."""
    import torch

    def rmsnorm(x: Any, w: Any) -> Any:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.float()).to(x.dtype)

    def bias_relu(x: Any, w: Any) -> Any:
        return torch.relu(x + w)

    def vector_add(x: Any, w: Any) -> Any:
        return x + w

    def copy(x: Any, w: Any) -> Any:
        return x.clone()

    return {"rmsnorm": rmsnorm, "bias_relu": bias_relu, "vector_add": vector_add, "copy": copy}[group]


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


class Bench:
    """One operator on one shape. ``functions`` are the kernels by label, ``variants`` those of a grid."""

    def __init__(
        self,
        group: str,
        variants: Sequence[Variant],
        libraries: Sequence[Path],
        *,
        skip: set[str],
        mark: Path,
        places: int = PLACES,
        seed: int = 7,
    ) -> None:
        """Load what was built. ``mark`` is the file that names the variant under check, should it crash."""
        import torch

        self.torch, self.group, self.skip, self.mark, self.places = torch, group, skip, mark, places
        self.functions: dict[str, Any] = {}
        self.rng = random.Random(seed)
        self.reference = reference_of(group)
        for path in libraries:
            library = ctypes.CDLL(str(path))
            for index, variant in enumerate(variants):
                found = getattr(library, symbol(index), None) if variant.group == group else None
                if found is not None:
                    self.functions[variant.label] = self._typed(found)
            for name in ALL_SHIPPED:
                for dtype in LANES:
                    found = getattr(library, f"{name}_{dtype}", None)
                    if found is not None:
                        self.functions[f"{name}_{dtype}"] = self._typed(found)
        self.variants = {
            v.label: v
            for v in variants
            if v.group == group and v.label in self.functions and v.label not in skip
        }

    @staticmethod
    def _typed(function: Any) -> Any:
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_double, ctypes.c_void_p]
        return function

    # ----------------------------------------------------------------- inputs and results

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

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda", dtype=self.kind)

    # ----------------------------------------------------------------- kernels and peers

    def native(self, function: Any, rows: int | None = None) -> Call:
        """Return a call of a kernel on the i-th inputs and result, over all rows or the first ``rows``."""
        pointers = [
            (x.data_ptr(), w.data_ptr(), o.data_ptr())
            for x, w, o in zip(self.x, self.w, self.out, strict=True)
        ]
        count, hidden = self.rows if rows is None else rows, self.hidden
        stream = self.torch.cuda.current_stream().cuda_stream

        def call(i: int) -> object:
            a, b, o = pointers[i]
            error = function(a, b, o, count, hidden, EPS, stream)
            assert error is None, error
            return None

        return call

    def held(self, call: Call) -> Call:
        """Keep a peer's results for a while, so that they too move over many places."""

        def kept(i: int) -> object:
            self.kept[i] = call(i)
            return None

        return kept

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

    def right_kernels(self) -> dict[str, Call]:
        """Return the kernels that fit the shape and give the right values; name the others."""
        calls: dict[str, Call] = {}
        for label, function in self.functions.items():
            variant = self.variants.get(label)
            if variant is not None and not fit(variant, self.rows, self.hidden, self.dtype):
                continue
            shipped_elsewhere = label in self.skip or not label.endswith(f"_{self.dtype}") or " " in label
            if variant is None and shipped_elsewhere:
                continue
            self.mark.write_text(label)
            problem = self.wrong(function)
            if problem is not None:
                print(f"  {label}: {problem}", flush=True)
                continue
            calls[label] = self.native(function)
        self.mark.write_text("")
        return calls

    def peers(self) -> dict[str, Call]:
        """Return what else computes the operator here, torch.compile apart."""
        torch, functional = self.torch, self.torch.nn.functional
        x, w, out = self.x, self.w, self.out
        found: dict[str, Call] = {
            "PEER eager": lambda i: self.reference(x[i], w[i]),
            "PEER copy": lambda i: out[i].copy_(x[i]),
        }
        if self.group == "rmsnorm":
            found["PEER F.rms_norm"] = lambda i: functional.rms_norm(x[i], (self.hidden,), w[i], EPS)
            if self.hidden & (self.hidden - 1) == 0:
                for warps in (4, 8, 16):
                    found[f"PEER triton row {warps} warps"] = functools.partial(self._triton_row, warps)
        if self.group == "vector_add":
            found["PEER torch.add out="] = lambda i: torch.add(x[i], w[i], out=out[i])
        return found

    def _triton_row(self, warps: int, i: int) -> None:
        from research.tuning.triton_peer import launch

        launch(self.x[i], self.w[i], self.out[i], EPS, warps)

    def working_peers(self, peers: dict[str, Call]) -> dict[str, Call]:
        """Return those of the peers that run here, warm."""
        for label, peer in list(peers.items()):
            try:
                for i in range(self.sets):
                    peer(i)
                self.torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 - a peer that fails is only left out
                print(f"  {label}: {error!r}"[:300], flush=True)
                del peers[label]
        return peers

    # ----------------------------------------------------------------- times

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


def through(function: Callable[[Any, Any], Any], bench: Bench, i: int) -> object:
    """Call a compiled peer with a bench's i-th inputs."""
    return function(bench.x[i], bench.w[i])
