"""What went wrong while a candidate was opened, in one line that says where to look.

What is described here is the candidate's own: whatever it raises, by whatever trick, becomes plain text.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection
from types import TracebackType

import torch

from mini_kv.core.printable import printable

MAX_MESSAGE_CHARACTERS = 300
MAX_NAME_CHARACTERS = 100
MAX_OPERATORS = 5


def operator_names() -> frozenset[str]:
    """Return every ``namespace::name`` that the dispatcher knows now, overloads left aside."""
    return frozenset(name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())


def has_schema(dispatcher: str) -> bool:
    """Say whether the operator is defined: one that only has kernels cannot be called."""
    return bool(torch._C._jit_get_schemas_for_operator(dispatcher))


def registered_text(dispatcher: str, before: Collection[str]) -> str:
    """Return what the library registered instead; ``before`` are the names known without it."""
    namespace = dispatcher.partition("::")[0] + "::"
    names = operator_names()
    new = sorted(names - set(before), key=lambda name: (not name.startswith(namespace), name))
    if dispatcher in new:
        return "it registers kernels for that name, but does not define it (TORCH_LIBRARY, m.def)"
    if new:
        shown = ", ".join(f"'{_plain(name, MAX_NAME_CHARACTERS)}'" for name in new[:MAX_OPERATORS])
        more = f" and {len(new) - MAX_OPERATORS} more" if len(new) > MAX_OPERATORS else ""
        return f"it registers {shown}{more}"
    return "it registers none at all"


def python_fault(error: BaseException, path: str) -> tuple[str, str]:
    """Return where below the folder of the Python file ``path`` it failed, and what was raised."""
    folder = os.path.realpath(os.path.dirname(path))
    place = _syntax_place(error, folder) or _innermost_place(error.__traceback__, folder)
    kind = _plain(type.__dict__["__name__"].__get__(type(error)), MAX_NAME_CHARACTERS)
    said = _first_line(error)
    where = place or _plain(os.path.basename(path), MAX_NAME_CHARACTERS)
    return where, f"{kind}: {said}" if said else kind


def _innermost_place(traceback: TracebackType | None, folder: str) -> str | None:
    place = None
    while traceback is not None:
        place = _place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno, folder) or place
        traceback = traceback.tb_next
    return place


def _syntax_place(error: BaseException, folder: str) -> str | None:
    """What cannot be parsed has no frame of its own; the exception itself says where it stands."""
    if type(error) not in (SyntaxError, IndentationError, TabError):
        return None
    name, line = error.filename, error.lineno  # type: ignore[attr-defined]
    return _place(name, line, folder) if type(name) is str and type(line) is int else None


def _place(name: str, line: int, folder: str) -> str | None:
    try:
        inside = os.path.relpath(os.path.realpath(name), folder)
    except (OSError, ValueError):
        return None
    if inside.partition(os.sep)[0] == os.pardir or not os.path.isabs(name):
        return None
    return f"{_plain(inside, MAX_NAME_CHARACTERS)}:{line}"


def _first_line(error: BaseException) -> str:
    try:
        # A class of the candidate's own may answer with anything, a text that is none included.
        text = "" + str.__str__(str(error))
    except BaseException:  # noqa: BLE001 - the message is the candidate's code
        return ""
    lines = (line.strip() for line in itertools.islice(text[:10_000].splitlines(), 100))
    return _plain(next(filter(None, lines), ""), MAX_MESSAGE_CHARACTERS)


def _plain(text: str, characters: int) -> str:
    """Return ``text`` cut, with every character escaped that is not printable."""
    cut = text[:characters] + ("..." if len(text) > characters else "")
    return printable(cut)
