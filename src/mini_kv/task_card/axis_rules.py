"""What benchmark axes must obey: a template that exists, a place in its parameters, values that fit there.

Works on plain data of any shape, like ``card_rules``: what the card's shape already forbids is passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, TypeGuard

from mini_kv.core.dtypes import CARD_DTYPES
from mini_kv.core.records.card import AXIS_NAME, IDENTIFIER, MAX_AXES, MAX_AXIS_VALUES, MAX_CASES, AxisValue
from mini_kv.task_card.document import KeyPath, Plain
from mini_kv.task_card.structure import Finding
from mini_kv.task_card.wording import choice, found_text, suggestion

# Every whole number up to here is also a float without loss.
MAX_WHOLE = 1 << 53

_IDENTIFIER = re.compile(IDENTIFIER)
_AXIS_NAME = re.compile(AXIS_NAME)
_WORD = re.compile(r"[a-z0-9_]+")


def axis_findings(data: dict[str, Any]) -> Iterator[Finding]:
    """Yield every breach of the rules about ``benchmark.axes``."""
    benchmark = data.get("benchmark")
    axes = benchmark.get("axes") if isinstance(benchmark, dict) else None
    if not isinstance(benchmark, dict) or not isinstance(axes, list):
        return
    cases = _cases(data.get("cases"))
    taken: dict[str, object] = {case_id: case.get("params") for case_id, case in cases.items()}
    for index, axis in enumerate(axes[:MAX_AXES]):
        if isinstance(axis, dict):
            yield from _axis(("benchmark", "axes", index), axis, cases, data.get("tolerances"), taken)
    if len(taken) > MAX_CASES:
        yield (
            ("benchmark", "axes"),
            f"found axes that make {len(taken)} cases of this card; allowed: {MAX_CASES}",
        )


def _cases(cases: Plain) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for case in cases if isinstance(cases, list) else ():
        if isinstance(case, dict) and isinstance(case.get("id"), str):
            found.setdefault(case["id"], case)
    return found


def _axis(
    path: KeyPath,
    axis: dict[str, Any],
    cases: dict[str, dict[str, Any]],
    tolerances: Plain,
    taken: dict[str, object],
) -> Iterator[Finding]:
    values: list[tuple[KeyPath, Any]] = []
    yield from _values(path, axis, values)
    name, param, position = axis.get("case"), axis.get("param"), axis.get("position")
    template = cases.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or not isinstance(param, str):
        return
    if template is None or template.get("kind") == "illegal":
        legal = [known for known, case in cases.items() if case.get("kind") != "illegal"]
        what = "which names no case" if template is None else "an illegal case"
        hint = suggestion(name, legal) if template is None else ""
        yield (*path, "case"), f"found {found_text(name)}, {what}; allowed: the id of a legal case{hint}"
        return
    params = template.get("params")
    if not isinstance(params, dict):
        return
    if param not in params:
        known = choice(params) if params else "a parameter of a case that has one"
        what = f"found {found_text(param)}, which case {found_text(name)} does not have"
        yield (*path, "param"), f"{what}; allowed: {known}{suggestion(param, params)}"
        return
    fault = _position_fault(params[param], param, position)
    if fault is not None:
        yield (*path, "position"), fault
        return
    place = params[param][position] if isinstance(params[param], list) else params[param]
    sound: list[tuple[KeyPath, AxisValue]] = []
    for at, value in values:
        fault = _value_fault(value, place, param, tolerances)
        if fault is None:
            sound.append((at, value))
        else:
            yield at, fault
    yield from _ids(axis, params, sound, taken)


def _values(path: KeyPath, axis: dict[str, Any], into: list[tuple[KeyPath, Any]]) -> Iterator[Finding]:
    values, span = axis.get("values"), axis.get("powers_of_two")
    if (values is None) == (span is None):
        both = "both 'values' and 'powers_of_two'" if values is not None else "no values"
        yield path, f"found {both}; required: exactly one of values and powers_of_two"
    if isinstance(values, list):
        into += [((*path, "values", at), value) for at, value in enumerate(values[:MAX_AXIS_VALUES])]
    if not isinstance(span, dict):
        return
    ends: list[int] = []
    for key in ("from", "to"):
        bound = span.get(key)
        if not _is_whole(bound) or not 1 <= bound <= 1 << 40:
            continue  # the card's shape says what is wrong with it
        if not bound & (bound - 1):
            ends.append(bound)
        else:
            below = 1 << (bound.bit_length() - 1)
            yield (
                (*path, "powers_of_two", key),
                f"found the number {bound}; allowed: a power of two, such as {below} or {2 * below}",
            )
    if len(ends) != 2:
        return
    first, last = ends
    at = (*path, "powers_of_two")
    into += [(at, 1 << bit) for bit in range(first.bit_length() - 1, last.bit_length())]
    if first > last:
        yield (
            at,
            f"found powers of two from {first} down to {last}; allowed: from the smaller to the larger one",
        )


def _position_fault(value: Plain, param: str, position: Plain) -> str | None:
    if not isinstance(value, list):
        if position is None:
            return None
        return f"found a position, but {param} is no list; allowed: no position"
    count = len(value)
    if not count:
        return f"found {param} to be an empty list; allowed: a list that has the position"
    allowed = f"0 to {count - 1}, the positions of {param}"
    if position is None:
        return f"found no such key, but {param} is a list of {count}; required: {allowed}"
    if _is_whole(position) and 0 <= position < count:
        return None
    return f"found {found_text(position)}; allowed: {allowed}"


def _value_fault(value: Plain, place: Plain, param: str, tolerances: Plain) -> str | None:
    """Hold one value against the value that it replaces."""
    if isinstance(place, bool) or not isinstance(place, int | float | str):
        return f"found a value for {param}, which is {found_text(place)}; allowed: numbers and words only"
    if isinstance(place, str):
        return _word_fault(value, place, param, tolerances)
    if _is_whole(value) and abs(value) <= MAX_WHOLE:
        return None
    if isinstance(place, int):
        return f"found {found_text(value)}; allowed: a whole number, as {place} is"
    if isinstance(value, float) and math.isfinite(value):
        return None
    return f"found {found_text(value)}; allowed: a finite number, as {place} is"


def _word_fault(value: Plain, place: str, param: str, tolerances: Plain) -> str | None:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        return f"found {found_text(value)}; allowed: a word of a-z, 0-9 and _, as {place[:60]!r} is"
    if param == "dtype" and value not in CARD_DTYPES:
        return f"found {found_text(value)}; allowed: {choice(CARD_DTYPES)}{suggestion(value, CARD_DTYPES)}"
    if param == "dtype" and isinstance(tolerances, dict) and value not in tolerances:
        return f"found {found_text(value)}, which has no tolerance; allowed: {choice(tolerances)}"
    return None


def _ids(
    axis: dict[str, Any],
    params: dict[str, Any],
    values: list[tuple[KeyPath, AxisValue]],
    taken: dict[str, object],
) -> Iterator[Finding]:
    """Give each generated case its id, once; one that stands in the card already must be the same case."""
    from mini_kv.core.rules.axes import point_id, with_value

    name, template, param, position = (axis.get(key) for key in ("name", "case", "param", "position"))
    if not isinstance(template, str) or not isinstance(param, str):
        return
    if not isinstance(name, str) or not _AXIS_NAME.fullmatch(name):
        return
    here: set[str] = set()
    for at, value in values:
        case_id = point_id(template, name, value)
        made: dict[str, Any] = {
            key: list(one) if isinstance(one, tuple) else one
            for key, one in with_value(params, param, position, value).items()
        }
        if case_id in here:
            yield at, f"found {found_text(value)} again; allowed: each value once"
        elif not _IDENTIFIER.fullmatch(case_id):
            what = f"found {found_text(value)}, whose case would be named {case_id[:100]!r}"
            yield at, f"{what}; allowed: names of at most 64 characters"
        elif taken.get(case_id, made) != made:
            yield (
                at,
                f"found {found_text(value)}, whose case {case_id!r} exists already; allowed: each id once",
            )
        here.add(case_id)
        taken.setdefault(case_id, made)


def _is_whole(value: Plain) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
