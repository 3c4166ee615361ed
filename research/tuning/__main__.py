"""Time a grid of variants as `mini-kv verify` times kernels, in several fresh processes; one compact table.

Calls of one kernel come in short runs, of which the first call does not count; the order of runs is random.
Where a small kernel's inputs and its result lie decides more of its time than how it is written, so both move
over many places in memory, the same for all kernels. The first process checks and times every variant, the
others the best ones. A variant that crashes or hangs the first process is left out with all of its kind, and
the process starts again.

    python -m research.tuning OUT_DIR [--grid NAME]            build and run
    python -m research.tuning OUT_DIR [--grid NAME] --dry-run  build a sample and load it: needs no GPU
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from research import ROOT
from research.tuning.bench import Bench, Call, reference_of, through
from research.tuning.build import Builds
from research.tuning.grids import GRIDS, Grid, Shape, key_of
from research.tuning.placement import placement, residue
from research.tuning.report import best_of, report

FINALISTS = 36
QUIET_S = 25.0  # how long the first process waits for others to finish compiling
STUCK_S, RESTARTS = 6.0, 4

Compiled = dict[Shape, Callable[[Any, Any], Any]]


def compiled_peers(grid: Grid) -> Compiled:
    """Compile every peer for its shape, once a process; a peer that does not compile is left out."""
    import torch
    import torch._inductor.config

    found: Compiled = {}
    torch._inductor.config.compile_threads = 1
    for shape in grid.compiled:
        group, rows, hidden, dtype = shape
        kind = torch.float32 if dtype == "f32" else torch.float16
        function = torch.compile(reference_of(group), dynamic=False)
        try:
            x = torch.randn(rows, hidden, device="cuda", dtype=kind)
            second = (rows, hidden) if group == "vector_add" else (hidden,)
            function(x, torch.randn(*second, device="cuda", dtype=kind))
            found[shape] = function
        except Exception as error:  # noqa: BLE001 - see above
            print(f"  torch.compile {shape}: {error!r}"[:200], flush=True)
    torch.cuda.empty_cache()
    return found


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock between the processes of this run."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ready(out: Path, index: int, processes: int, deadline: float) -> bool:
    """Wait for the libraries, the process before and, in the first, a quiet GPU; false if it is too late."""
    built = None
    while time.time() < deadline:
        if built is None and (out / "libraries.json").exists():
            built = time.time()
        if built is not None:
            if index:
                go = (out / f"{index - 1}.done").exists()
            else:
                go = all((out / f"{i}.warm").exists() for i in range(processes))
                go = go or time.time() - built > QUIET_S
            if go:
                return True
        time.sleep(0.05)
    return False


def child(grid: Grid, out: Path, index: int, processes: int, deadline: float) -> int:
    """Be one process: everything that needs no quiet GPU first, then every shape that is not done."""
    import torch

    with alone(out / "warm.lock"):
        compiled = compiled_peers(grid)
    (out / f"{index}.warm").write_text("")
    if not ready(out, index, processes, deadline):
        return 1
    torch.manual_seed(index)
    warm = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    until = time.perf_counter() + 0.3
    while time.perf_counter() < until:
        warm @ warm  # brings the clocks up
        torch.cuda.synchronize()
    del warm
    results: dict[str, Any] = loaded(out / f"{index}.json", {})
    for shape in grid.shapes:
        if time.time() > deadline:
            break
        if key_of(shape) not in results:
            results[key_of(shape)] = measure_shape(grid, shape, out, index, compiled)
            (out / f"{index}.json").write_text(json.dumps(results))
    (out / f"{index}.done").write_text("")
    return 0


def measure_shape(grid: Grid, shape: Shape, out: Path, index: int, compiled: Compiled) -> dict[str, Any]:
    """Time one shape; the first process also names its finalists for the others."""
    group, rows, hidden, dtype = shape
    skipped: list[str] = loaded(out / "skip.json", [])
    variants = grid.variants()
    skip = {v.label for v in variants if v.kind in skipped}
    libraries = [Path(p) for p in json.loads((out / "libraries.json").read_text())[group]]
    mark = out / "current"
    bench = Bench(group, variants, libraries, skip=skip, mark=mark, places=grid.places, seed=index)
    bench.prepare(rows, hidden, dtype)
    bench.forget_kept_lines()
    found_peers = {k: c for k, c in bench.peers().items() if grid.triton or "triton" not in k}
    peers = {label: bench.held(call) for label, call in bench.working_peers(found_peers).items()}
    finalists: dict[str, list[str]] = loaded(out / "finalists.json", {})
    found = measure(bench, peers, finalists.get(key_of(shape)) if index else None)
    study = grid.studies and shape == grid.shapes[0]
    if study and index < 2:
        found["placement"] = placement(bench)
    if shape in compiled:
        # Last: its kernels may ask the L2 cache to keep their input, which then is warm for all others.
        last = {"PEER torch.compile": bench.held(functools.partial(through, compiled[shape], bench))}
        found["final_us"] |= bench.timed(last, 3, 4 if bench.large else bench.places + 1)
        if study:
            found["residue"] = residue(bench, compiled[shape])
    if not index:
        finalists[key_of(shape)] = found["finalists"]
        (out / "finalists.json").write_text(json.dumps(finalists))
    bench.torch.cuda.empty_cache()
    return found


def keeps_lines(label: str) -> bool:
    """Tell whether a variant asks the L2 cache to keep what it reads, which then is warm for others."""
    return " ld=el" in label


def measure(bench: Bench, peers: dict[str, Call], chosen: list[str] | None) -> dict[str, Any]:
    """Time everything a few times and the best often, or only those ``chosen`` before."""
    started = time.perf_counter()
    if chosen is not None:
        for label in list(bench.functions):
            if label in bench.variants and label not in chosen and not keeps_lines(label):
                del bench.functions[label], bench.variants[label]
    calls = bench.right_kernels()
    calls = {label: call for label, call in calls.items() if not label.startswith("rmsnorm_v0")}
    once, often = (3, 4) if bench.large else (bench.places + 1, bench.places + 1)
    first: dict[str, float] = {}
    if chosen is None:
        times = in_turn(bench, calls, 1, once)
        first = {label: statistics.median(values) for label, values in times.items()}
        ranked = sorted((k for k in calls if k in first and k in bench.variants), key=first.__getitem__)
        chosen = ranked[:FINALISTS]
    calls = {k: c for k, c in calls.items() if k in chosen or k not in bench.variants}
    leaders = best_of({k: us for k, us in first.items() if not keeps_lines(k)}, 3)
    few = {k: c for k, c in {**calls, **peers}.items() if k not in bench.variants or k in leaders}
    clean = bench.timed(few, 1, often, bench.clear_clean) if first and not bench.large else {}
    last = in_turn(bench, {**calls, **peers}, 4 if bench.large else 3, often)
    return {
        "first_us": first,
        "final_us": last,
        "clean_us": {label: statistics.median(values) for label, values in clean.items()},
        "finalists": [label for label in calls if label in bench.variants],
        "elapsed_s": time.perf_counter() - started,
    }


def in_turn(bench: Bench, calls: dict[str, Call], runs: int, per_run: int) -> dict[str, list[float]]:
    """Time all calls, those that make the cache keep lines after the others."""
    bench.forget_kept_lines()
    times = bench.timed({k: c for k, c in calls.items() if not keeps_lines(k)}, runs, per_run)
    kept = {k: c for k, c in calls.items() if keeps_lines(k)}
    if kept:
        times |= bench.timed(kept, runs, per_run)
        bench.forget_kept_lines()
    return times


def keep_compiled(out: Path) -> None:
    """Keep what torch.compile wrote: its kernels, and the block sizes that it chose."""
    folder = out / "inductor"
    folder.mkdir(exist_ok=True)
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    for path in sorted(Path(cache).rglob("*")) if cache else ():
        if path.suffix in (".py", ".best_config") and "num_warps" in path.read_text():
            (folder / path.name).write_text(path.read_text())


def loaded(path: Path, default: Any) -> Any:
    """Return what a JSON file holds, or the default where there is none."""
    return json.loads(path.read_text()) if path.exists() else default


def dry_run(grid: Grid, out: Path, stride: int) -> int:
    """Build a sample, load it and resolve its symbols."""
    variants = grid.variants()
    builds = Builds(out / "build", variants, stride=stride, shipped=grid.shipped)
    for group in builds.futures:
        libraries, errors = builds.group(group)
        assert not errors, errors
        bench = Bench(group, variants, libraries, skip=set(), mark=out / "current")
        wanted = {v.label for _, v in builds.variants if v.group == group}
        assert wanted == set(bench.variants), wanted ^ set(bench.variants)
        print(f"{group}: {len(bench.functions)} functions loaded")
    return 0


def main() -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--grid", choices=tuple(GRIDS), default="focus")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--stride", type=int, default=40, help="of the dry run's sample")
    parser.add_argument("--child", type=int)
    parser.add_argument("--deadline", type=float, default=0.0)
    parser.add_argument("--limit-s", type=float, default=80.0)
    parser.add_argument("--processes", type=int, default=3)
    arguments = parser.parse_args()
    grid = GRIDS[arguments.grid]
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.child is not None:
        return child(grid, out, arguments.child, arguments.processes, arguments.deadline)
    if arguments.dry_run:
        return dry_run(grid, out, arguments.stride)
    for stale in (*out.glob("*.done"), *out.glob("*.json"), *out.glob("*.warm"), *out.glob("current")):
        stale.unlink()
    started = time.time()
    run = Run(arguments.grid, out, arguments.processes, started + arguments.limit_s)
    build_all(grid, out)
    print(f"built after {time.time() - started:.1f} s", flush=True)
    run.wait()
    processes = [
        json.loads(p.read_text())
        for p in (out / f"{i}.json" for i in range(arguments.processes))
        if p.exists()
    ]
    (out / "focus.json").write_text(json.dumps(processes))
    print(report(grid, processes))
    keep_compiled(out)
    print(f"total {time.time() - started:.1f} s")
    return 0


class Run:
    """The processes of a run; the first is started again, without a kind of variant, where it breaks."""

    def __init__(self, grid: str, out: Path, count: int, deadline: float) -> None:
        self.grid, self.out, self.count, self.deadline = grid, out, count, deadline
        self.children = [self._start(index) for index in range(count)]
        self.restarts = 0

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        options = ("--grid", self.grid, "--child", str(index), "--processes", str(self.count))
        deadline = ("--deadline", str(self.deadline - 3))
        return subprocess.Popen(
            [sys.executable, "-m", "research.tuning", str(self.out), *options, *deadline], cwd=ROOT
        )

    def wait(self) -> None:
        """Return once all have ended or the time is over, then ending those that run."""
        while any(process.poll() is None for process in self.children) and time.time() < self.deadline:
            first = self.children[0]
            if (first.poll() or self._stuck()) and self.restarts < RESTARTS:
                self._restart(first)
            time.sleep(0.1)
        for index, process in enumerate(self.children):
            if process.poll() is None:
                print(f"process {index} was stopped at the time limit, checking {current(self.out)!r}")
                process.kill()
            elif process.returncode:
                print(f"process {index} ended with {process.returncode}, checking {current(self.out)!r}")

    def _stuck(self) -> bool:
        mark = self.out / "current"
        running = self.children[0].poll() is None and bool(current(self.out))
        return running and time.time() - mark.stat().st_mtime > STUCK_S

    def _restart(self, process: subprocess.Popen[bytes]) -> None:
        culprit = current(self.out)
        process.kill()
        process.wait()
        kinds: list[str] = loaded(self.out / "skip.json", [])
        if culprit:
            kinds.append(culprit.split()[0])
        print(f"the first process broke at {culprit!r} and starts again without {kinds}", flush=True)
        (self.out / "skip.json").write_text(json.dumps(kinds))
        (self.out / "current").write_text("")
        self.restarts += 1
        self.children[0] = self._start(0)


def current(out: Path) -> str:
    """Return which variant was being checked last."""
    path = out / "current"
    return path.read_text() if path.exists() else ""


def build_all(grid: Grid, out: Path) -> None:
    """Compile everything; a unit that does not compile is told and left out."""
    builds = Builds(Path("/tmp/mini_kv_tuning"), grid.variants(), shipped=grid.shipped)
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
