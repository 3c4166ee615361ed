"""``mini-kv profile``: capture one case's kernel with Nsight Compute; archive report and facts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mini_kv.cli.numbers import seconds
from mini_kv.core.printable import printable
from mini_kv.core.time_limits import CAPTURE_TIMEOUT_S

EXAMPLE = (
    "mini-kv profile --task tasks/rmsnorm.yaml --candidate candidates/rmsnorm/v2_vectorized "
    "--case bench_1024x4096_f16"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("--task", type=Path, required=True, metavar="FILE", help="the Task Card")
    parser.add_argument(
        "--candidate", type=Path, metavar="DIR", help="candidate folder (default: the card's own)"
    )
    parser.add_argument(
        "--case", metavar="ID", help="the one case to profile (default: the card's primary benchmark case)"
    )
    parser.add_argument(
        "--artifacts", type=Path, metavar="DIR", help="archive here (default: artifacts/ of the project)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds("--timeout"),
        default=CAPTURE_TIMEOUT_S,
        metavar="S",
        help=f"seconds the capture may take (default: {CAPTURE_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--ncu", metavar="FILE", help="the profiler (default: next to nvcc, on PATH, or its usual folder)"
    )
    parser.add_argument("--json", action="store_true", help="print profile.json")


def run(arguments: argparse.Namespace) -> int:
    """Profile and report; a capture that failed is archived too, and its exit code says whose fault it is."""
    from mini_kv.cli import profile_text, progress_bars
    from mini_kv.core.record import to_json
    from mini_kv.profiling import ProfileRequest, profile_case

    with progress_bars.display(sys.stderr) as show:
        profile, folder = profile_case(
            ProfileRequest(
                task=arguments.task,
                candidate=arguments.candidate,
                case_id=arguments.case,
                artifacts_root=arguments.artifacts,
                timeout_s=arguments.timeout,
                ncu=arguments.ncu,
            ),
            show,
        )
    if arguments.json:
        sys.stdout.write(to_json(profile).decode())
    else:
        sys.stdout.write(profile_text.profile_as_text(profile, folder))
    if profile.failure is not None:
        print(f"mini-kv: {printable(profile.failure.message)}", file=sys.stderr)
    return profile.exit_code
