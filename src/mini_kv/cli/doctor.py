"""``mini-kv doctor``: what this machine has, what it lacks, and what to do about it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mini_kv.core.errors import ExitCode
from mini_kv.core.record import to_json
from mini_kv.machine import Doctor, examine

EXAMPLE = "mini-kv doctor --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 when at least CPU verification works here, else 2."""
    doctor = examine(Path.cwd(), os.environ)
    if arguments.json:
        sys.stdout.write(to_json(doctor).decode("utf-8"))
    else:
        print(render(doctor))
    return ExitCode.ACCEPTED if doctor.can_verify else ExitCode.CONFIGURATION


def render(doctor: Doctor) -> str:
    """Return one line a finding, and the verdict last."""
    width = max(len(line.name) for line in doctor.lines)
    rows = []
    for line in doctor.lines:
        advice = f" - {line.advice}" if line.advice else ""
        rows.append(f"{line.state:<7}  {line.name:<{width}}  {line.detail}{advice}")
    devices = " and ".join(doctor.can_verify)
    verdict = (
        f"This machine can verify on: {devices}." if devices else "This machine cannot verify anything yet."
    )
    return "\n".join([*rows, "", verdict])
