"""A comparison as text for a terminal of 100 columns."""

from __future__ import annotations

from pathlib import Path

from mini_kv.cli.lines import as_lines, flat
from mini_kv.cli.relative_paths import from_here
from mini_kv.core.records.comparison import ComparedCase, ComparedSide, Comparison, SideTime
from mini_kv.core.records.results import Status
from mini_kv.core.text_table import Column, figure, head_row, text_row

_SIDE = (Column(head="case", width=32, left=True), Column(head="side", width=4, left=True))
_NUMBERS = (
    Column(head="P50 us", width=10),
    Column(head="net us", width=10),
    Column(head="kernel", width=10),
    Column(head="GB/s", width=8),
)


def as_text(comparison: Comparison, folder: Path) -> str:
    """Return the verdict, both sides' gates, and the times case by case."""
    lines = [f"{comparison.task_id} {comparison.operator_version}   on {comparison.device}", ""]
    for side in (comparison.a, comparison.b):
        lines += _side_lines(side)
    lines += [f"  {finding.code}: {_flat(finding.message)}" for finding in comparison.findings]
    if comparison.cases:
        lines += ["", f"times ({comparison.cache} cache, {comparison.timer.split(';')[0]}):"]
        lines.append(f"  {head_row([*_SIDE, *_NUMBERS])}  quality")
        for case in comparison.cases:
            lines += _case_lines(case, comparison)
    lines += ["", f"{_title(comparison)}: {comparison.message}"] if comparison.cases else []
    word = "ACCEPTED" if comparison.accepted else "NOT ACCEPTED"
    lines += [
        "",
        f"{word}   exit code {comparison.exit_code}   {comparison.elapsed_s:.1f} s",
        f"evidence: {from_here(folder)}",
    ]
    return as_lines(lines)


def _title(comparison: Comparison) -> str:
    a, b = comparison.a.candidate_id, comparison.b.candidate_id
    return f"B ({b}) compared with A ({a})"


def _side_lines(side: ComparedSide) -> list[str]:
    lines = [f"  {side.label}  {side.candidate_id} {side.candidate_version}   {side.candidate_folder}"]
    for axis in side.axes:
        # The regression gate is not asked here, and what passed needs no sentence.
        if axis.name != "regression":
            remark = "" if axis.status is Status.PASS else _flat(axis.message)
            lines.append(f"     {axis.name:<11} {axis.status.value:<11} {remark}".rstrip())
    return lines


def _case_lines(case: ComparedCase, comparison: Comparison) -> list[str]:
    lines = []
    for position, side in enumerate((comparison.a, comparison.b)):
        time = next((time for time in side.times if time.case_id == case.case_id), None)
        name = case.case_id if position == 0 else ""
        lines.append(f"  {text_row((name, side.label), _SIDE)} {_numbers(time)}")
    kernels = "" if case.kernel_ratio is None else f"; kernel time B / A = {case.kernel_ratio:.4g}"
    lines.append(f"      {_flat(case.message)}{kernels}")
    lines += [f"      {finding.code}: {_flat(finding.message)}" for finding in case.findings]
    return lines


def _numbers(time: SideTime | None) -> str:
    if time is None:
        return "not timed"
    cells = (
        figure(time.p50_us, 2),
        figure(time.net_p50_us, 2),
        figure(time.kernel_us, 2),
        figure(time.gb_per_s, 1),
    )
    quality = "stable" if time.stable else "UNSTABLE" if time.p50_us is not None else "FAILED"
    return f"{text_row(cells, _NUMBERS)}  {quality}"


def _flat(text: str | None) -> str:
    return flat(text, 400)
