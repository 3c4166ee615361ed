"""Words for values, keys and JSON Schema nodes: the two halves of "found X; allowed: Y"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mini_kv.core.records.card import (
    AXIS_NAME,
    DISPATCHER_NAME,
    EXCEPTION_NAME,
    IDENTIFIER,
    IMPORT_PATH,
    SEMANTIC_VERSION,
)

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_PATTERNS: Mapping[str, str] = {
    AXIS_NAME: "1 to 16 of a-z, 0-9 and _, a letter first",
    IDENTIFIER: "1 to 64 of a-z, 0-9 and _, a letter first",
    SEMANTIC_VERSION: "three numbers with dots, such as 1.0.0",
    IMPORT_PATH: "module.path:function",
    DISPATCHER_NAME: "namespace::name",
    EXCEPTION_NAME: "an exception's class name, such as RuntimeError",
}

MAX_FOUND_CHARACTERS = 60
MAX_LISTED = 24


def key_text(path: Iterable[str | int]) -> str:
    """Return ``cases[3].params.dtype`` for ``("cases", 3, "params", "dtype")``."""
    words: list[str] = []
    for step in path:
        if isinstance(step, int):
            words.append(f"[{step}]")
        elif len(step) <= MAX_FOUND_CHARACTERS and _PLAIN_KEY.fullmatch(step):
            words.append(f".{step}" if words else step)
        else:
            words.append(f"[{step[:MAX_FOUND_CHARACTERS]!r}]")
    return "".join(words)


def found_text(value: object) -> str:
    """Return a short description of a value of a document; text stands in quotes."""
    if value is None:
        return "no value"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shortened = value if len(value) <= MAX_FOUND_CHARACTERS else value[:MAX_FOUND_CHARACTERS] + "..."
        return repr(shortened)
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    return f"the number {value}"


def choice(options: Iterable[object]) -> str:
    """Return ``one of a, b, c``, cut when there are many."""
    words = [str(option)[:MAX_FOUND_CHARACTERS] for option in options]
    shown = ", ".join(words[:MAX_LISTED])
    return f"one of {shown}" + (f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else "")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` when a known word is close, else nothing."""
    import difflib

    close = difflib.get_close_matches(word[:MAX_FOUND_CHARACTERS], list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]!r}?)" if close else ""


def describe(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Return what a JSON Schema node allows, in a few words."""
    schema = dereference(schema, root)
    if "enum" in schema:
        return choice(schema["enum"])
    if "anyOf" in schema:
        words = [describe(branch, root) for branch in schema["anyOf"] if branch.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    kind = schema.get("type")
    if kind == "string":
        return _describe_text(schema)
    if kind in ("integer", "number"):
        noun = "a whole number" if kind == "integer" else "a number"
        return noun + _span(schema.get("minimum"), schema.get("maximum"), "")
    if kind == "boolean":
        return "true or false"
    if kind == "array":
        items = describe(schema.get("items", {}), root)
        return f"a list{_span(schema.get('minItems'), schema.get('maxItems'), ' item(s)')}, each {items}"
    if kind == "object":
        return _describe_mapping(schema, root)
    return "a value"


def dereference(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow ``$ref`` to its definition in ``root``."""
    while "$ref" in schema:
        node: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            node = node[step]
        schema = node
    return schema


def _describe_mapping(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    names = list(schema.get("properties", {}))[:MAX_LISTED]
    if names:
        required = schema.get("required", ())
        must = ", ".join(name for name in names if name in required)
        may = ", ".join(name for name in names if name not in required)
        if not must:
            return f"a mapping, empty or with any of {may}"
        return f"a mapping with {must}" + (f" and, if wanted, {may}" if may else "")
    keys, values = schema.get("propertyNames"), schema.get("additionalProperties")
    if keys and isinstance(values, dict):
        return f"a mapping of {describe(keys, root)} to {describe(values, root)}"
    return "a mapping"


def _describe_text(schema: Mapping[str, Any]) -> str:
    pattern = schema.get("pattern")
    if pattern is not None:
        return _PATTERNS.get(pattern, f"text that matches {pattern}")
    span = _span(schema.get("minLength"), schema.get("maxLength"), " characters")
    return "text" + (f" of {span.removeprefix(' of').strip()}" if span else "")


def _span(low: float | None, high: float | None, unit: str) -> str:
    def number(value: float) -> str:
        return str(int(value)) if float(value).is_integer() else str(value)

    of = " of" if unit else ""
    if low is None and high is None:
        return ""
    if high is None:
        return f"{of} at least {number(low or 0)}{unit}"
    if low is None:
        return f"{of} at most {number(high)}{unit}"
    return f"{of} {number(low)} to {number(high)}{unit}" if of else f" from {number(low)} to {number(high)}"
