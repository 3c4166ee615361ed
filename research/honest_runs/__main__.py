"""Measure how often honest candidates are accused: every check of a timed run is live, in fresh processes.

python -m research.honest_runs measure --output DIR --device cpu     DIR/honest_runs.json, at least 200 runs
python -m research.honest_runs measure --output DIR --device cuda --wave 25 --budget 150
python -m research.honest_runs measure --output DIR --device cpu --busy 2     on cores that others keep busy
python -m research.honest_runs show DIR/honest_runs.json             the tables of what was measured
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from research import ROOT


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(arguments: argparse.Namespace) -> int:
    """Run, keep what was found after every wave, and say what it adds up to; 1 where anybody was accused."""
    from mini_kv.core.record import to_json
    from mini_kv.system.files import write_bytes_atomic
    from research.honest_runs import measuring, records, tables

    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "honest_runs.json"
    found: records.HonestRuns | None = None
    for found in measuring.measure(
        ROOT,
        arguments.device,
        runs=arguments.runs,
        wave_size=arguments.wave,
        budget_s=arguments.budget,
        busy=arguments.busy,
        say=_say,
    ):
        write_bytes_atomic(path, to_json(found, indent=None))
    if found is None:
        _say("nothing was measured within the budget")
        return 1
    print(tables.as_text(found))
    return 1 if records.accused(found).events else 0


def show(path: Path) -> int:
    """Print the tables of what was measured."""
    from research.honest_runs import records, tables

    print(tables.as_text(records.load_runs(path.read_bytes())))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m research.honest_runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="run honest candidates in fresh processes")
    measuring.add_argument("--output", type=Path, required=True)
    measuring.add_argument("--device", choices=("cuda", "cpu"), required=True)
    measuring.add_argument("--runs", type=int, default=240)
    measuring.add_argument("--wave", type=int, default=8, help="processes that start together")
    measuring.add_argument("--budget", type=float, default=480.0, help="seconds; no wave begins after them")
    measuring.add_argument("--busy", type=int, default=0, help="processes that keep cores busy meanwhile")
    showing = commands.add_parser("show", help="print the tables of what was measured")
    showing.add_argument("file", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.command == "measure":
        return measure(arguments)
    return show(arguments.file)


if __name__ == "__main__":
    sys.exit(main())
