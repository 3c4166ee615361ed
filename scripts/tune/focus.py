"""Time the focused grid as `mini-kv verify` times kernels, in several fresh processes; one compact table.

Conditions of the second witness (src/mini_kv/worker/witness.py): before each call a buffer of twice the L2
is overwritten and an empty marker kernel launched, and the time is CUPTI's. Calls of one kernel come in short
runs, of which the first call does not count; the order of runs is random. Where a small kernel's inputs and
its result lie decides more of its time than how it is written, so both move over many places in memory, the
same for all kernels. The first process checks and times every variant, the others the best ones.

    python focus.py OUT_DIR            build and run
    python focus.py OUT_DIR --dry-run  build a sample, load it, run the bookkeeping on the CPU
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import functools
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import EPS, RULE, Bench, Call, reference_of
from build import Builds
from focus_grid import KEEPER, focused, row

SHAPES = (
    ("rmsnorm", 1024, 4096), ("bias_relu", 1024, 4096), ("vector_add", 1, 1 << 20), ("copy", 1024, 4096),
    ("rmsnorm", 65536, 4096), ("bias_relu", 65536, 4096), ("vector_add", 1, 1 << 28),
)  # fmt: skip
COMPILED = tuple(shape for shape in SHAPES if shape[0] in ("rmsnorm", "bias_relu"))
PLACES, TOUCHED, FINALISTS, SHOWN = 12, 3, 36, 7
ARENA_BYTES, PAGE_BYTES = 2 << 30, 2 << 20
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

    def prepare(self, rows: int, hidden: int, dtype: str = "f16") -> None:
        """Make three sets of inputs (one where they are large) and one place for results."""
        torch = self.torch
        self.rows, self.hidden, self.dtype = rows, hidden, dtype
        self.large = rows * hidden > LARGE_ELEMENTS
        self.sets = 1 if self.large else PLACES
        self.kept: list[Any] = [None] * self.sets
        arena = None if self.large else torch.empty(ARENA_BYTES, dtype=torch.uint8, device="cuda")
        self.free = list(range(0, ARENA_BYTES - 16 * PAGE_BYTES, 16 * PAGE_BYTES))
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
        torch, size = self.torch, rows * hidden * 2
        if arena is None:
            return torch.empty(rows, hidden, device="cuda", dtype=torch.float16)
        first = self.free.pop() + self.rng.randrange(16 - (size + PAGE_BYTES - 1) // PAGE_BYTES) * PAGE_BYTES
        return arena[first : first + size].view(torch.float16).view(rows, hidden)

    def held(self, call: Call) -> Call:
        """Keep a peer's results for a while, so that they too move over many places."""

        def kept(i: int) -> object:
            self.kept[i] = call(i)
            return None

        return kept

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.float16)

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


def compiled_peers() -> dict[tuple[str, int, int], Callable[[Any, Any], Any]]:
    """Compile every peer for its shape, once a process; a peer that does not compile is left out."""
    import torch
    import torch._inductor.config

    found: dict[tuple[str, int, int], Callable[[Any, Any], Any]] = {}
    torch._inductor.config.compile_threads = 1
    for shape in COMPILED:
        group, rows, hidden = shape
        function = torch.compile(reference_of(group), dynamic=False)
        try:
            x = torch.randn(rows, hidden, device="cuda", dtype=torch.float16)
            function(x, torch.randn(hidden, device="cuda", dtype=torch.float16))
            found[shape] = function
        except Exception as error:  # noqa: BLE001 - see above
            print(f"  torch.compile {shape}: {error!r}"[:200], flush=True)
    torch.cuda.empty_cache()
    return found


def through(function: Callable[[Any, Any], Any], bench: FocusBench, i: int) -> object:
    """Call a compiled peer with a bench's i-th inputs."""
    return function(bench.x[i], bench.w[i])


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock between the processes of this run."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def child(out: Path, index: int, deadline: float) -> int:
    """Be one process: everything that needs no quiet GPU first, then every shape."""
    import torch

    with alone(out / "warm.lock"):
        compiled = compiled_peers()
    while not (out / "libraries.json").exists() or (index and not (out / f"{index - 1}.done").exists()):
        if time.time() > deadline:
            return 1
        time.sleep(0.05)
    libraries = json.loads((out / "libraries.json").read_text())
    finalists: dict[str, list[str]] = {}
    if index:
        finalists = json.loads((out / "finalists.json").read_text())
    torch.manual_seed(index)
    warm = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    until = time.perf_counter() + 0.3
    while time.perf_counter() < until:
        warm @ warm  # brings the clocks up
        torch.cuda.synchronize()
    results: dict[str, Any] = {}
    for shape in SHAPES:
        if time.time() > deadline:
            break
        group, rows, hidden = shape
        key = f"{group} {rows}x{hidden}"
        mine = [Path(p) for p in libraries[group]]
        bench = FocusBench(group, focused(), mine, set(), out / "current")
        bench.rng = random.Random(index)
        bench.prepare(rows, hidden)
        bench.forget_kept_lines()
        peers = {label: bench.held(call) for label, call in bench.working_peers(bench.peers()).items()}
        results[key] = measure(bench, peers, finalists.get(key))
        if shape == SHAPES[0] and index < 2:
            results[key]["placement"] = placement(bench)
        if shape in compiled:
            # Last: its kernels may ask the L2 cache to keep their input, which then is warm for all others.
            last = {"PEER torch.compile": bench.held(functools.partial(through, compiled[shape], bench))}
            results[key]["final_us"] |= bench.timed(last, 3, 4 if bench.large else PLACES + 1)
            if shape == SHAPES[0]:
                results[key]["residue"] = residue(bench, compiled[shape])
        if not index:
            finalists[key] = results[key]["finalists"]
            (out / "finalists.json").write_text(json.dumps(finalists))
        (out / f"{index}.json").write_text(json.dumps(results))
        del bench, peers
        torch.cuda.empty_cache()
    (out / f"{index}.done").write_text("")
    return 0


def measure(bench: FocusBench, peers: dict[str, Call], chosen: list[str] | None) -> dict[str, Any]:
    """Time everything a few times and the best often, or only those ``chosen`` before."""
    started = time.perf_counter()
    if chosen is not None:
        keep = {*chosen, row(*KEEPER).label}
        for label in list(bench.functions):
            if label in bench.variants and label not in keep:
                del bench.functions[label], bench.variants[label]
    calls = bench.right_kernels()
    apart = {label for label in calls if label.startswith("rmsnorm_v0")} | {row(*KEEPER).label}
    calls = {label: call for label, call in calls.items() if label not in apart}
    bench.forget_kept_lines()
    first: dict[str, float] = {}
    if chosen is None:
        times = bench.timed(calls, 1, 3 if bench.large else PLACES + 1)
        first = {label: statistics.median(values) for label, values in times.items()}
        ranked = sorted((k for k in calls if k in first and k in bench.variants), key=first.__getitem__)
        best = set(ranked[:FINALISTS])
        calls = {k: c for k, c in calls.items() if k in best or k not in bench.variants}
    leaders = best_of(first, 3)
    few = {k: c for k, c in {**calls, **peers}.items() if k not in bench.variants or k in leaders}
    clean = bench.timed(few, 1, PLACES + 1, bench.clear_clean) if first and not bench.large else {}
    last = bench.timed({**calls, **peers}, 4 if bench.large else 3, 4 if bench.large else PLACES + 1)
    return {
        "first_us": first,
        "final_us": last,
        "clean_us": {label: statistics.median(values) for label, values in clean.items()},
        "finalists": [label for label in calls if label in bench.variants],
        "elapsed_s": time.perf_counter() - started,
    }


def placement(bench: FocusBench) -> dict[str, Any]:
    """Time one kernel for every pair of an input's and a result's place, and two cache-clearing buffers."""
    other = bench.torch.empty_like(bench.flush)
    first, buffers = bench.flush, {"a": bench.flush, "b": other}
    points: list[dict[str, Any]] = []
    function = bench.functions["rmsnorm_v2_f16"]
    stream = bench.torch.cuda.current_stream().cuda_stream
    for name, buffer in buffers.items():
        bench.flush = buffer
        pairs = [(i, j) for i in range(bench.sets) for j in range(bench.sets)]
        calls: dict[str, Call] = {}
        for i, j in pairs:
            places = bench.x[i].data_ptr(), bench.w[0].data_ptr(), bench.out[j].data_ptr()
            calls[f"{i} {j}"] = functools.partial(at_places, function, places, bench, stream)
        for label, values in bench.timed(calls, 1, 6).items():
            i, j = map(int, label.split())
            x, out = bench.x[i].data_ptr(), bench.out[j].data_ptr()
            points.append(
                {
                    "x": x,
                    "out": out,
                    "flush": buffer.data_ptr(),
                    "name": name,
                    "us": statistics.median(values),
                }
            )
    bench.flush = first
    return {"points": points}


def residue(bench: FocusBench, compiled: Callable[[Any, Any], Any]) -> dict[str, list[float]]:
    """Time one kernel at every place of its input after others have read the first of them."""
    v2 = bench.native(bench.functions["rmsnorm_v2_f16"])
    keeper = bench.native(bench.functions[row(*KEEPER).label])

    def by_place(name: str, call: Call) -> None:
        values = bench.timed({name: call}, 3, bench.sets + 1)[name]
        places = [(position + 1) % bench.sets for position in range(bench.sets)] * 3
        found[name] = [
            statistics.median(v for v, at in zip(values, places, strict=True) if at == place)
            for place in range(bench.sets)
        ]

    def touch(call: Call) -> None:
        for position in range(2 * TOUCHED):
            call(position % TOUCHED)
            bench.clear_dirty(position)

    found: dict[str, list[float]] = {}
    bench.forget_kept_lines()
    by_place("v2 after a reset", v2)
    touch(functools.partial(through, compiled, bench))
    by_place("v2 after compile", v2)
    bench.forget_kept_lines()
    by_place("v2 after another reset", v2)
    touch(keeper)
    by_place("v2 after the keeper", v2)
    bench.forget_kept_lines()
    by_place("keeper on all places", keeper)
    bench.forget_kept_lines()
    by_place("keeper on three places", lambda i: keeper(i % TOUCHED))
    bench.forget_kept_lines()
    return found


def at_places(function: Any, places: tuple[int, int, int], bench: FocusBench, stream: int, i: int) -> None:
    """Run a kernel on an input, a weight and a result at given addresses."""
    error = function(*places, bench.rows, bench.hidden, EPS, stream)
    assert error is None, error


def residue_lines(found: dict[str, list[float]]) -> list[str]:
    """Return the times at the places that others had touched, and at the rest."""
    return [
        f" {name}: {' '.join(f'{us:.2f}' for us in times[:TOUCHED])} | "
        + " ".join(f"{us:.2f}" for us in times[TOUCHED:])
        for name, times in found.items()
    ]


def placement_lines(points: Sequence[dict[str, Any]]) -> str:
    """Return how much of the spread each of the three places explains by itself."""
    values = [p["us"] for p in points]
    mean, total = statistics.mean(values), statistics.pvariance(values)
    text = f"placement: {min(values):.2f} to {max(values):.2f} us, median {statistics.median(values):.2f};"
    for axis in ("x", "out", "flush"):
        groups: dict[int, list[float]] = {}
        for p in points:
            groups.setdefault(p[axis], []).append(p["us"])
        between = sum(len(g) * (statistics.mean(g) - mean) ** 2 for g in groups.values()) / len(values)
        means = sorted(statistics.mean(g) for g in groups.values())
        text += f" {axis} {100 * between / total if total else 0:.0f} % ({means[0]:.2f}..{means[-1]:.2f})"
    return text


def best_of(first: dict[str, float], count: int) -> list[str]:
    """Return the fastest labels."""
    return sorted(first, key=first.__getitem__)[:count]


def combined(processes: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float, str]]:
    """Return (median over processes of their medians, spread of those, label), fastest first."""
    medians: dict[str, list[float]] = {}
    for process in processes:
        for label, values in process.get(key, {}).get("final_us", {}).items():
            medians.setdefault(label, []).append(statistics.median(values))
    rows = [
        (statistics.median(values), max(values) - min(values), label) for label, values in medians.items()
    ]
    return sorted(rows)


def brief(label: str) -> str:
    """Return a label without what is the same for most."""
    return re.sub(r" (f16|(touch|spread|first|ps)=0|exact=1|keep=1)(?= |$)", "", label)


def report(processes: Sequence[dict[str, Any]]) -> str:
    """Return the table of all shapes."""
    lines: list[str] = []
    kinds = {v.label: (v.group, v.kind, v.axes) for v in focused()}
    for group, rows, hidden in SHAPES:
        key = f"{group} {rows}x{hidden}"
        ranked = combined(processes, key)
        done = [p[key]["elapsed_s"] for p in processes if key in p]
        lines.append(f"== {key} f16, {len(done)} processes, {sum(done):.1f} s")
        shown = [row for row in ranked if row[2] in kinds][:SHOWN]
        others = [row for row in ranked if row[2] not in kinds]
        lines += [f"{us:8.2f} +-{wide:5.2f} {brief(label)}" for us, wide, label in sorted(shown + others)]
        lines += [
            placement_lines(p[key]["placement"]["points"]) for p in processes if "placement" in p.get(key, {})
        ]
        lines += [line for p in processes for line in residue_lines(p.get(key, {}).get("residue", {}))]
        first = processes[0].get(key, {}).get("first_us", {}) if processes else {}
        axes: dict[tuple[str, str], dict[str, float]] = {}
        for label, us in first.items():
            if label in kinds:
                for axis, value in kinds[label][2].items():
                    row = axes.setdefault((kinds[label][1], axis), {})
                    row[str(value)] = min(us, row.get(str(value), us))
        clean = processes[0].get(key, {}).get("clean_us", {}) if processes else {}
        if clean:
            lines.append(
                " clean L2: "
                + "; ".join(f"{brief(k)} {us:.2f}" for k, us in sorted(clean.items(), key=lambda i: i[1]))
            )
        for (kind, axis), row in axes.items():
            if len(row) > 1:
                lines.append(f" {kind}.{axis} " + " ".join(f"{v}:{us:.2f}" for v, us in row.items()))
    return "\n".join(lines)


def dry_run(out: Path) -> int:
    """Build a sample, resolve its symbols, try the bookkeeping."""
    variants = focused()
    builds = Builds(out / "build", variants, stride=40)
    for group in builds.futures:
        libraries, errors = builds.group(group)
        assert not errors, errors
        bench = FocusBench(group, variants, libraries, set(), out / "current")
        wanted = {v.label for _, v in builds.variants if v.group == group}
        assert wanted == set(bench.variants), wanted ^ set(bench.variants)
        print(f"{group}: {len(bench.functions)} functions loaded")
    labels = [v.label for v in variants]
    assert len({(v.group, v.label) for v in variants}) == len(labels)
    events = [("x", 0, 9), (MARKER, 1, 1), ("a", 2, 1500), ("b", 4, 500), (MARKER, 5, 1), ("x", 6, 7)]
    events += [(MARKER, 8, 1), ("a", 9, 700), (MARKER, 10, 1)]
    assert between_markers(events) == [2.0, 0.7]
    plan = runs_of(["a", "b"], 3, 2, random.Random(1))
    assert len(plan) == 12 and plan.count(("a", 0)) == 3
    key = "rmsnorm 1024x4096"
    fake = {label: [1.0 + i, 2.0 + i] for i, label in enumerate(labels[:9])}
    processes = [
        {key: {"first_us": {k: v[0] for k, v in fake.items()}, "final_us": fake, "elapsed_s": 1.0}}
    ] * 2
    print(report(processes))
    return 0


def main() -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--child", type=int)
    parser.add_argument("--deadline", type=float, default=0.0)
    parser.add_argument("--limit-s", type=float, default=80.0)
    parser.add_argument("--processes", type=int, default=3)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if arguments.child is not None:
        return child(out, arguments.child, arguments.deadline)
    if arguments.dry_run:
        return dry_run(out)
    for stale in (*out.glob("*.done"), *out.glob("*.json")):
        stale.unlink()
    started = time.time()
    deadline = started + arguments.limit_s
    children = [
        subprocess.Popen(
            [sys.executable, __file__, str(out), "--child", str(index), "--deadline", str(deadline - 3)]
        )
        for index in range(arguments.processes)
    ]
    build_all(out)
    print(f"built after {time.time() - started:.1f} s", flush=True)
    for process in children:
        try:
            process.wait(timeout=max(1.0, deadline - time.time()))
        except subprocess.TimeoutExpired:
            print(f"a process was stopped at the time limit, checking {current(out)!r}")
            process.kill()
    processes = [
        json.loads(p.read_text()) for p in (out / f"{i}.json" for i in range(len(children))) if p.exists()
    ]
    (out / "focus.json").write_text(json.dumps(processes))
    print(report(processes))
    print(f"total {time.time() - started:.1f} s")
    return 0


def current(out: Path) -> str:
    """Return which variant was being checked last."""
    path = out / "current"
    return path.read_text() if path.exists() else ""


def build_all(out: Path) -> None:
    """Compile everything; a unit that does not compile is told and left out."""
    builds = Builds(Path("/tmp/mini_kv_focus"), focused())
    libraries: dict[str, list[str]] = {}
    for group in builds.futures:
        found, errors = builds.group(group)
        libraries[group] = [str(path) for path in found]
        for error in errors:
            print(error[:1500])
    partial = out / "libraries.partial"
    partial.write_text(json.dumps(libraries))
    partial.rename(out / "libraries.json")


if __name__ == "__main__":
    sys.exit(main())
