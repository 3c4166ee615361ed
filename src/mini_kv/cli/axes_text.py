"""The curves of a card's benchmark axes as text: one row a value, with a bar for the rate."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.cli.lines import flat
from mini_kv.core.records.benchmark import BenchmarkCase
from mini_kv.core.records.results import Status
from mini_kv.core.rules.axes import Curve, curves

_BAR_WIDTH = 24
_HEAD = f"{'P50 us':>10} {'net us':>10} {'kernel':>10} {'ref P50':>10} {'speedup':>8} {'GB/s':>8}"


def curve_lines(cases: Sequence[BenchmarkCase]) -> list[str]:
    """Return a table for every curve among the cases; nothing where no case lies on an axis."""
    lines: list[str] = []
    for curve in curves(cases):
        lines += ["", *_one_curve(curve)]
    return lines


def _one_curve(curve: Curve) -> list[str]:
    rates = [case.gb_per_s for case in curve.cases if case.gb_per_s is not None]
    highest = max(rates, default=0.0)
    width = max(len(curve.axis), *(len(str(case.axis_values[curve.axis])) for case in curve.cases))
    rows = [f"axis {curve.axis} of {curve.template_case_id}:", f"  {curve.axis:<{width}} {_HEAD}"]
    for case in curve.cases:
        value = f"{case.axis_values[curve.axis]!s:>{width}}"
        rows.append(f"  {value} {_numbers(case)}  {_bar(case.gb_per_s, highest)}{_remark(case)}".rstrip())
    return rows


def _numbers(case: BenchmarkCase) -> str:
    candidate, reference, kernel = case.candidate, case.reference, case.candidate_kernel
    cells = (
        (candidate.p50_us if candidate else None, 10, 2),
        (candidate.net_p50_us if candidate else None, 10, 2),
        (kernel.kernel_us if kernel else None, 10, 2),
        (reference.p50_us if reference else None, 10, 2),
        (case.speedup, 8, 3),
        (case.gb_per_s, 8, 1),
    )
    return " ".join(
        f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"
        for value, width, digits in cells
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
