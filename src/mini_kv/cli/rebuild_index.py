"""``mini-kv rebuild-index``: recreate the index from the attempts' folders."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mini_kv.artifacts import rebuild_index
from mini_kv.core.errors import ExitCode
from mini_kv.core.printable import printable
from mini_kv.core.record import to_json
from mini_kv.system.paths import find_project_root

EXAMPLE = "mini-kv rebuild-index --artifacts artifacts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument(
        "--artifacts", metavar="DIR", type=Path, help="where attempts lie (default: artifacts)"
    )
    parser.add_argument("--json", action="store_true", help="print the index record as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Rebuild from what is sound; name what is not on stderr, which is 7: an archive was tampered with."""
    root: Path = arguments.artifacts or find_project_root(Path.cwd()) / "artifacts"
    index = rebuild_index(root)
    for finding in index.damaged:
        print(f"mini-kv: damaged: {printable(finding.message)}", file=sys.stderr)
        for line in finding.evidence:
            print(f"  {printable(line)}", file=sys.stderr)
    if arguments.json:
        sys.stdout.write(to_json(index).decode())
    else:
        left_out = f", {len(index.damaged)} damaged and left out" if index.damaged else ""
        count = len(index.attempts)
        print(f"{count} attempt{'' if count == 1 else 's'} indexed{left_out}: {root / 'artifact_index.json'}")
    return ExitCode.INTEGRITY if index.damaged else ExitCode.ACCEPTED
