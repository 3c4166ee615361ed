"""``mini-kv promote-baseline``: make a baseline from a complete, correct, stable attempt."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from mini_kv.artifacts import promote_baseline
from mini_kv.core.errors import ExitCode
from mini_kv.core.printable import printable
from mini_kv.core.record import to_json
from mini_kv.system.files import sha256_file

EXAMPLE = (
    "mini-kv promote-baseline --attempt artifacts/rmsnorm/20260301T120000Z-0a1b2c3d "
    "--output baselines/rmsnorm.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("--attempt", metavar="DIR", type=Path, required=True, help="folder of the attempt")
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help="baseline to write")
    parser.add_argument("--replace", action="store_true", help="overwrite FILE where it exists")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Promote; every refusal is one sentence, and a changed file is an integrity error."""
    output: Path = arguments.output
    baseline = promote_baseline(arguments.attempt, output, now=datetime.now(UTC), replace=arguments.replace)
    attempt = baseline.attempt
    if arguments.json:
        written = {
            "baseline": output.as_posix(),
            "sha256": sha256_file(output),
            "task_id": attempt.task_id,
            "attempt_id": attempt.attempt_id,
            "candidate_id": attempt.candidate_id,
            "environment_key": attempt.environment_key,
            "cases": [case.case_id for case in baseline.benchmark.cases],
        }
        sys.stdout.write(to_json(written).decode())
    else:
        cases = len(baseline.benchmark.cases)
        who = f"{attempt.candidate_id} {attempt.candidate_version} on {attempt.task_id}"
        print(
            printable(
                f"{output} is now a baseline: {who}, {cases} case{'' if cases == 1 else 's'}, "
                f"attempt {attempt.attempt_id}."
            )
        )
    return ExitCode.ACCEPTED
