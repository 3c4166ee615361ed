"""Tables of the reference that are read off the code's own tables."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

from mini_kv.core import time_limits

Rows = list[tuple[str, ...]]


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
