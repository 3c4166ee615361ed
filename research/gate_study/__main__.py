"""Measure how often the regression gate is wrong: false alarms on equal code, misses on slower code.

python -m research.gate_study measure --output DIR     on a GPU: gate_study_raw.json, gate_study_summary.json
python -m research.gate_study measure --output DIR --device cpu --processes 4     tries the study itself
python -m research.gate_study simulate --output DIR    the same decisions over a model of processes
python -m research.gate_study summarise RAW [RAW ...]  decides again; of a kernel the last file counts
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from research import ROOT


def main(argv: list[str] | None = None) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m research.gate_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="measure fresh processes, then decide over them")
    measure.add_argument("--output", type=Path, required=True)
    measure.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    measure.add_argument("--kernels", default="", help="some of them, by comma, e.g. memory_2us,spin_2us")
    measure.add_argument("--processes", type=int, default=176)
    measure.add_argument("--wave", type=int, default=16, help="processes that start together")
    measure.add_argument("--budget", type=float, default=450.0, help="seconds for the measuring")
    measure.add_argument("--raw-only", action="store_true", help="leave the decisions for later")
    simulate = commands.add_parser("simulate", help="decide over simulated processes")
    simulate.add_argument("--output", type=Path, required=True)
    simulate.add_argument("--processes", type=int, default=120)
    simulate.add_argument("--seed", type=int, default=1)
    summarise = commands.add_parser("summarise", help="decide again over the raw times of sessions")
    summarise.add_argument("raw", type=Path, nargs="+", help="the earliest session first")
    arguments = parser.parse_args(argv)
    from research.gate_study.records import StudyError

    try:
        return _run(arguments)
    except StudyError as error:
        print(f"gate_study: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from research.gate_study import commands as work

    if arguments.command == "measure":
        return work.measure(ROOT, arguments)
    if arguments.command == "simulate":
        return work.simulate(arguments)
    return work.summarise(arguments.raw)


if __name__ == "__main__":
    sys.exit(main())
