"""The study's commands: measure, simulate, summarise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mini_kv.core.record import to_json
from mini_kv.system.files import write_bytes_atomic
from research.gate_study.records import Raw, StudyError


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(root: Path, arguments: argparse.Namespace) -> int:
    """Measure, keep the raw times after every wave, then summarise; raises ``StudyError``."""
    from research.gate_study.bench import open_bench
    from research.gate_study.measuring import run

    output: Path = arguments.output
    names = [name.strip() for name in arguments.kernels.split(",")] if arguments.kernels else []
    raw: Raw | None = None
    with open_bench(root, arguments.device, names) as bench:
        output.mkdir(parents=True, exist_ok=True)
        for raw in run(bench, arguments.processes, arguments.wave, arguments.budget, _say):
            write_bytes_atomic(output / "gate_study_raw.json", to_json(raw, indent=None))
    if raw is None:
        _say("nothing was measured within the budget")
        return 1
    if arguments.raw_only:
        return 0
    return summarise([output / "gate_study_raw.json"])


def simulate(arguments: argparse.Namespace) -> int:
    """Write gate_study_raw.json from the model, then summarise."""
    from research.gate_study.model import simulate as model

    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    raw = model(processes=arguments.processes, seed=arguments.seed)
    write_bytes_atomic(output / "gate_study_raw.json", to_json(raw, indent=None))
    return summarise([output / "gate_study_raw.json"])


def summarise(paths: Sequence[Path]) -> int:
    """Decide over what was measured, of a kernel in several sessions over the last file named.

    Writes gate_study_summary.json next to the last file and prints its tables. Raises ``StudyError``.
    """
    from research.gate_study import sessions, summary, tables

    files: list[tuple[str, bytes]] = []
    for path in paths:
        try:
            files.append((path.name, path.read_bytes()))
        except OSError as error:
            raise StudyError(f"{path} cannot be read: {error.strerror}") from error
    try:
        shares = sessions.load_shares(files)
    except msgspec.MsgspecError as error:
        raise StudyError(f"not raw times of this study: {error}") from error
    found = summary.summarise(shares)
    write_bytes_atomic(paths[-1].parent / "gate_study_summary.json", to_json(found))
    print(tables.as_text(found))
    return 0
