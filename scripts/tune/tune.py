"""Check and time every kernel variant beside its peers; one sorted table per shape.

Times are device times of single kernels (CUPTI, through torch.profiler), each call behind a memset of
twice the L2; calls of all variants alternate in random order, so that drift meets all alike. First
few rounds of everything, then many rounds of the best, the shipped candidates and the peers.

    python tune.py OUT_DIR            build and run (one child process per operator)
    python tune.py OUT_DIR --dry-run  build a sample, load it, run the bookkeeping on the CPU
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench import Bench, fit, segments
from build import Builds
from variants import all_variants

GROUPS = ("rmsnorm", "bias_relu", "vector_add")
SHAPES: dict[str, tuple[tuple[int, int, str], ...]] = {
    "rmsnorm": (
        (1024, 4096, "f16"), (65536, 4096, "f16"), (1024, 4096, "bf16"), (1024, 4096, "f32"),
        (4096, 768, "f16"), (1024, 5120, "f16"), (1024, 8192, "f16"), (512, 16384, "f16"),
        (32768, 8192, "f16"),
    ),
    "bias_relu": ((1024, 4096, "f16"), (65536, 4096, "f16"), (256, 4096, "f32"), (1024, 5120, "f16")),
    "vector_add": ((1, 1 << 20, "f16"), (1, 1 << 22, "f16"), (1, 1 << 28, "f16")),
}  # fmt: skip


def child(group: str, out: Path, skip: set[str]) -> int:
    """Run one operator's shapes in this process, once its libraries are built and the GPU is free."""
    import torch  # noqa: F401 - takes seconds, which the compiler needs anyway

    ready = out / f"{group}.libraries.json"
    while not ready.exists():
        time.sleep(0.05)
    with (out / "gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return measure_group(group, out, skip)


def measure_group(group: str, out: Path, skip: set[str]) -> int:
    """Check and time every shape of one operator."""
    started = time.perf_counter()
    libraries = [Path(p) for p in json.loads((out / f"{group}.libraries.json").read_text())]
    bench = Bench(group, all_variants(), libraries, skip, out / f"{group}.current")
    bench.torch.manual_seed(3)
    warm = bench.torch.randn(8192, 8192, device="cuda", dtype=bench.torch.float16)
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        warm @ warm  # brings the clocks up
        bench.torch.cuda.synchronize()
    del warm
    results = []
    for rows, hidden, dtype in SHAPES[group]:
        results.append(bench.shape(rows, hidden, dtype))
        (out / f"{group}.json").write_text(json.dumps(results))
        bench.torch.cuda.empty_cache()
    print(f"{group} held the GPU for {time.perf_counter() - started:.1f} s", flush=True)
    return 0


def run_group(group: str, out: Path, deadline: float) -> None:
    """Run a child; after a crash once more, without the variant that it was checking."""
    skip: list[str] = []
    for _ in range(3):
        (out / f"{group}.skip.json").write_text(json.dumps(skip))
        left = deadline - time.perf_counter()
        if left < 5:
            print(f"{group}: no time left")
            return
        command = [sys.executable, __file__, str(out), "--child", group]
        try:
            status = subprocess.run(command, timeout=left, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"{group}: stopped at the time limit, checking {(out / f'{group}.current').read_text()!r}")
            return
        culprit = (out / f"{group}.current").read_text() if (out / f"{group}.current").exists() else ""
        if status == 0:
            return
        print(f"{group}: the child ended with {status} at {culprit!r}", flush=True)
        if not culprit:
            return
        skip.append(culprit)


def dry_run(out: Path) -> int:
    """Build a sample of all variants, resolve every symbol, try the bookkeeping."""
    builds = Builds(out / "build", all_variants(), stride=60)
    for group in GROUPS:
        libraries, errors = builds.group(group)
        assert not errors, errors
        bench = Bench(group, all_variants(), libraries, set(), out / "current")
        wanted = {v.label for _, v in builds.variants if v.group == group}
        assert wanted == set(bench.variants), wanted ^ set(bench.variants)
        for shape in SHAPES[group]:
            fitting = sum(fit(v, *shape) for v in all_variants() if v.group == group)
            print(f"{group} {shape}: {fitting} variants fit; {len(bench.functions)} functions loaded")
            assert fitting
        bench.rows, bench.hidden, bench.dtype = SHAPES[group][0]
        values = {label: [1.0 + i, 2.0] for i, label in enumerate(bench.variants)}
        bench.report({k: v[0] for k, v in values.items()}, values, 0.0, 0.0)
    fake = [
        ("Memset (Device)", 1, 9),
        ("k", 2, 1500),
        ("j", 3, 500),
        ("Memset (Device)", 4, 9),
        ("k", 5, 700),
    ]
    assert segments(fake, {"Memset (Device)"}) == [2.0, 0.7]
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(3).add(1)
    event = profile.profiler.kineto_results.events()[0]
    print("dry run passed;", event.name(), event.start_ns() > 0, event.duration_ns(), event.device_type())
    return 0


def main() -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--child", choices=GROUPS)
    parser.add_argument("--limit-s", type=float, default=120.0)
    parser.add_argument("--groups", default=",".join(GROUPS))
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        return child(
            arguments.child, out, set(json.loads((out / f"{arguments.child}.skip.json").read_text()))
        )
    if arguments.dry_run:
        return dry_run(out)
    started = time.perf_counter()
    groups = arguments.groups.split(",")
    for stale in out.glob("*.libraries.json"):
        stale.unlink()
    builds = Builds(Path("/tmp/mini_kv_tune"), all_variants())
    deadline = started + arguments.limit_s
    children = [threading.Thread(target=run_group, args=(group, out, deadline)) for group in groups]
    for thread in children:
        thread.start()
    for group in groups:
        libraries, errors = builds.group(group)
        print(f"{group}: {len(libraries)} libraries after {time.perf_counter() - started:.1f} s", flush=True)
        for error in errors:
            print(error)
        partial = out / f"{group}.libraries.partial"
        partial.write_text(json.dumps([str(p) for p in libraries]))
        partial.rename(out / f"{group}.libraries.json")
    for thread in children:
        thread.join()
    print(f"total {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
