"""Quantities as ncu prints them: a text and a unit, such as ``1,024`` and ``Kbyte/block``."""

from __future__ import annotations

import math
import re
from typing import Literal

Dimension = Literal["time_us", "bytes", "gb_per_s", "percent", "count"]

# Thousands are grouped under some locales; a lone group such as 1,024 is a thousand, never a decimal.
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# Names up to 2023 and the short ones since. ncu counts in powers of ten, for bytes too.
_SECONDS = {
    **dict.fromkeys(("s", "second"), 1.0),
    **dict.fromkeys(("ms", "msecond"), 1e-3),
    **dict.fromkeys(("us", "usecond"), 1e-6),
    **dict.fromkeys(("ns", "nsecond"), 1e-9),
}
_COUNTED = frozenset({"block", "cycle", "inst", "register", "request", "sector", "thread", "warp"})


def number(text: str) -> float | None:
    """Return the finite number that ``text`` holds, ``None`` for empty, ``n/a``, NaN and the like."""
    stripped = text.strip()
    if not stripped or _NUMBER.fullmatch(stripped) is None:
        return None
    try:
        value = float(stripped.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def convert(text: str, unit: str, dimension: Dimension) -> float | None:
    """Return a printed quantity in the dimension's own unit, ``None`` when it is no such quantity.

    A unit that the dimension does not know is never guessed at: a wrong factor would go unseen.
    """
    value, factor = number(text), _factor(unit.strip(), dimension)
    return None if value is None or factor is None else value * factor


def _factor(unit: str, dimension: Dimension) -> float | None:
    match dimension:
        case "time_us":
            return _SECONDS[unit] * 1e6 if unit in _SECONDS else None
        case "percent":
            return 1.0 if unit in ("%", "") else None
        case "bytes":
            head, _, per = unit.partition("/")
            return _scaled(head, "byte") if per in ("", "block", "thread") else None
        case "gb_per_s":
            head, _, per = unit.partition("/")
            size = _scaled(head, "byte")
            return size / _SECONDS[per] / 1e9 if size is not None and per in _SECONDS else None
        case "count":
            return _counted(unit)


def _scaled(word: str, base: str) -> float | None:
    prefix = word.removesuffix(base)
    return _PREFIXES.get(prefix) if word.endswith(base) else None


def _counted(unit: str) -> float:
    head = unit.partition("/")[0]
    # Kinst and Msector are thousands and millions; a unit's own capital, as in SM, is no prefix.
    return _PREFIXES[head[0]] if head[:1] in ("K", "M", "G", "T") and head[1:] in _COUNTED else 1.0
