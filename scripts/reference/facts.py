"""Tables of the reference that are read off the code's own tables."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from mini_kv.core import time_limits
from mini_kv.core.record import Record
from mini_kv.core.records.archived_files import (
    ATTEMPT_FILES,
    COMPARISON_FILES,
    PROFILE_FILES,
    SIDE_FILES,
    RawFile,
    RecordFile,
)
from mini_kv.core.records.schemas import RECORDS
from reference.keys import WRITTEN_ELSEWHERE

Rows = list[tuple[str, ...]]


# Each archive with what a person calls it. A side's files lie below ``a/`` and ``b/`` of a comparison.
ARCHIVES: tuple[tuple[str, tuple[RawFile, ...]], ...] = (
    ("an attempt", ATTEMPT_FILES),
    ("a profile", PROFILE_FILES),
    ("a comparison", (*COMPARISON_FILES, *SIDE_FILES)),
)


def file_rows(files: Sequence[RawFile], *, linked: bool, below: str = "") -> Rows:
    """Return every file of an archive: its name, what it holds, and when it is there.

    ``linked`` makes a record's file lead to the record's section of docs/records.md.
    """
    names = {record: name for name, record in RECORDS.items()}
    rows: Rows = []
    for file in files:
        record = names[file.record] if isinstance(file, RecordFile) and linked else None
        name = f"`{below}{file.name}`"
        rows.append((f"[{name}](records.md#{record})" if record else name, file.holds, file.when))
    return rows


def where_written(record: type[Record], name: str) -> str:
    """Say where a record is to be found; empty where nothing says so."""
    places = [WRITTEN_ELSEWHERE[name]] if name in WRITTEN_ELSEWHERE else []
    archives: dict[str, list[str]] = {}
    for archive, files in ARCHIVES:
        for file in files:
            if isinstance(file, RecordFile) and file.record is record:
                archives.setdefault(f"`{file.name}`", []).append(archive)
    places += [f"{held} of {', '.join(those)}" for held, those in archives.items()]
    return "; ".join(places)


def explained_constants(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each constant of a module that has a text below it, with that text as one line."""
    body = ast.parse(path.read_text("utf-8")).body
    for node, after in itertools.pairwise(body):
        match node, after:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split()).replace("``", "`")
            case _:
                pass


def described_names(path: Path, constant: str) -> Rows:
    """Return the rows of a mapping from names to descriptions, read without importing the module (torch)."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == constant and node.value:
            literal = next(part for part in ast.walk(node.value) if isinstance(part, ast.Dict))
            return [(f"`{name}`", text) for name, text in ast.literal_eval(literal).items()]
    raise ValueError(f"{path.name} has no mapping {constant}")


def time_limit_rows() -> Rows:
    """Return every time limit: its name, its value with the unit that the name says, and its reason."""
    rows: Rows = []
    for name, reason in explained_constants(Path(time_limits.__file__)):
        value = f"{getattr(time_limits, name):g}"
        rows.append((f"`{name}`", f"{value} s" if name.endswith("_S") else f"{value} times", reason))
    return rows
