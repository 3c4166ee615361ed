"""``mini-kv compare``: gate and time two candidates of one card side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mini_kv.cli.numbers import seconds, whole_number
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.time_limits import CALL_TIMEOUT_S

EXAMPLE = (
    "mini-kv compare --task tasks/rmsnorm.yaml --candidate candidates/rmsnorm/v0_naive "
    "--candidate candidates/rmsnorm/v1_block_reduce"
)
MAX_PAIRS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("--task", type=Path, required=True, metavar="FILE", help="the Task Card")
    parser.add_argument(
        "--candidate",
        type=Path,
        action="append",
        required=True,
        metavar="DIR",
        help="candidate folder; given twice: the first is A, the second B",
    )
    parser.add_argument("--device", choices=("cuda", "cpu", "auto"), help="overrides the card's device")
    parser.add_argument(
        "--artifacts", type=Path, metavar="DIR", help="archive here (default: artifacts/ of the project)"
    )
    parser.add_argument(
        "--pairs",
        type=whole_number("--pairs", 2, MAX_PAIRS),
        default=5,
        metavar="N",
        help="pairs of fresh processes that the interval comes from (default: 5)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds("--timeout"),
        default=CALL_TIMEOUT_S,
        metavar="S",
        help=f"seconds a case may take (default: {CALL_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--require-isolation",
        choices=("none", "process", "restricted", "confined", "isolated"),
        default="none",
        metavar="LEVEL",
        help="refuse to run where less is reached: none, process, restricted, confined or isolated",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare and report; which candidate is faster does not change the exit code."""
    _check(arguments)
    from mini_kv.cli import comparison_text, progress_bars
    from mini_kv.cli.signals import stop_once
    from mini_kv.comparison import CompareRequest, compare
    from mini_kv.core.record import to_json
    from mini_kv.core.records.isolation import IsolationLevel

    with stop_once(), progress_bars.display(sys.stderr) as show:
        compared = compare(
            CompareRequest(
                task=arguments.task,
                a=arguments.candidate[0],
                b=arguments.candidate[1],
                device=arguments.device,
                artifacts_root=arguments.artifacts,
                timeout_s=arguments.timeout,
                pairs=arguments.pairs,
                require_isolation=IsolationLevel(arguments.require_isolation),
            ),
            show,
        )
    if arguments.json:
        document = {"comparison": compared.comparison, "folder": str(compared.folder)}
        sys.stdout.write(to_json(document).decode())
    else:
        sys.stdout.write(comparison_text.as_text(compared.comparison, compared.folder))
    return compared.comparison.exit_code


def _check(arguments: argparse.Namespace) -> None:
    given = len(arguments.candidate)
    if given != 2:
        times = "once" if given == 1 else f"{given} times"
        raise ConfigurationError(
            Code.USAGE, f"--candidate is to be given twice, for A and for B, not {times}"
        )
