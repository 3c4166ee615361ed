"""One operator's device side: variants and peers checked, timed in random order and ranked."""

from __future__ import annotations

import ctypes
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from build import symbol
from variants import LANES, Variant

COMPILED_SHAPES = ((1024, 4096, "f16"), (65536, 4096, "f16"), (1, 1 << 20, "f16"))
FLUSH_BYTES = 120 << 20
FIRST_ROUNDS, LAST_ROUNDS, FINALISTS = 7, 60, 24
LARGE_BYTES = 256 << 20
CALLS_PER_PROFILE = 4000
EPS = 1e-5
RULE = {"f16": (4e-3, 1e-3), "bf16": (3e-2, 1e-2), "f32": (3e-5, 1e-5)}

Call = Callable[[int], object]


def fit(variant: Variant, rows: int, hidden: int, dtype: str) -> bool:
    """Tell whether a variant can run on a shape."""
    if variant.kind == "odd":
        return variant.dtype == dtype and LANES[dtype] <= hidden and rows * hidden < 1 << 31
    if (
        variant.dtype != dtype
        or hidden % LANES[dtype]
        or (rows * hidden >= 1 << 31 and variant.kind == "flat")
    ):
        return False
    packs = hidden // LANES[dtype]
    if variant.kind in ("row", "bulk_once", "shipped", "reread", "staged", "cluster"):
        blocks = int(str(variant.axes.get("c", 1)))
        return packs == blocks * int(str(variant.axes["t"])) * int(str(variant.axes["k"]))
    if variant.kind == "held":
        room = int(str(variant.axes["t"])) * int(str(variant.axes["k"]))
        return packs == room if variant.axes["exact"] else packs <= room < 2 * packs
    if variant.kind == "bulk":
        return packs == int(str(variant.axes["t"])) * int(str(variant.axes["k"]))
    return True


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


def segments(events: Sequence[tuple[str, int, int]], boundaries: set[str]) -> list[float]:
    """Split device events (name, start, duration, ns) at the L2 flushes; sum each segment, microseconds."""
    sums: list[float] = []
    for name, _, duration_ns in sorted(events, key=lambda e: e[1]):
        if name in boundaries:
            sums.append(0.0)
        elif sums:
            sums[-1] += duration_ns / 1e3
    return sums


class Bench:
    """One operator's device side."""

    def __init__(
        self, group: str, variants: Sequence[Variant], libraries: Sequence[Path], skip: set[str], mark: Path
    ) -> None:
        import torch

        self.torch, self.group, self.skip, self.mark = torch, group, skip, mark
        self.functions: dict[str, Any] = {}
        self.rng = random.Random(7)
        self.reference = reference_of(group)
        self.boundaries: set[str] = set()
        for path in libraries:
            library = ctypes.CDLL(str(path))
            for index, variant in enumerate(variants):
                found = getattr(library, symbol(index), None) if variant.group == group else None
                if found is not None:
                    self.functions[variant.label] = self._typed(found)
            for name in ("rmsnorm_v0", "rmsnorm_v1", "rmsnorm_v2", "bias_v1", "add_v1"):
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

    def prepare(self, rows: int, hidden: int, dtype: str) -> None:
        torch = self.torch
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
        size = rows * hidden * (4 if dtype == "f32" else 2)
        self.sets = 1 if size > LARGE_BYTES else 5
        self.rows, self.hidden, self.dtype = rows, hidden, dtype
        self.x = [torch.randn(rows, hidden, device="cuda", dtype=kind) for _ in range(self.sets)]
        other = (rows if self.group == "vector_add" else 1) * hidden
        shape = (rows, hidden) if self.group == "vector_add" else (hidden,)
        self.w = [torch.randn(other, device="cuda", dtype=kind).view(shape) for _ in range(self.sets)]
        self.out = [torch.empty_like(x) for x in self.x]
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def native(self, function: Any, rows: int | None = None) -> Call:
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

    def wrong(self, function: Any) -> str | None:
        """Return what is wrong with a kernel's result on all rows and on an odd number of them."""
        torch = self.torch
        rtol, atol = RULE[self.dtype]
        for rows in (self.rows,) if self.group == "vector_add" else (self.rows, self.rows - 3):
            self.out[0].fill_(float("nan"))
            try:
                self.native(function, rows)(0)
            except AssertionError as error:
                return str(error)
            torch.cuda.synchronize()
            head = min(rows, 2048)
            for part in (slice(0, head), slice(rows - head, rows)):
                got, want = self.out[0][part].float(), self.expected[part].float()
                if not bool(((got - want).abs() <= atol + rtol * want.abs()).all()):
                    return f"wrong values with {rows} rows"
            if rows < self.rows and not bool(self.out[0][rows:].isnan().all()):
                return "wrote past the last row"
        return None

    def peers(self) -> dict[str, Call]:
        torch, functional = self.torch, self.torch.nn.functional
        x, w, out = self.x, self.w, self.out
        found: dict[str, Call] = {
            "PEER eager": lambda i: self.reference(x[i], w[i]),
            "PEER copy": lambda i: out[i].copy_(x[i]),
        }
        if self.group == "copy":
            return found
        if self.group == "rmsnorm":
            found["PEER F.rms_norm"] = lambda i: functional.rms_norm(x[i], (self.hidden,), w[i], EPS)
            if self.hidden & (self.hidden - 1) == 0:
                for warps in (4, 8, 16):
                    found[f"PEER triton row {warps} warps"] = functools.partial(self.triton_row, warps)
        if self.group == "vector_add":
            found["PEER torch.add out="] = lambda i: torch.add(x[i], w[i], out=out[i])
        return found

    def compiled_peer(self) -> dict[str, Call]:
        """Return the operator through torch.compile, for the shapes that are worth its time."""
        if (self.rows, self.hidden, self.dtype) not in COMPILED_SHAPES:
            return {}
        self.torch._dynamo.reset()
        compiled = self.torch.compile(reference_of(self.group), dynamic=False)
        return {"PEER torch.compile": lambda i: compiled(self.x[i], self.w[i])}

    def profiled(self, part: Sequence[tuple[str, int]], calls: dict[str, Call]) -> list[tuple[str, int, int]]:
        """Flush and call, all of ``part``; returns device events (name, start, duration, ns)."""
        torch = self.torch
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for label, i in part:
                self.flush.fill_(i)
                calls[label](i)
            torch.cuda.synchronize()
        return [
            (e.name(), e.start_ns(), e.duration_ns())
            for e in profile.profiler.kineto_results.events()
            if e.device_type() == torch.autograd.DeviceType.CUDA
        ]

    def triton_row(self, warps: int, i: int) -> None:
        from triton_peer import launch

        launch(self.x[i], self.w[i], self.out[i], EPS, warps)

    def time(self, calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
        """Return kernel times per label, microseconds."""
        if not self.boundaries:
            nothing: dict[str, Call] = {"": lambda i: None}
            self.boundaries = {name for name, _, _ in self.profiled([("", i) for i in range(3)], nothing)}
            print(f"  flushes are {self.boundaries}")
        plan = []
        for round_index in range(rounds):
            labels = list(calls)
            self.rng.shuffle(labels)
            plan += [(label, round_index % self.sets) for label in labels]
        times: dict[str, list[float]] = {label: [] for label in calls}
        for start in range(0, len(plan), CALLS_PER_PROFILE):
            part = plan[start : start + CALLS_PER_PROFILE]
            sums = segments(self.profiled(part, calls), self.boundaries)
            if len(sums) != len(part):
                print(f"  a profile of {len(part)} calls has {len(sums)} segments: dropped", flush=True)
                continue
            for (label, _), value in zip(part, sums, strict=True):
                times[label].append(value)
        return times

    def shape(self, rows: int, hidden: int, dtype: str) -> dict[str, Any]:
        """Check, time and rank everything on one shape."""
        started = time.perf_counter()
        self.prepare(rows, hidden, dtype)
        self.expected = self.reference(self.x[0], self.w[0])
        calls = self.right_kernels()
        peers = self.working_peers({**self.peers(), **self.compiled_peer()})
        ready = time.perf_counter()
        first, last = self.in_rounds(calls, peers, large=rows * hidden > 1 << 25)
        self.report(first, last, ready - started, time.perf_counter() - ready)
        self.x, self.w, self.out = [], [], []
        self.expected = None
        return {
            "shape": [rows, hidden], "dtype": dtype, "first_round_median_us": first,
            "final_us": {k: v for k, v in last.items() if v},
        }  # fmt: skip

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

    def in_rounds(
        self, calls: dict[str, Call], peers: dict[str, Call], *, large: bool
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Time everything a few times, then the best often; medians of the first, samples of the last."""
        slow = {label: calls.pop(label) for label in list(calls) if label.startswith("rmsnorm_v0")}
        first = self.time({**calls, **peers}, 3 if large else FIRST_ROUNDS)
        if not large:
            first |= self.time(slow, 3)
        middle = {k: statistics.median(v) for k, v in first.items() if v}
        ranked = sorted((k for k in calls if k in middle and k in self.variants), key=middle.__getitem__)
        best = ranked[:FINALISTS]
        keep = {k: c for k, c in calls.items() if k in best or k not in self.variants}
        return middle, self.time({**keep, **peers}, 12 if large else LAST_ROUNDS)

    def report(
        self, first: dict[str, float], last: dict[str, list[float]], prepared: float, timed: float
    ) -> None:
        print(
            f"\n== {self.group} [{self.rows}, {self.hidden}] {self.dtype}  ({prepared:.1f} + {timed:.1f} s)"
        )
        size = (
            self.rows
            * self.hidden
            * (4 if self.dtype == "f32" else 2)
            * (3 if self.group == "vector_add" else 2)
        )
        ranked = sorted(((statistics.median(v), k, v) for k, v in last.items() if v), key=lambda r: r[0])
        for median, label, values in ranked:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            rate = size / median / 1e3
            print(f"{median:9.3f} us  min {min(values):8.3f}  sd {spread:6.3f}  {rate:6.0f} GB/s  {label}")
        for label in [k for k in first if k not in last and k not in self.variants]:
            print(f"{first[label]:9.3f} us  (few rounds)  {label}")
        self.marginals(first)
        sys.stdout.flush()

    def marginals(self, first: dict[str, float]) -> None:
        """Print, for every axis, the best first-round median at each of its values."""
        axes: dict[tuple[str, str], dict[str, float]] = {}
        for label, median in first.items():
            variant = self.variants.get(label)
            if variant is None:
                continue
            for axis, value in variant.axes.items():
                row = axes.setdefault((variant.kind, axis), {})
                row[str(value)] = min(median, row.get(str(value), median))
        for (kind, axis), row in axes.items():
            if len(row) > 1:
                print(f"   best by {kind}.{axis:<6} " + "  ".join(f"{v}: {t:.2f}" for v, t in row.items()))
