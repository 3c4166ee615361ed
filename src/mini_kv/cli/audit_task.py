"""``mini-kv audit-task``: show which cases of a card a candidate passes that computes nothing."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mini_kv.core.errors import ExitCode

if TYPE_CHECKING:
    from mini_kv.core.records.card_audit import CardAudit, CaseAudit

EXAMPLE = "mini-kv audit-task --task tasks/rmsnorm.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the card, the device and ``--json``."""
    parser.add_argument("--task", type=Path, required=True, metavar="FILE", help="the Task Card")
    parser.add_argument("--device", choices=("cuda", "cpu", "auto"), help="overrides the card's device")
    parser.add_argument("--json", action="store_true", help="print the audit as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Audit and report; 0 when every case proves something, 2 when the card must change."""
    from mini_kv.auditing import audit_in_fresh_oracle
    from mini_kv.cli import progress_bars
    from mini_kv.core.record import to_json
    from mini_kv.core.records.results import Status
    from mini_kv.run.run_inputs import resolve_device
    from mini_kv.system.gpu import read_gpus
    from mini_kv.system.modules import import_path
    from mini_kv.system.toolchain import find_toolchain
    from mini_kv.task_card import find_project_root, load_task_card

    root = find_project_root(arguments.task)
    card = load_task_card(arguments.task, root).card
    device = resolve_device(
        arguments.device or card.device, read_gpus(os.environ), find_toolchain(root / ".build", os.environ)
    )
    with progress_bars.display(sys.stderr) as show:
        audit = audit_in_fresh_oracle(card, import_path(root), device, show)
    sys.stdout.write(to_json(audit).decode() if arguments.json else as_text(audit))
    return ExitCode.ACCEPTED if audit.status is Status.PASS else ExitCode.CONFIGURATION


def as_text(audit: CardAudit) -> str:
    """Return what a person needs: every case that proves nothing, and how many prove what."""
    from mini_kv.cli.lines import as_lines, flat
    from mini_kv.core.records.results import Status

    invalid = [case for case in audit.cases if case.status is not Status.PASS]
    lines = [f"{audit.task_id} {audit.operator_version}   null candidates, on {audit.device}", ""]
    lines += [f"  INVALID  {case.case_id}: {flat(_reason(case), 400)}" for case in invalid]
    form = [case.case_id for case in audit.cases if case.proves == "form"]
    if form:
        lines.append(f"  empty results, which prove form only: {', '.join(form)}")
    for dtype in sorted({name for case in audit.cases for name in case.lower_precision}):
        lenient = [case.case_id for case in audit.cases if dtype in case.lower_precision]
        lines.append(f"  remark: rounding the result to {dtype} passes in {_some(lenient)}")
    sound = len(audit.cases) - len(invalid)
    lines += ["", f"{sound} of {len(audit.cases)} legal cases prove something"]
    return as_lines(lines)


def _reason(case: CaseAudit) -> str:
    return case.findings[0].message if case.findings else "no reason was given"


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} cases, {names[0]} the first"
