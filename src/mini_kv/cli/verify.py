"""``mini-kv verify``: run the pipeline, show progress on stderr and the verdict on stdout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mini_kv.cli.numbers import seconds, whole_number
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.printable import printable
from mini_kv.core.time_limits import CALL_TIMEOUT_S

EXAMPLE = "mini-kv verify --task tasks/rmsnorm.yaml --candidate candidates/rmsnorm/v1_block_reduce"

DEFAULT_PAIRS, MAX_PAIRS = 5, 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("--task", type=Path, required=True, metavar="FILE", help="the Task Card")
    parser.add_argument(
        "--candidate", type=Path, metavar="DIR", help="candidate folder (default: the card's own)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu", "auto"), help="overrides the card's device")
    parser.add_argument("--skip-benchmark", action="store_true", help="stop after correctness and contract")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="compare the times with this baseline")
    parser.add_argument(
        "--pairs",
        type=whole_number("--pairs", 2, MAX_PAIRS, or_zero=True),
        metavar="N",
        help="pairs of fresh processes in which the baseline's own code is re-run (default: 5; 0: none)",
    )
    parser.add_argument(
        "--require-comparable",
        action="store_true",
        help="fail with 6 where the gate says INCOMPARABLE or INCONCLUSIVE",
    )
    parser.add_argument(
        "--artifacts", type=Path, metavar="DIR", help="archive here (default: artifacts/ of the project)"
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
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write a JUnit XML report")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write a Markdown report")


def run(arguments: argparse.Namespace) -> int:
    """Verify and report; the exit code is the verdict's."""
    _check(arguments)
    from mini_kv.cli import progress_bars, verdict_text
    from mini_kv.cli.signals import stop_once
    from mini_kv.core.records.isolation import IsolationLevel
    from mini_kv.pipeline import VerifyRequest, verify

    with stop_once(), progress_bars.display(sys.stderr) as show:
        verdict = verify(
            VerifyRequest(
                task=arguments.task,
                candidate=arguments.candidate,
                device=arguments.device,
                skip_benchmark=arguments.skip_benchmark,
                baseline=arguments.baseline,
                artifacts_root=arguments.artifacts,
                timeout_s=arguments.timeout,
                require_isolation=IsolationLevel(arguments.require_isolation),
                require_comparable=arguments.require_comparable,
                pairs=DEFAULT_PAIRS if arguments.pairs is None else arguments.pairs,
            ),
            show,
        )
    if arguments.json:
        sys.stdout.write(verdict_text.as_json(verdict))
    else:
        sys.stdout.write(verdict_text.as_text(verdict))
    for path, render in (
        (arguments.junit, verdict_text.as_junit),
        (arguments.markdown, verdict_text.as_markdown),
    ):
        if path is not None:
            _write(path, render(verdict))
    for warning in verdict.warnings:
        print(f"mini-kv: warning: {printable(warning.message)}", file=sys.stderr)
    return verdict.attempt.exit_code


def _check(arguments: argparse.Namespace) -> None:
    # Refused before anything runs: a report that cannot be written must not cost a whole run.
    if arguments.baseline is not None and arguments.skip_benchmark:
        raise ConfigurationError(
            Code.USAGE, "--baseline needs the benchmark that --skip-benchmark leaves out"
        )
    if arguments.require_comparable and arguments.baseline is None:
        raise ConfigurationError(Code.USAGE, "--require-comparable needs a --baseline to compare with")
    if arguments.pairs is not None and arguments.baseline is None:
        raise ConfigurationError(Code.USAGE, "--pairs needs a --baseline to run against")
    for option, path in (("--junit", arguments.junit), ("--markdown", arguments.markdown)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigurationError(
                Code.USAGE,
                f"{option} {path} cannot be written: its folder does not exist, or it is a folder itself",
            )


def _write(path: Path, text: str) -> None:
    from mini_kv.system.files import write_bytes_atomic

    try:
        write_bytes_atomic(path, text.encode("utf-8"))
    except OSError as error:
        raise ConfigurationError(
            Code.REPORT_UNWRITABLE, f"{path} cannot be written: {error.strerror}."
        ) from error
