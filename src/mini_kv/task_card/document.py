"""YAML bytes -> plain data with line numbers, refused before anything can grow.

The parser's events are read one by one, so that depth, size, aliases, tags and duplicate keys are judged
while the document is read; nothing is expanded and nothing is constructed but dicts, lists and scalars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import yaml

from mini_kv.core.record import Record
from mini_kv.task_card.scalars import Scalar, plain_scalar, text_problem
from mini_kv.task_card.syntax import syntax_problem

KeyPath = tuple[str | int, ...]
Plain = Any  # dict[str, Plain] | list[Plain] | Scalar: what JSON can hold.

MAX_DEPTH = 8
MAX_NODES = 200_000

_TOO_DEEP = f"found more than {MAX_DEPTH} levels of nesting; allowed: at most {MAX_DEPTH}"
_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Problem(Record, frozen=True, kw_only=True):
    """One finding: where (line from 1, keys from the top) and a sentence without its full stop."""

    line: int
    path: KeyPath
    text: str


class Document(Record, frozen=True, kw_only=True):
    """What a file holds. ``data`` is to be trusted only as far as ``problems`` is empty.

    ``complete`` is false when reading stopped early: what is missing from ``data`` may be in the file.
    """

    data: Plain
    lines: Mapping[KeyPath, int]
    problems: tuple[Problem, ...]
    complete: bool

    def line(self, path: KeyPath) -> int:
        """Return the line of ``path``, or of the nearest mapping or list around it (at least 1)."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(raw: bytes) -> Document:
    """Parse one YAML document. Never raises for what the bytes hold: findings are ``problems``."""
    text, refusal = _decode(raw)
    if refusal is not None:
        return Document(data=None, lines={}, problems=(refusal,), complete=False)
    builder = _Builder()
    complete = False
    try:
        parser = _Loader(text)
        try:
            while parser.check_event():
                builder.take(parser.get_event())
        finally:
            parser.dispose()
        complete = True
    except _Stop:
        pass
    except yaml.YAMLError as error:
        builder.report(*_syntax_problem(error, text))
    except (UnicodeError, ValueError):
        # Escapes that name no character pass the scanner of some parser builds and fail in its decoder.
        builder.report(1, (), "found an escape that is no character; allowed: UTF-8 text")
    return Document(
        data=builder.data, lines=builder.lines, problems=tuple(builder.problems), complete=complete
    )


def _decode(raw: bytes) -> tuple[str, Problem | None]:
    def refuse(offset: int, text: str) -> tuple[str, Problem]:
        return "", Problem(line=raw.count(b"\n", 0, offset) + 1, path=(), text=text)

    nul = raw.find(b"\0")
    if nul >= 0:
        return refuse(nul, "found a NUL byte, as binary files and UTF-16 have; allowed: UTF-8 text")
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        return refuse(error.start, f"found the byte 0x{raw[error.start]:02x}; allowed: UTF-8 text")
    if not text.strip():
        return refuse(0, "found an empty file; allowed: one YAML mapping")
    return text, None


def _syntax_problem(error: yaml.YAMLError, text: str) -> tuple[int, KeyPath, str]:
    if "nesting depth" in (getattr(error, "problem", None) or ""):
        # The scanner reads ahead of the events, and has a limit of its own.
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        return mark.line + 1 if mark else 1, (), _TOO_DEEP
    line, told = syntax_problem(error, text)
    return line, (), told


class _Stop(Exception):
    """Reading on would be of no use or no safety; the reason is among the problems."""


class _Anchored(Record, frozen=True, kw_only=True):
    """What an anchor stands for: its value, how many nodes it expands to and how many levels."""

    value: Plain
    nodes: int
    height: int


class _Frame:
    """A mapping or list that is still open."""

    __slots__ = ("anchor", "container", "height", "is_key", "is_mapping", "key", "nodes_before", "path")

    def __init__(self, container: dict[str, Plain] | list[Plain], path: KeyPath, event: Any) -> None:
        self.container: Any = container
        self.is_mapping = isinstance(container, dict)
        self.path = path
        self.anchor: str | None = event.anchor
        self.height = 1
        self.nodes_before = 0
        self.is_key = False
        # The key whose value comes next: (name, line, whether the pair is to be dropped).
        self.key: tuple[str, int, bool] | None = None


class _Builder:
    """Consumes events; the open mappings and lists are a stack, so that depth costs no recursion."""

    def __init__(self) -> None:
        self.data: Plain = None
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._stack: list[_Frame] = []
        self._anchors: dict[str, _Anchored] = {}
        self._nodes = 0
        self._documents = 0

    def report(self, line: int, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(line=line, path=path, text=text))

    def take(self, event: Any) -> None:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._scalar(event)
        elif kind is yaml.MappingStartEvent:
            self._open({}, event)
        elif kind is yaml.SequenceStartEvent:
            self._open([], event)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self._close()
        elif kind is yaml.AliasEvent:
            self._alias(event)
        elif kind is yaml.DocumentStartEvent:
            self._document(event)

    def _stop(self, event: Any, text: str) -> NoReturn:
        self.report(event.start_mark.line + 1, self._path(), text)
        raise _Stop

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            self._stop(event, "found a second YAML document (---); allowed: one document in a file")
        if event.tags:
            self._stop(event, "found a %TAG directive; allowed: no tags")

    def _path(self) -> KeyPath:
        """Return where the next node belongs."""
        if not self._stack:
            return ()
        frame = self._stack[-1]
        if isinstance(frame.container, list):
            return (*frame.path, len(frame.container))
        return frame.path if frame.key is None else (*frame.path, frame.key[0])

    def _awaits_key(self) -> bool:
        if not self._stack:
            return False
        frame = self._stack[-1]
        return frame.key is None and frame.is_mapping

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")[:80]
            advice = "no tags (quotes make a value text)"
            self.report(event.start_mark.line + 1, self._path(), f"found the tag {tag!r}; allowed: {advice}")

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            grown = ", aliases counted as often as they are used"
            self._stop(event, f"found more than {MAX_NODES:,} values{grown}; allowed: at most {MAX_NODES:,}")

    def _scalar(self, event: Any) -> None:
        """Take a key or a value. Nine events in ten end here, so the ordinary pair calls nothing else."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._count(event, 0)
        text = event.value
        value: Scalar
        if event.implicit[0] and event.tag is None:
            value, problem = plain_scalar(text)
        else:
            self._check_tag(event)
            value, problem = text, text_problem(text)
        if event.anchor:
            self._anchors[event.anchor] = _Anchored(value=value, nodes=1, height=0)
        line = event.start_mark.line + 1
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.is_mapping:
            pair = frame.key
            if pair is None:
                self._key(frame, text, value, line, problem)
                return
            if problem is None and not pair[2]:
                frame.container[pair[0]] = value
                self.lines.setdefault((*frame.path, pair[0]), pair[1])
                frame.key = None
                return
        if problem is not None:
            self.report(line, self._path(), problem)
        self._place(value, line)

    def _key(self, frame: _Frame, name: str, value: Scalar, line: int, problem: str | None) -> None:
        drop = problem is not None
        if problem is None and not isinstance(value, str):
            drop = True
            problem = f"found the key {name[:60] or 'null'}, which is no text; allowed: text keys (in quotes)"
        elif problem is None and name in frame.container:
            drop = True
            first = self.lines.get((*frame.path, name), line)
            problem = f"found the key {name[:60]!r} again, first in line {first}; allowed: once"
        if problem is not None:
            self.report(line, (*frame.path, name), problem)
        frame.key = (name, line, drop)

    def _open(self, container: dict[str, Plain] | list[Plain], event: Any) -> None:
        self._count(event, 1)
        self._check_tag(event)
        if len(self._stack) >= MAX_DEPTH:
            self._stop(event, _TOO_DEEP)
        path = self._path()
        frame = _Frame(container, path, event)
        frame.nodes_before = self._nodes - 1
        if self._awaits_key():
            frame.is_key = True
            self.report(
                event.start_mark.line + 1, path, "found a mapping or list as a key; allowed: text keys"
            )
        else:
            self._place(container, event.start_mark.line + 1)
        self._stack.append(frame)

    def _close(self) -> None:
        frame = self._stack.pop()
        if frame.anchor:
            self._anchors[frame.anchor] = _Anchored(
                value=frame.container, nodes=self._nodes - frame.nodes_before, height=frame.height
            )
        if not self._stack:
            return
        around = self._stack[-1]
        around.height = max(around.height, frame.height + 1)
        if frame.is_key:
            around.key = ("?", 0, True)
        elif isinstance(around.container, dict):
            around.key = None

    def _alias(self, event: Any) -> None:
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            open_anchors = {frame.anchor for frame in self._stack}
            what = "which holds itself" if event.anchor in open_anchors else "which no anchor names before it"
            self._stop(
                event, f"found the alias *{event.anchor[:60]}, {what}; allowed: aliases of earlier anchors"
            )
        self._count(event, anchored.nodes)
        if len(self._stack) + anchored.height > MAX_DEPTH:
            self._stop(event, _TOO_DEEP)
        if self._awaits_key():
            self.report(
                event.start_mark.line + 1, self._path(), "found an alias as a key; allowed: text keys"
            )
            self._stack[-1].key = ("?", 0, True)
            return
        if self._stack:
            self._stack[-1].height = max(self._stack[-1].height, anchored.height + 1)
        self._place(anchored.value, event.start_mark.line + 1, closes=True)

    def _place(self, value: Plain, line: int, *, closes: bool = False) -> None:
        """Put a value where it belongs. A pair stays open while its mapping or list does."""
        if not self._stack:
            self.data = value
            self.lines[()] = line
            return
        frame = self._stack[-1]
        container = frame.container
        if isinstance(container, list):
            self.lines.setdefault((*frame.path, len(container)), line)
            container.append(value)
            return
        assert frame.key is not None
        name, key_line, drop = frame.key
        if not drop:
            container[name] = value
            self.lines.setdefault((*frame.path, name), key_line)
        if closes or not isinstance(value, dict | list):
            frame.key = None
