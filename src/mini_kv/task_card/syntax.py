"""A YAML parser's error -> the line where the trouble began, and a sentence about what to write there."""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_SHOWN = 40

Told = tuple[int, str]
"""A line, from 1, and ``found ...; allowed: ...``."""

_GLUED = re.compile(r"[-\s]*[A-Za-z_][A-Za-z0-9_]*:[^\s:]")
_INDENTED = "the same indentation for the keys of one mapping, and for the dashes of one list"


def syntax_problem(error: yaml.YAMLError, text: str) -> Told:
    """Return where a document stops to be YAML. The parser stops where it notices, often a line later."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.encode("utf-8").count(b"\n", 0, error.position) + 1
        return line, "found a control character; allowed: printable UTF-8 text"
    stopped = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or "something that is no YAML"
    context = getattr(error, "context", None) or ""
    if stopped is None:
        return 1, f"found a YAML syntax error: {what}; allowed: valid YAML"
    lines = text.splitlines()
    line = _stopped_line(stopped, text)
    began = getattr(error, "context_mark", None) or stopped
    told = _begun(context, began, lines, line) or _noticed(what, context, began, stopped=stopped, text=text)
    place = f" {context}" if context else ""
    return told or (line, f"found a YAML syntax error{place}: {what}; allowed: valid YAML")


def _stopped_line(stopped: Any, text: str) -> int:
    # Marks behind the last character name a line that editors do not show.
    return int(min(stopped.line, text.count("\n"))) + 1


def _begun(context: str, began: Any, lines: list[str], stopped_line: int) -> Told | None:
    """Tell of what was begun and not ended: its first line is the one to mend."""
    line = began.line + 1
    if "simple key" in context:
        shown = _shown(lines, began.line)
        hint = ", with a space behind the colon" if _GLUED.match(_line(lines, began.line)) else ""
        return line, f"found {shown}, which is no key with a value; allowed: 'key: value'{hint}"
    if "quoted scalar" in context:
        return line, "found a quote that is never closed; allowed: text whose quotes close on the same line"
    for kind, brackets, items in (
        ("flow mapping", "{}", "'key: value' pairs"),
        ("flow sequence", "[]", "values"),
    ):
        if kind in context:
            until = "" if stopped_line == line else f" up to line {stopped_line}"
            found = f"found '{brackets[0]}' without a ',' or '{brackets[1]}' where one is due{until}"
            return line, f"{found}; allowed: {items} with ',' between them, closed by '{brackets[1]}'"
    return None


def _noticed(what: str, context: str, began: Any, *, stopped: Any, text: str) -> Told | None:
    """Tell of what stands in a place where it may not."""
    line = _stopped_line(stopped, text)
    if "block mapping" in context or "block collection" in context:
        thing = "mapping" if "mapping" in context else "list"
        found = f"found a line that does not continue the {thing} that begins in line {began.line + 1}"
        return line, f"{found}; allowed: {_INDENTED}"
    if "mapping values are not allowed" in what:
        lines = text.splitlines()
        second = ":" in _line(lines, stopped.line)[: stopped.column]
        why = "which has a second ':'" if second else "which continues the line before it"
        allowed = "one 'key: value' a line, indented as the keys next to it; text with ': ' in it in quotes"
        return line, f"found {_shown(lines, stopped.line)}, {why}; allowed: {allowed}"
    if "violates indentation" in what or "start any token" in what:
        character = text[stopped.index : stopped.index + 1]
        if character == "\t":
            return line, "found a tab in the indentation; allowed: spaces"
        if character.isprintable() and character:
            return line, f"found a value that begins with {character!r}; allowed: such text in quotes"
    return None


def _line(lines: list[str], number: int) -> str:
    # What the parser takes for a line break and what Python does are not quite the same.
    return lines[number] if number < len(lines) else ""


def _shown(lines: list[str], number: int) -> str:
    text = _line(lines, number).strip()
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")
