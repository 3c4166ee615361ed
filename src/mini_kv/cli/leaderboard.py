"""``mini-kv leaderboard``: rank the latest valid attempt of every candidate."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from mini_kv import leaderboard
from mini_kv.artifacts import changed_rows, read_index
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.printable import printable
from mini_kv.core.record import to_json
from mini_kv.core.records.attempt import IndexRow, Leaderboard
from mini_kv.core.records.results import Finding
from mini_kv.system.paths import (
    PROJECT_MARKERS,
    PathRefused,
    find_project_root,
    read_regular_file,
    shown_path,
)

EXAMPLE = "mini-kv leaderboard --task rmsnorm"
MAX_CARDS, MAX_CARD_BYTES = 1000, 1 << 20
_TASK_ID_LINE = re.compile(r"^task_id:[ ]*[\"']?([a-z][a-z0-9_]*)", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument(
        "--artifacts", metavar="DIR", type=Path, help="where attempts lie (default: artifacts)"
    )
    parser.add_argument("--task", metavar="ID", help="only this task")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the leaderboard record as JSON")
    form.add_argument("--markdown", action="store_true", help="print Markdown tables")


def run(arguments: argparse.Namespace) -> int:
    """Print the board; an empty one says why. 7 where an attempt or its row is not what was archived."""
    project = find_project_root(Path.cwd())
    root: Path = arguments.artifacts or project / "artifacts"
    if arguments.artifacts is not None and not root.is_dir():
        raise ConfigurationError(Code.NO_ARTIFACTS, f"{root} is not a folder of artifacts.")
    if not root.is_dir() and not any(os.path.lexists(project / marker) for marker in PROJECT_MARKERS):
        raise ConfigurationError(
            Code.NO_PROJECT,
            f"There is no project here: neither {project} nor a folder above it holds one of "
            f"{', '.join(PROJECT_MARKERS)}. Go to a project, or name an archive with --artifacts.",
        )
    rows, warnings = read_index(root, arguments.task)
    board, rows, changes = _trusted_board(root, rows)
    findings = (*warnings, *changes)
    board = msgspec.structs.replace(board, findings=findings)
    for finding in findings:
        print(f"mini-kv: warning: {printable(finding.message)}", file=sys.stderr)
        for line in finding.evidence:
            print(f"  {printable(line)}", file=sys.stderr)
    if arguments.json:
        sys.stdout.write(to_json(board).decode())
    elif not board.groups:
        print(_nothing_to_rank(root, rows, arguments.task, _cards(project)))
    elif arguments.markdown:
        sys.stdout.write(leaderboard.to_markdown(board))
    elif sys.stdout.isatty():
        _print_tables(board)
    else:
        sys.stdout.write(leaderboard.to_text(board))
    # What is ranked is sound all the same; the exit code is what a script sees.
    return ExitCode.INTEGRITY if any(map(_tampered, findings)) else ExitCode.ACCEPTED


def _tampered(finding: Finding) -> bool:
    code = Code.named(finding.code)
    return code is not None and code.facts.exit_code is ExitCode.INTEGRITY


def _trusted_board(
    root: Path, rows: tuple[IndexRow, ...]
) -> tuple[Leaderboard, tuple[IndexRow, ...], tuple[Finding, ...]]:
    """Rank, re-hash what was ranked, and rank again without what is not as it was indexed."""
    changes: tuple[Finding, ...] = ()
    sound: set[IndexRow] = set()
    while True:
        board = leaderboard.rank_attempts(rows)
        ranked = {(group.task_id, row.attempt_id) for group in board.groups for row in group.rows}
        looked_at = {row for row in rows if (row.task_id, row.attempt_id) in ranked} - sound
        changed, findings = changed_rows(root, [row for row in rows if row in looked_at])
        if not changed:
            return board, rows, changes
        sound |= looked_at - changed
        changes += findings
        rows = tuple(row for row in rows if row not in changed)


def _cards(project: Path) -> dict[str, str]:
    """Return the tasks that have a card below ``tasks/``, each with the card's path; none is checked."""
    found: dict[str, str] = {}
    for path in sorted(islice((project / "tasks").rglob("*.yaml"), MAX_CARDS)):
        with suppress(PathRefused, UnicodeDecodeError):
            named = _TASK_ID_LINE.search(read_regular_file(path, MAX_CARD_BYTES).decode())
            if named is not None:
                found.setdefault(named[1], shown_path(path, project))
    return found


def _nothing_to_rank(
    root: Path, rows: tuple[IndexRow, ...], task_id: str | None, cards: Mapping[str, str]
) -> str:
    which = f" of task {task_id}" if task_id is not None else ""
    rejected = leaderboard.rejections(rows)
    if not rejected:
        others = sorted({row.task_id for row in read_index(root)[0]}) if task_id is not None else []
        if others:
            return f"No attempts{which} in {root}; there are some of {', '.join(others)}."
        if task_id is not None and task_id not in cards and cards:
            return f"No attempts{which} in {root}, and no card of it; there are cards of {', '.join(cards)}."
        card = cards.get(task_id or next(iter(cards), ""), "FILE (a Task Card)")
        return f"No attempts{which} in {root} yet. Make one with: mini-kv verify --task {card}"
    counted = ", ".join(f"{count} {reason}" for reason, count in rejected.items())
    return (
        f"No attempt{which} can be ranked ({counted}).\n"
        "A place needs a complete, correct attempt with stable times: see attempt.json of the latest one."
    )


def _print_tables(board: Leaderboard) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for group in board.groups:
        console.print(Text(leaderboard.heading(group), style="bold"))
        console.print(Text(leaderboard.provenance(group), style="dim"))
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in leaderboard.COLUMNS:
            right = name in leaderboard.RIGHT_ALIGNED
            # Only the candidate's name may be long; numbers and ids are never broken.
            table.add_column(
                name, justify="right" if right else "left", no_wrap=name != "candidate", overflow="fold"
            )
        for row in group.rows:
            best = "bold green" if row.rank == 1 else ""
            table.add_row(*(Text(cell, style=best) for cell in leaderboard.cells(row)))
        console.print(table)
        for note in leaderboard.notes(group):
            console.print(Text(note, style="yellow"))
        console.print()
