"""The study's commands: measure, simulate, summarise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mini_kv.core.record import to_json
from mini_kv.system.files import write_bytes_atomic
from study.records import Raw, load_raw


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(root: Path, arguments: argparse.Namespace) -> int:
    """Measure, keep the raw times after every wave, then summarise."""
    from study.bench import open_bench
    from study.measuring import run

    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    raw: Raw | None = None
    with open_bench(root, arguments.device) as bench:
        for raw in run(bench, arguments.processes, arguments.wave, arguments.budget, _say):
            write_bytes_atomic(output / "gate_study_raw.json", to_json(raw, indent=None))
    if raw is None:
        _say("nothing was measured within the budget")
        return 1
    if arguments.raw_only:
        return 0
    return summarise(output / "gate_study_raw.json")


def simulate(arguments: argparse.Namespace) -> int:
    """Write gate_study_raw.json from the model, then summarise."""
    from study.model import simulate as model

    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    raw = model(processes=arguments.processes, seed=arguments.seed)
    write_bytes_atomic(output / "gate_study_raw.json", to_json(raw, indent=None))
    return summarise(output / "gate_study_raw.json")


def summarise(path: Path) -> int:
    """Decide over what was measured; write gate_study_summary.json beside it and print its tables."""
    from study import summary, tables

    found = summary.summarise(load_raw(path.read_bytes()))
    write_bytes_atomic(path.parent / "gate_study_summary.json", to_json(found))
    print(tables.as_text(found))
    return 0


def document(root: Path, check: bool) -> int:
    """Fill the measured tables of docs/method.md; with ``check`` only say whether they are up to date."""
    from study.document import DOCUMENT, filled

    path = root / DOCUMENT
    text = path.read_text(encoding="utf-8")
    wanted = filled(text, root)
    if wanted == text:
        return 0
    if check:
        _say(f"{DOCUMENT} does not show the committed evidence; run scripts/gate_study.py document")
        return 1
    write_bytes_atomic(path, wanted.encode("utf-8"))
    return 0
