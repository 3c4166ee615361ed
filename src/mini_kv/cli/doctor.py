"""``mini-kv doctor``: what this machine has, what it lacks, and what to do about it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mini_kv.core.errors import ExitCode
from mini_kv.core.record import to_json
from mini_kv.doctor import Doctor, examine

EXAMPLE = "mini-kv doctor --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="verify shipped candidates whose verdicts are known (half a minute)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 when at least CPU verification works here, else 2."""
    if arguments.self_test:
        return _self_test()
    doctor = examine(Path.cwd(), os.environ)
    if arguments.json:
        sys.stdout.write(to_json(doctor).decode("utf-8"))
    else:
        print(render(doctor))
    return ExitCode.ACCEPTED if doctor.can_verify else ExitCode.CONFIGURATION


def _self_test() -> int:
    from mini_kv.cli import self_test

    results = self_test.self_test()
    print(self_test.render(results))
    passed = all(one.fault is None for one in results)
    return ExitCode.ACCEPTED if passed else ExitCode.INTEGRITY


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
