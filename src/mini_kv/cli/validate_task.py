"""``mini-kv validate-task``: check Task Cards, and the manifest of each card's candidate."""

from __future__ import annotations

import argparse
import functools
import sys
from itertools import islice
from pathlib import Path

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.record import Record

EXAMPLE = "mini-kv validate-task tasks/rmsnorm.yaml"
MAX_LOOKED_AT = 1000


class CardReport(Record, frozen=True, kw_only=True):
    """One card's outcome; ``candidate`` is the folder whose manifest was checked too, where it exists.

    ``remarks`` are no problems: a card may be written before its candidate.
    """

    path: str
    ok: bool
    task_id: str | None = None
    operator: str | None = None
    operator_version: str | None = None
    sha256: str | None = None
    cases: dict[str, int] = msgspec.field(default_factory=dict)
    candidate: str | None = None
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the paths and ``--json``."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a Task Card, or a folder: every *.yaml in it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print one line a card to stdout and every problem to stderr; return 0, or 2 when a card is wrong."""
    manifests: dict[Path, tuple[str, ...]] = {}
    reports = [check_card(path, manifests) for path in card_files(arguments.paths)]
    if arguments.json:
        print(as_json(reports))
    else:
        for report in reports:
            _print(report)
        if sys.stdout.isatty() and len(reports) == 1 and reports[0].ok:
            print(f"next: mini-kv audit-task --task {arguments.paths[0]} (does any case prove nothing?)")
    return ExitCode.ACCEPTED if all(report.ok for report in reports) else ExitCode.CONFIGURATION


def card_files(paths: list[Path]) -> list[Path]:
    """Return the files to check: paths as given, folders replaced by their ``*.yaml``, sorted.

    Raises :class:`ConfigurationError` for a folder without cards.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        below = sorted(each for each in path.iterdir() if each.suffix == ".yaml")
        if not below:
            raise ConfigurationError(
                Code.NO_TASK_CARD,
                f"The folder {path} holds no Task Card; allowed: a folder with *.yaml files.",
            )
        files += below
    return files


def check_card(path: Path, manifests: dict[Path, tuple[str, ...]]) -> CardReport:
    """Check one card and its candidate's manifest; ``manifests`` remembers the problems of folders."""
    from mini_kv.system.modules import import_path
    from mini_kv.system.paths import shown_path
    from mini_kv.task_card import (
        check_pair,
        find_project_root,
        load_manifest,
        load_task_card,
        problems_at,
        reference_findings,
    )
    from mini_kv.task_card.wording import suggestion

    root = find_project_root(path)
    try:
        loaded = load_task_card(path, root)
    except ConfigurationError as error:
        return CardReport(path=shown_path(path, root), ok=False, problems=error.problems or (error.message,))
    card = loaded.card
    counts: dict[str, int] = {}
    for case in card.cases:
        counts[case.kind.value] = counts.get(case.kind.value, 0) + 1
    folder = root / card.candidate
    problems = problems_at(loaded, reference_findings(card, root, import_path(root)))
    remarks: tuple[str, ...] = ()
    if folder.is_dir():
        key = folder / f"for {card.operator}"
        if key not in manifests:
            try:
                check_pair(card, load_manifest(folder, root).manifest)
                manifests[key] = ()
            except ConfigurationError as error:
                manifests[key] = error.problems or (error.message,)
        problems += manifests[key]
    else:
        near = suggestion(card.candidate, _candidate_folders(root))
        needed = "'verify' needs it, or another one as --candidate"
        absent = f"found no folder {card.candidate!r} yet{near}; {needed}"
        remarks = problems_at(loaded, [(("candidate",), absent)])
    return CardReport(
        path=loaded.path,
        ok=not problems,
        task_id=card.task_id,
        operator=card.operator,
        operator_version=card.operator_version,
        sha256=loaded.sha256,
        cases=counts,
        candidate=card.candidate if folder.is_dir() else None,
        problems=problems,
        remarks=remarks,
    )


@functools.cache
def _candidate_folders(root: Path) -> tuple[str, ...]:
    found = islice(root.glob("candidates/*/*/candidate.yaml"), MAX_LOOKED_AT)
    return tuple(sorted(path.parent.relative_to(root).as_posix() for path in found))


def as_json(reports: list[CardReport]) -> str:
    """Return the reports as one JSON document."""
    import json

    from mini_kv.core.record import to_builtins

    return json.dumps({"ok": all(report.ok for report in reports), "cards": to_builtins(reports)}, indent=2)


def card_line(report: CardReport) -> str:
    """Return ``ok tasks/x.yaml  rmsnorm 1.0.0  24 cases (12 core, ...)``."""
    cases = ", ".join(f"{count} {kind}" for kind, count in report.cases.items())
    total = sum(report.cases.values())
    noun = "case" if total == 1 else "cases"
    return f"ok {report.path}  {report.operator} {report.operator_version}  {total} {noun} ({cases})"


def _print(report: CardReport) -> None:
    for remark in report.remarks:
        print(f"mini-kv: remark: {remark}", file=sys.stderr)
    if report.ok:
        print(card_line(report))
        return
    count = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
    print(f"mini-kv: {report.path} is not accepted: {count}.", file=sys.stderr)
    for problem in report.problems:
        print(f"  {problem}", file=sys.stderr)
