"""What one YAML scalar means, and the sentences for those that mean something else than they look.

Plain scalars follow YAML 1.2's core schema. Where YAML 1.1 (which PyYAML and many editors implement)
reads the same characters differently, the scalar is refused and the sentence says how to write it.
"""

from __future__ import annotations

import functools
import math
import re

Scalar = bool | int | float | str | None

MAX_TEXT_CHARACTERS = 4096
MAX_NUMBER_CHARACTERS = 64
LARGEST_INTEGER = 2**63 - 1

_CONSTANTS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_OLD_BOOLEANS = {
    spelling: value
    for word, value in (("yes", "true"), ("on", "true"), ("no", "false"), ("off", "false"))
    for spelling in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_HEXADECIMAL = re.compile(r"[-+]?0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"[-+]?0[bo][0-9_]+")
_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?")
_BASE_SIXTY = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")


@functools.lru_cache(maxsize=4096)
def plain_scalar(text: str) -> tuple[Scalar, str | None]:
    """Return the value of an unquoted scalar and ``None``, or a stand-in and the sentence about it."""
    if text in _CONSTANTS:
        return _CONSTANTS[text], None
    if text[0] in "+-.0123456789":
        return _number_or_text(text)
    if text in _OLD_BOOLEANS:
        meaning = _OLD_BOOLEANS[text]
        return text, (
            f"found {text}, which YAML 1.1 reads as {meaning}; allowed: {meaning}, "
            f'or "{text}" in quotes where text is meant'
        )
    if text == "<<":
        return text, "found a merge key (<<); allowed: the merged keys written out"
    return text, text_problem(text)


def text_problem(text: str) -> str | None:
    """Return the sentence about text that is too long or holds unprintable characters, else ``None``."""
    if len(text) > MAX_TEXT_CHARACTERS:
        return f"found text of {len(text):,} characters; allowed: at most {MAX_TEXT_CHARACTERS:,}"
    if text.isprintable():
        return None
    character = next(each for each in text if not each.isprintable())
    name = "a line break" if character == "\n" else f"the character U+{ord(character):04X}"
    return f"found {name} in text; allowed: printable characters on one line"


def _number_or_text(text: str) -> tuple[Scalar, str | None]:
    if len(text) > MAX_NUMBER_CHARACTERS:
        if set(text) <= set("+-.0123456789_eExabcdefABCDEF"):
            return 0, _oversized(f"{text[:20]}... ({len(text):,} characters)")
        return text, text_problem(text)
    if _INTEGER.fullmatch(text) or _HEXADECIMAL.fullmatch(text):
        whole = int(text, 0)
        if abs(whole) > LARGEST_INTEGER:
            return 0, _oversized(text)
        return whole, None
    if _FLOAT.fullmatch(text):
        return _finite(text)
    if _NON_FINITE.fullmatch(text):
        return 0.0, f"found {text}, which is not finite; allowed: finite numbers"
    return text, _surprise(text) or text_problem(text)


def _finite(text: str) -> tuple[Scalar, str | None]:
    number = float(text)
    if math.isinf(number):
        return 0.0, _oversized(text)
    if number == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        return 0.0, f"found {text}, which rounds to zero in 64 bits; allowed: 0, or a number from 5e-324"
    return number, None


def _oversized(text: str) -> str:
    return f"found {text}, a number too large; allowed: integers of 64 bits and floats up to 1.7e308"


def _surprise(text: str) -> str | None:
    """Return the sentence about a scalar that YAML 1.1 and YAML 1.2 read differently."""
    for pattern, reading, advice in (
        (_LEADING_ZERO, "which YAML 1.1 may read as octal", "the number without leading zeros"),
        (_OTHER_BASE, "which YAML versions read differently", "the number in base ten"),
        (_UNDERSCORED, "which YAML versions read differently", "the number without underscores"),
        (_BASE_SIXTY, "which YAML 1.1 reads in base sixty", "a plain number"),
        (_TIMESTAMP, "which YAML 1.1 reads as a date", "no dates"),
    ):
        if pattern.fullmatch(text):
            return f'found {text}, {reading}; allowed: {advice}, or "{text}" in quotes where text is meant'
    return None
