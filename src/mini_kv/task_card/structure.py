"""Does the data have the record's shape? Every breach at once, in sentences.

A document that converts to the record has its shape, and that is quick to see. Only one that does not
is checked against the record's JSON Schema, whose validator lists all breaches but costs 35 ms to import.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec

from mini_kv.core.record import Record
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.task_card.document import KeyPath, Plain
from mini_kv.task_card.wording import choice, describe, found_text, suggestion

Finding = tuple[KeyPath, str]

MAX_FINDINGS = 1000
"""Nobody reads more, and a megabyte of unknown keys would take seconds to put into words."""

_VERSION_IN_QUOTES = f'"{SCHEMA_VERSION}", in quotes'
# What to write for a section that is not there: it has no line of its own to look at.
_EXAMPLES = {
    "cases": "'cases: [{id: small, kind: core, params: {shape: [33], dtype: float32}}]'",
    "tolerances": "'tolerances: {float32: {rtol: 1.0e-5, atol: 1.0e-6}}'",
    "contract": "'contract: {functional: true, opcheck: true}'",
    "benchmark": "'benchmark: {case_ids: [small], primary_case_id: small}', the ids of legal cases",
    "reference": "'reference: my_module:reference'",
    "input_factory": "'input_factory: my_module:make_inputs'",
}

_Kind = TypeVar("_Kind", bound=Record)
_MSGSPEC_PLACE = re.compile(r" - at `\$(?P<path>.*)`$")
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def converted(data: Plain, kind: type[_Kind]) -> tuple[_Kind | None, tuple[Finding, ...]]:
    """Return the record and nothing, or ``None`` and the breaches of its shape, at most ``MAX_FINDINGS``."""
    try:
        return msgspec.convert(data, type=kind), ()
    except msgspec.ValidationError as error:
        findings = tuple(islice(schema_findings(data, kind), MAX_FINDINGS))
        return None, findings or (_one_finding(error),)


def schema_findings(data: Plain, kind: type[Record]) -> Iterator[Finding]:
    """Yield every breach of the record's JSON Schema (Draft 2020-12)."""
    schema, validator = _validator(kind)
    for error in validator.iter_errors(data):
        yield from _findings(error, schema, kind)
    yield from _fractions(data)


@functools.cache
def _validator(kind: type[Record]) -> tuple[dict[str, Any], Any]:
    import jsonschema_rs

    schema: dict[str, Any] = msgspec.json.schema(kind)
    return schema, jsonschema_rs.Draft202012Validator(schema)


def _findings(error: Any, schema: dict[str, Any], kind: type[Record]) -> Iterator[Finding]:
    path: KeyPath = tuple(error.instance_path)
    node: Any = schema
    for step in list(error.schema_path)[:-1]:
        node = node[step]
    match error.kind.name:
        case "additionalProperties":
            for key in error.kind.unexpected:
                yield (*path, key), _unknown_key(key, list(node.get("properties", {})))
        case "required":
            key = error.kind.property
            allowed = describe(node["properties"][key], schema)
            if key == "schema_version":
                allowed = _VERSION_IN_QUOTES
            example = f" (such as {_EXAMPLES[key]})" if not path and key in _EXAMPLES else ""
            yield (*path, key), f"found no such key; required: {allowed}{example}"
        case "propertyNames":
            options = error.kind.error.kind.options if error.kind.error.kind.name == "enum" else ()
            for key in [key for key in error.instance if key not in options]:
                yield (*path, key), _unknown_key(key, list(options))
        case "anyOf":
            yield from _any_of(error, node, schema, kind)
        case "type" if path == ("schema_version",):
            yield path, f"found {found_text(error.instance)}; allowed: {_VERSION_IN_QUOTES}"
        case _:
            allowed = describe(node, schema)
            yield path, f"found {found_text(error.instance)}; allowed: {allowed}{_hint(error.instance, node)}"


def _any_of(error: Any, node: Any, schema: dict[str, Any], kind: type[Record]) -> Iterator[Finding]:
    """A mapping or list that may be absent is reported by its own breaches, the rest by what is allowed."""
    if isinstance(error.instance, dict | list):
        for branch in error.kind.context:
            if not any(each.kind.name == "type" and list(each.instance_path) == list(error.instance_path)
                       for each in branch):  # fmt: skip
                for each in branch:
                    yield from _findings(each, schema, kind)
                return
    yield tuple(error.instance_path), f"found {found_text(error.instance)}; allowed: {describe(node, schema)}"


def _unknown_key(key: str, known: list[str]) -> str:
    return f"found an unknown key {found_text(key)}; allowed: {choice(known)}{suggestion(key, known)}"


def _hint(value: object, node: dict[str, Any]) -> str:
    """Return how to write the value where the type is likely a slip of quoting or of spelling."""
    wanted = node.get("type")
    if isinstance(value, str) and "enum" in node:
        return suggestion(value, [str(option) for option in node["enum"]])
    if isinstance(value, str) and wanted in ("number", "integer", "boolean"):
        return " (without quotes)" if re.fullmatch(r"[-+.0-9eE]+|true|false", value) else ""
    if wanted == "string" and isinstance(value, bool | int | float):
        return " (as text, in quotes)"
    return ""


def _fractions(data: Plain) -> Iterator[Finding]:
    """JSON Schema counts 20.0 among the integers; the record does not."""
    benchmark = data.get("benchmark") if isinstance(data, dict) else None
    if not isinstance(benchmark, dict):
        return
    for key in ("warmup", "iterations", "repeats"):
        value = benchmark.get(key)
        if isinstance(value, float) and value.is_integer():
            yield (
                ("benchmark", key),
                f"found the number {value}; allowed: a whole number, written {int(value)}",
            )


def _one_finding(error: msgspec.ValidationError) -> Finding:
    """Turn msgspec's own message into a finding: the net below the schema, should the two ever differ."""
    message = str(error)
    place = _MSGSPEC_PLACE.search(message)
    path: KeyPath = ()
    if place:
        steps = _PATH_STEP.findall(place["path"])
        path = tuple(int(index) if index else name for name, index in steps)
        message = message[: place.start()]
    return path, f"found a value of another type; allowed: {message.replace('`', '')}"
