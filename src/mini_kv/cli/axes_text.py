"""The curves of a card's benchmark axes as text: one row a value, with a bar for the rate."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.cli.lines import flat
from mini_kv.core.records.benchmark import BenchmarkCase
from mini_kv.core.records.results import Status
from mini_kv.core.rules.axes import Curve, curves
from mini_kv.core.text_table import Column, figure, fitted, head_row, text_row

_BAR_WIDTH = 24
_NUMBERS = (
    Column(head="P50 us", width=10),
    Column(head="net us", width=10),
    Column(head="kernel", width=10),
    Column(head="ref P50", width=10),
    Column(head="speedup", width=8),
    Column(head="GB/s", width=8),
)


def curve_lines(cases: Sequence[BenchmarkCase]) -> list[str]:
    """Return a table for every curve among the cases; nothing where no case lies on an axis."""
    lines: list[str] = []
    for curve in curves(cases):
        lines += ["", *_one_curve(curve)]
    return lines


def _one_curve(curve: Curve) -> list[str]:
    rates = [case.gb_per_s for case in curve.cases if case.gb_per_s is not None]
    highest = max(rates, default=0.0)
    values = [[str(case.axis_values[curve.axis])] for case in curve.cases]
    (axis,) = fitted([Column(head=curve.axis)], values)
    head = f"{curve.axis.ljust(axis.width)} {head_row(_NUMBERS)}"
    rows = [f"axis {curve.axis} of {curve.template_case_id}:", f"  {head}"]
    for case, value in zip(curve.cases, values, strict=True):
        numbers = text_row([*value, *_numbers(case)], [axis, *_NUMBERS])
        rows.append(f"  {numbers}  {_bar(case.gb_per_s, highest)}{_remark(case)}".rstrip())
    return rows


def _numbers(case: BenchmarkCase) -> tuple[str, ...]:
    candidate, reference, kernel = case.candidate, case.reference, case.candidate_kernel
    return (
        figure(candidate.p50_us if candidate else None, 2),
        figure(candidate.net_p50_us if candidate else None, 2),
        figure(kernel.kernel_us if kernel else None, 2),
        figure(reference.p50_us if reference else None, 2),
        figure(case.speedup, 3),
        figure(case.gb_per_s, 1),
    )


def _bar(rate: float | None, highest: float) -> str:
    if rate is None or not highest > 0.0:
        return ""
    return "#" * max(1, round(_BAR_WIDTH * rate / highest))


def _remark(case: BenchmarkCase) -> str:
    if case.stable:
        return ""
    if case.status is Status.PASS:
        return "  unstable"
    first = case.findings[0] if case.findings else None
    return f"  FAILED {first.code}: {flat(first.message, 240)}" if first else "  FAILED"
