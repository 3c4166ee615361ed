"""The base of every record: immutable, keyword-only, unknown fields refused."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

_R = TypeVar("_R", bound="Record")

# A bare ``$`` lets a final line break pass where Python's ``re`` reads a pattern, as it does for msgspec and
# ``jsonschema``; ``\Z`` is no part of ECMA-262, in which the patterns of JSON Schema are written.
END = r"$(?!\n)"


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, keyword-only record.

    Subclasses repeat ``frozen=True, kw_only=True``: msgspec inherits the first only, mypy neither.
    """


def to_json(value: object, *, indent: int | None = 2) -> bytes:
    """Encode a record as UTF-8 JSON with a final newline (``indent=None`` gives one line)."""
    raw = msgspec.json.encode(value)
    if indent is not None:
        raw = msgspec.json.format(raw, indent=indent)
    return raw + b"\n"


def from_json(raw: bytes, kind: type[_R]) -> _R:
    """Decode and validate JSON bytes as ``kind``; raises ``msgspec.ValidationError``."""
    return msgspec.json.decode(raw, type=kind)


def to_builtins(value: object) -> Any:
    """Return the JSON-compatible builtin form (dict, list, str, int, float, bool, None)."""
    return cast(Any, msgspec.to_builtins(value))
