"""Benchmark axes: one template case and a list of values become a curve of timed cases. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mini_kv.core.records.card import (
    AxisValue,
    BenchmarkPlan,
    Case,
    CaseKind,
    ParamValue,
    PowersOfTwo,
    Scalar,
    SweepAxis,
    TaskCard,
)

if TYPE_CHECKING:
    from mini_kv.core.records.benchmark import BenchmarkCase

# What stands in an id for what an identifier cannot hold: 1.5e-05 reads 1p5em05.
_ID_WORDS = str.maketrans({".": "p", "-": "m", "+": None})


class Curve(NamedTuple):
    """The timed cases of one axis and template, in the order of their values."""

    axis: str
    template_case_id: str
    cases: tuple[BenchmarkCase, ...]


def powers_of_two(span: PowersOfTwo) -> tuple[int, ...]:
    """Return every power of two from the span's first to its last."""
    low, high = span.first.bit_length() - 1, span.last.bit_length() - 1
    return tuple(1 << exponent for exponent in range(low, high + 1))


def values_of(axis: SweepAxis) -> tuple[AxisValue, ...]:
    """Return the axis's values in the order in which the card has them."""
    if axis.values is not None:
        return axis.values
    return powers_of_two(axis.powers_of_two) if axis.powers_of_two is not None else ()


def point_id(template_case_id: str, axis: str, value: AxisValue) -> str:
    """Return the id of a generated case, such as ``bench_1024x4096_f16__hidden_8192``."""
    return f"{template_case_id}__{axis}_{str(value).lower().translate(_ID_WORDS)}"


def swept_value(params: Mapping[str, ParamValue], param: str, position: int | None) -> Scalar | None:
    """Return what an axis replaces in a template's parameters; ``None`` where there is no such place."""
    value = params.get(param)
    if isinstance(value, tuple | list):
        inside = position is not None and 0 <= position < len(value)
        return value[position] if inside and position is not None else None
    return value if position is None else None


def with_value(
    params: Mapping[str, ParamValue], param: str, position: int | None, value: AxisValue
) -> dict[str, ParamValue]:
    """Return the parameters with one value replaced; a whole number becomes a float where one stood."""
    old = swept_value(params, param, position)
    new = float(value) if isinstance(old, float) and isinstance(value, int) else value
    whole = params[param]
    if position is None or not isinstance(whole, tuple | list):
        return {**params, param: new}
    return {**params, param: (*whole[:position], new, *whole[position + 1 :])}


def generated_cases(cases: Sequence[Case], plan: BenchmarkPlan) -> tuple[Case, ...]:
    """Return the cases that the plan's axes generate, in the order of axes and values.

    A value that the template has itself, where the template is timed anyway, generates none. Raises
    ``KeyError`` for an axis whose template or parameter does not exist: a loaded card has none.
    """
    known = {case.id: case for case in cases}
    made: list[Case] = []
    for axis in plan.axes:
        template = known[axis.case]
        for value in values_of(axis):
            params = with_value(template.params, axis.param, axis.position, value)
            if params == template.params and axis.case in plan.case_ids:
                continue
            case_id = point_id(axis.case, axis.name, value)
            made.append(Case(id=case_id, kind=CaseKind.BENCHMARK, params=params))
    return tuple(made)


def expand_axes(card: TaskCard) -> TaskCard:
    """Return the card with the generated cases among its own and in its plan.

    Expanding an expanded card changes nothing, so that an archived card means the same as its source.
    """
    if not card.benchmark.axes:
        return card
    known = {case.id for case in card.cases}
    generated = generated_cases(card.cases, card.benchmark)
    timed = dict.fromkeys([*card.benchmark.case_ids, *(case.id for case in generated)])
    return msgspec.structs.replace(
        card,
        cases=(*card.cases, *(case for case in generated if case.id not in known)),
        benchmark=msgspec.structs.replace(card.benchmark, case_ids=tuple(timed)),
    )


def axis_values(card: TaskCard, case_id: str) -> dict[str, AxisValue]:
    """Return where a case lies on the card's axes, by axis name; empty for one that is on none."""
    found: dict[str, AxisValue] = {}
    for axis in card.benchmark.axes:
        template = card.case(axis.case)
        own = swept_value(template.params, axis.param, axis.position)
        if case_id == axis.case and own is not None:
            found[axis.name] = own
        for value in values_of(axis):
            if case_id == point_id(axis.case, axis.name, value):
                found[axis.name] = value
    return found


def curves(cases: Sequence[BenchmarkCase]) -> tuple[Curve, ...]:
    """Group timed cases into curves, each ordered by value (numbers before text)."""
    groups: dict[tuple[str, str], list[BenchmarkCase]] = {}
    for case in cases:
        for axis in case.axis_values:
            template = case.case_id.rpartition(f"__{axis}_")[0] or case.case_id
            groups.setdefault((axis, template), []).append(case)
    return tuple(
        Curve(axis, template, tuple(sorted(members, key=lambda case: _rank(case.axis_values[axis]))))
        for (axis, template), members in groups.items()
    )


def _rank(value: AxisValue) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def is_generated(case: BenchmarkCase) -> bool:
    """Say whether an axis generated this case (the template itself was not generated)."""
    return any(f"__{axis}_" in case.case_id for axis in case.axis_values)
