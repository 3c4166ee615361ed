"""What the pages rest on, read from ``evidence/``: attempts, profiles, a sweep, the tuning's table.

Of several attempts or profiles of one thing the last started counts. Times are microseconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASE_ID = "bench_1024x4096_f16"
TASK_ID = "rmsnorm"
SHAPE = "1024x4096 f16"
TUNING = "evidence/h200/tuning/focus.txt"
STEPS = ("rmsnorm_v0_naive", "rmsnorm_v1_block_reduce", "rmsnorm_v2_vectorized")


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Kernel times of a candidate and of its reference, in one run."""

    candidate_us: float
    reference_us: float
    # The ratio reference / candidate, and an interval that holds it in 19 of 20 runs.
    ratio: float
    ratio_low: float
    ratio_high: float
    percent_of_copy: float | None


def documents(root: Path, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every JSON document of that name below ``evidence/``, by path."""
    for path in sorted((root / "evidence").glob(f"**/{name}")):
        yield path, json.loads(path.read_text("utf-8"))


def last_benchmarks(root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last GPU benchmark of each (task id, candidate id)."""
    found: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    for path, attempt in documents(root, "attempt.json"):
        benchmark_path = path.with_name("benchmark.json")
        if not benchmark_path.is_file():
            continue
        benchmark = json.loads(benchmark_path.read_text("utf-8"))
        key = (str(attempt.get("task_id")), str(attempt.get("candidate_id")))
        started = str(attempt.get("started_at", ""))
        if benchmark["device"] == "cuda" and started >= found.get(key, ("", {}))[0]:
            found[key] = (started, benchmark)
    return {key: benchmark for key, (_, benchmark) in found.items()}


def timed_cases(root: Path) -> dict[str, dict[str, Any]]:
    """Return each step's benchmark of :data:`CASE_ID`, by the card whose reference is eager PyTorch."""
    found: dict[str, dict[str, Any]] = {}
    for (task_id, candidate_id), benchmark in last_benchmarks(root).items():
        if task_id != TASK_ID or candidate_id not in STEPS:
            continue
        for case in benchmark["cases"]:
            if case["case_id"] == CASE_ID and case["candidate"] is not None:
                found[candidate_id] = {**case, "copy_gb_per_s": benchmark.get("copy_gb_per_s")}
    return found


def peer_cases(root: Path, task_id: str) -> dict[str, Kernels]:
    """Return the kernel times of a peer's card by case id; empty where the evidence has none."""
    cases: dict[str, Kernels] = {}
    for (task, _), benchmark in sorted(last_benchmarks(root).items()):
        if task == task_id:
            for case in benchmark["cases"]:
                kernels = kernels_of(case, benchmark.get("copy_gb_per_s"))
                if kernels is not None:
                    cases[case["case_id"]] = kernels
    return cases


def kernels_of(case: dict[str, Any], copy_gb_per_s: float | None) -> Kernels | None:
    """Return a case's kernel times, or ``None`` where a witness is missing."""
    mine, theirs = case["candidate_kernel"], case["reference_kernel"]
    if mine is None or theirs is None:
        return None
    low, high = median_interval(mine["samples_us"])
    their_low, their_high = median_interval(theirs["samples_us"])
    candidate_us, moved = mine["kernel_us"], case["bytes_moved"]
    copied = 100.0 * moved / candidate_us / 1e3 / copy_gb_per_s if moved and copy_gb_per_s else None
    return Kernels(
        candidate_us=candidate_us,
        reference_us=theirs["kernel_us"],
        ratio=theirs["kernel_us"] / candidate_us,
        ratio_low=their_low / high,
        ratio_high=their_high / low,
        percent_of_copy=copied,
    )


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return two of the samples between which their median lies in 19 of 20 draws (order statistics)."""
    ordered, count = sorted(samples), len(samples)
    # Of n draws, n / 2 + 0.98 sqrt(n) or fewer fall below the median that often (normal approximation).
    reach = math.ceil(0.98 * math.sqrt(count))
    return ordered[max(0, count // 2 - reach)], ordered[min(count - 1, (count - 1) // 2 + reach)]


def last_profiles(root: Path) -> dict[str, dict[str, Any]]:
    """Return each step's last successful profile of :data:`CASE_ID`, whole."""
    found: dict[str, dict[str, Any]] = {}
    for _, profile in documents(root, "profile.json"):
        known = profile.get("case_id") == CASE_ID and profile.get("candidate_id") in STEPS
        if not known or not profile.get("facts"):
            continue
        before = found.get(profile["candidate_id"], {})
        if str(profile.get("started_at", "")) >= str(before.get("started_at", "")):
            found[profile["candidate_id"]] = profile
    return found


def profiles(root: Path) -> dict[str, dict[str, Any]]:
    """Return each step's kernel facts out of its last successful profile of :data:`CASE_ID`."""
    return {candidate: profile["facts"] for candidate, profile in last_profiles(root).items()}


@dataclass(frozen=True, kw_only=True)
class Copy:
    """The fastest plain copy of x that the tuning run found, and where that is written."""

    kernel_us: float
    file: str


def fastest_copy(root: Path) -> Copy | None:
    """Return the fastest copy of the case's x among the forms that tuning tried, or ``None``."""
    path = root / TUNING
    if not path.is_file():
        return None
    _, _, group = path.read_text("utf-8").partition(f"== copy {SHAPE}")
    best = re.search(r"^ +([\d.]+) \+- [\d.]+ once ", group.partition("\n== ")[0], re.MULTILINE)
    if best is None:
        return None
    return Copy(kernel_us=float(best[1]), file=TUNING)


def only_document(root: Path, name: str) -> tuple[Path, dict[str, Any]] | None:
    """Return the last document of that name by path, or ``None``."""
    return next(iter(sorted(documents(root, name), reverse=True, key=lambda item: item[0])), None)
