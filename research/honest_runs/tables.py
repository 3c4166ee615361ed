"""What honest runs add up to, as Markdown: printed after a run, and filled into docs/method.md."""

from __future__ import annotations

from collections import Counter

from research.gate_study.summary import Proportion
from research.honest_runs.records import HonestRun, HonestRuns, accused, by_check
from research.markdown import table


def _bounded(found: Proportion) -> str:
    return f"{found.events} of {found.trials} (at most {found.upper:.1%})"


def _said(run: HonestRun) -> str:
    return run.message or run.state_message or "no message"


def as_text(found: HonestRuns) -> str:
    """Return one paragraph and a table: accusations by check, with exact one-sided 95 % bounds."""
    candidates = len({run.candidate for run in found.runs})
    stable = sum(run.stable for run in found.runs)
    trust = Counter(run.timing_trust for run in found.runs)
    busy = f", {found.busy} other processes keeping its cores busy" if found.busy else ""
    intro = (
        f"{found.device_name} ({found.cores} cores{busy}), torch {found.torch}: {len(found.runs)} fresh "
        f"processes of {candidates} honest candidates, each timed on one of three sizes. "
        f"Accused: {_bounded(accused(found))}. Stable: {stable}; times verified: {trust['verified']}, "
        f"bounded: {trust['bounded']}, unverified: {trust['unverified']}."
    )
    rows = [(name, _bounded(one)) for name, one in by_check(found)]
    lines = [intro, "", table(("check", "accused, of the runs in which it was live"), rows)]
    wrong = [
        f"- run {run.number}, {run.candidate}, {run.case_id}: {run.accused}: {_said(run)}"
        for run in found.runs
        if run.accused is not None
    ]
    return "\n".join([*lines, "", *wrong]).rstrip()
