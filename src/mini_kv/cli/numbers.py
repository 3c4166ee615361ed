"""Options that take a number: one sentence says what is allowed, whatever stands there instead."""

from __future__ import annotations

import math
from collections.abc import Callable

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError


def seconds(option: str) -> Callable[[str], float]:
    """Return the parser of an option that takes a time: finite and more than nothing."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise _refused(option, "a positive number of seconds", text)
        return value

    return parse


def whole_number(option: str, low: int, high: int, *, or_zero: bool = False) -> Callable[[str], int]:
    """Return the parser of an option that takes ``low`` to ``high``, and 0 too where that means none."""

    def parse(text: str) -> int:
        value: float
        try:
            value = int(text)
        except ValueError:
            value = math.nan
        if not (low <= value <= high or (or_zero and value == 0)):
            raise _refused(option, f"{'0 or ' if or_zero else ''}{low} to {high}", text)
        return int(value)

    return parse


def _refused(option: str, allowed: str, text: str) -> ConfigurationError:
    shown = text if text.strip() and text.isprintable() else repr(text)
    return ConfigurationError(Code.USAGE, f"{option} takes {allowed}, not {shown}")
