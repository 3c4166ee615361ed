"""Keep the numbers of docs/optimization-rmsnorm.md equal to the evidence they come from.

The page's tables stand between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and are written from the
attempts and profiles under ``evidence/``; of a candidate's several the last started counts. A number
without evidence is a dash.

    python scripts/optimization_page.py           say what differs; exit code 1 if anything does
    python scripts/optimization_page.py --write   rewrite the tables
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/optimization-rmsnorm.md"
CASE_ID = "bench_1024x4096_f16"
STEPS = ("rmsnorm_v0_naive", "rmsnorm_v1_block_reduce", "rmsnorm_v2_vectorized")
NO_NUMBER = "-"


def _documents(root: Path, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((root / "evidence").glob(f"**/{name}")):
        yield path, json.loads(path.read_text("utf-8"))


def timed_cases(root: Path) -> dict[str, dict[str, Any]]:
    """Return each step's benchmark of :data:`CASE_ID` on a GPU, from its last attempt in the evidence."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for path, attempt in _documents(root, "attempt.json"):
        benchmark_path = path.with_name("benchmark.json")
        if attempt.get("candidate_id") not in STEPS or not benchmark_path.is_file():
            continue
        benchmark = json.loads(benchmark_path.read_text("utf-8"))
        for case in benchmark["cases"]:
            if case["case_id"] == CASE_ID and benchmark["device"] == "cuda" and case["candidate"] is not None:
                started = str(attempt.get("started_at", ""))
                if started >= found.get(attempt["candidate_id"], ("", {}))[0]:
                    found[attempt["candidate_id"]] = (started, case)
    return {candidate: case for candidate, (_, case) in found.items()}


def profiles(root: Path) -> dict[str, dict[str, Any]]:
    """Return each step's kernel facts out of its last successful profile of :data:`CASE_ID`."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for _, profile in _documents(root, "profile.json"):
        facts = profile.get("facts")
        if profile.get("case_id") != CASE_ID or profile.get("candidate_id") not in STEPS or not facts:
            continue
        started = str(profile.get("started_at", ""))
        if started >= found.get(profile["candidate_id"], ("", {}))[0]:
            found[profile["candidate_id"]] = (started, facts)
    return {candidate: facts for candidate, (_, facts) in found.items()}


def _number(value: float | None, digits: int) -> str:
    return NO_NUMBER if value is None else f"{value:.{digits}f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _kernel_us(case: dict[str, Any] | None, side: str) -> float | None:
    seen = case[f"{side}_kernel"] if case else None
    return seen["kernel_us"] if seen else None


def times_table(cases: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table of times, one row a step."""
    rows, before = [], None
    for step in STEPS:
        case = cases.get(step)
        kernel = _kernel_us(case, "candidate")
        rows.append(
            [
                f"`{step.removeprefix('rmsnorm_')}`",
                _number(case["candidate"]["p50_us"] if case else None, 2),
                _number(kernel, 2),
                _number(before / kernel if before and kernel else None, 1),
                _number(case["kernel_speedup"] if case else None, 2),
                _number(case["bytes_moved"] / kernel / 1e3 if case and kernel else None, 0),
            ]
        )
        before = kernel
    header = [
        "step",
        "P50, us",
        "kernel, us",
        "times the step before",
        "times eager (kernel)",
        "GB/s (kernel)",
    ]
    return _table(header, rows)


def _profile_cells(facts: dict[str, Any]) -> dict[str, str]:
    x, y, z = facts["block"]
    return {
        "blocks": str(facts["grid"][0]),
        "threads a block": str(x * y * z),
        "registers a thread": str(facts["registers_per_thread"]),
        "waves an SM": _number(facts["waves_per_multiprocessor"], 2),
        "achieved occupancy, %": _number(facts["achieved_occupancy_percent"], 1),
        "DRAM throughput, %": _number(facts["dram_throughput_percent"], 1),
        "sectors a load request": _number(facts["load_sectors_per_request"], 2),
        "first stall reason": facts["stalls"][0]["name"] if facts["stalls"] else NO_NUMBER,
    }


PROFILE_ROWS = (
    "blocks",
    "threads a block",
    "registers a thread",
    "waves an SM",
    "achieved occupancy, %",
    "DRAM throughput, %",
    "sectors a load request",
    "first stall reason",
)


def profile_table(facts: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table of what Nsight Compute counted, one column a step."""
    cells = {step: _profile_cells(facts[step]) for step in STEPS if step in facts}
    rows = [[name, *(cells.get(step, {}).get(name, NO_NUMBER) for step in STEPS)] for name in PROFILE_ROWS]
    return _table(["", *(f"`{step.removeprefix('rmsnorm_')}`" for step in STEPS)], rows)


def rendered(page: str, root: Path) -> str:
    """Return the page with its tables as the evidence has them. Raises ``ValueError`` for a lost marker."""
    tables = {"times": times_table(timed_cases(root)), "profile": profile_table(profiles(root))}
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"{PAGE} needs exactly one block <!-- {name}:begin --> ... <!-- {name}:end -->")
        page = pattern.sub(rf"\g<1>{table}\n\g<2>", page)  # a table holds no backslash
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Compare or rewrite; exit code 1 when the page differs from the evidence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args(argv)
    path: Path = arguments.root / PAGE
    page = path.read_text("utf-8")
    wanted = rendered(page, arguments.root)
    if arguments.write:
        path.write_text(wanted, "utf-8")
        return 0
    if page != wanted:
        print(f"{PAGE} differs from the evidence: run scripts/optimization_page.py --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
