"""Time the command line as whole processes: help, cards, and one verify without and with a build to reuse.

Everything runs on copies in a scratch folder, so that neither builds nor archives of the checkout are
touched. Prints one line a figure with its budget; the exit code says only whether the commands worked.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_kv.system.scratch import scratch_folder

ROOT = Path(__file__).resolve().parent.parent
MINI_KV = (sys.executable, "-m", "mini_kv")
CARDS = 1000


def main(argv: list[str] | None = None) -> int:
    """Run the benchmarks that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10, help="runs of each short command (default: 10)")
    parser.add_argument("--skip-verify", action="store_true", help="leave out the two runs of verify")
    arguments = parser.parse_args(argv)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}" + ("  (busy: figures will be high)" if load > 1 else ""))
    with scratch_folder("bench-") as scratch:
        project = copy_project(scratch)
        short_commands(project, arguments.repeats)
        many_cards(project, repeats=3)
        if not arguments.skip_verify:
            verify_twice(project)
    return 0


def copy_project(scratch: Path) -> Path:
    """Return a folder with the rmsnorm card and its candidates, and nothing built."""
    project = scratch / "project"
    (project / "tasks").mkdir(parents=True)
    (project / "mini_kv.toml").touch()
    shutil.copy(ROOT / "tasks" / "rmsnorm.yaml", project / "tasks")
    shutil.copytree(ROOT / "candidates" / "rmsnorm", project / "candidates" / "rmsnorm")
    return project


def short_commands(project: Path, repeats: int) -> None:
    """Time the commands that people wait for at the prompt."""
    bare = median_ms((sys.executable, "-c", "pass"), project, repeats)
    print(f"{'python -c pass':<34} {bare:8.0f} ms")
    line("mini-kv --help", median_ms((*MINI_KV, "--help"), project, repeats), 150.0)
    card = ("validate-task", "tasks/rmsnorm.yaml")
    line("mini-kv validate-task", median_ms((*MINI_KV, *card), project, repeats), 250.0)


def many_cards(project: Path, repeats: int) -> None:
    """Time the validation of many cards in one process."""
    text = (project / "tasks" / "rmsnorm.yaml").read_text("utf-8")
    folder = project / "many"
    folder.mkdir()
    for number in range(CARDS):
        changed = text.replace("task_id: rmsnorm", f"task_id: rmsnorm_{number}", 1)
        (folder / f"card_{number}.yaml").write_text(changed, "utf-8")
    paths = sorted(str(path.relative_to(project)) for path in folder.iterdir())
    took = median_ms((*MINI_KV, "validate-task", *paths), project, repeats)
    line(f"mini-kv validate-task, {CARDS} cards", took, 3000.0)


def verify_twice(project: Path) -> None:
    """Time a verdict that has to build first, and one that finds the build."""
    for name, budget_s in (("cold", 40.0), ("warm", 25.0)):
        started = time.perf_counter()
        verdict = verify(project)
        took_ms = 1000.0 * (time.perf_counter() - started)
        line(f"mini-kv verify rmsnorm cpu, {name}", took_ms, 1000.0 * budget_s)
        stages = verdict["attempt"]["stage_elapsed_s"]
        parts = ", ".join(f"{stage} {elapsed_s:.1f} s" for stage, elapsed_s in stages.items())
        print(f"  {parts}; exit code {verdict['attempt']['exit_code']}")
    build = json.loads((Path(verdict["folder"]) / "compile.json").read_text("utf-8"))
    print(
        f"{'build found in the cache':<34} {1000.0 * build['elapsed_s']:8.1f} ms  (cached: {build['cached']})"
    )


def verify(project: Path) -> dict[str, Any]:
    """Run one verify and return what it printed; ends the benchmark where it printed nothing."""
    command = (*MINI_KV, "verify", "--task", "tasks/rmsnorm.yaml", "--device", "cpu", "--json")
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"bench: verify said nothing (exit code {done.returncode}): {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def median_ms(command: Sequence[str], folder: Path, repeats: int) -> float:
    """Return the median wall time of whole processes, after one that warms the disk's cache."""
    took: list[float] = []
    for number in range(repeats + 1):
        started = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"bench: {' '.join(command)[:200]} failed: {done.stderr[-2000:]}")
        if number:
            took.append(1000.0 * (time.perf_counter() - started))
    return statistics.median(took)


def line(name: str, took_ms: float, budget_ms: float) -> None:
    """Print one figure next to its budget."""
    word = "" if took_ms <= budget_ms else "  OVER"
    print(f"{name:<34} {took_ms:8.0f} ms   budget {budget_ms:6.0f} ms{word}")


if __name__ == "__main__":
    sys.exit(main())
