"""The dtypes stand in one table, ``core/dtypes.py``; a second list of them in the package is found."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from mini_kv.core.dtypes import CARD_DTYPES, DTYPES, FLOATING, DTypeKind, DTypeName, OtherDTypeName

TABLE = Path("core/dtypes.py")
# What can list things: a collection, a Literal, keywords, the cases of a match, an ``or`` of comparisons.
LISTS = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Subscript, ast.Call, ast.Match, ast.BoolOp)
# Torch's other names for them.
ALIASES = {
    alias: str(getattr(torch, alias)).removeprefix("torch.")
    for alias in ("half", "float", "double", "short", "int", "long")
}


def dtype_names(node: ast.AST) -> Iterator[str]:
    """Yield each dtype that an expression names: as text, keyword, torch's attribute or a name from there."""
    match node:
        case ast.Call(func=ast.Attribute(attr="to")):
            return  # a conversion
        case ast.Call(func=ast.Name(id="dict"), keywords=words):
            yield from (str(word.arg) for word in words if word.arg in DTYPES)
        case ast.Constant(value=str(text)):
            yield from (name for one in text.split() if (name := one.removeprefix("torch.")) in DTYPES)
        case ast.Attribute(value=ast.Name(), attr=name) | ast.Name(id=name) if (
            name in DTYPES and name != "bool"
        ):
            yield name
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in ALIASES or name == "bool":
            yield ALIASES.get(name, name)
        case _:
            pass
    # The cases of a match are named by what they look for; what they do is their own.
    parts = [one.pattern for one in node.cases] if isinstance(node, ast.Match) else ast.iter_child_nodes(node)
    for part in parts:
        yield from dtype_names(part)


def compared(node: ast.AST) -> Iterator[str]:
    """Yield each dtype with which a function compares something, in whatever chain of conditions."""
    if isinstance(node, ast.FunctionDef):
        for part in ast.walk(node):
            if isinstance(part, ast.Compare):
                yield from dtype_names(part)


def lists_of_dtypes(package: Path) -> list[str]:
    """Return where a module other than the table lists two dtypes or more."""
    paths = sorted(package.rglob("*.py"))
    assert paths, f"{package} holds no module"
    return [
        f"{path.relative_to(package).as_posix()}:{node.lineno}"
        for path in paths
        if path.relative_to(package) != TABLE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, LISTS) and len(set(dtype_names(node))) > 1) or len(set(compared(node))) > 1
    ]


def test_dtypes_are_listed_in_the_table_alone(project_root: Path) -> None:
    package = project_root / "src/mini_kv"
    assert (package / TABLE).is_file()
    assert lists_of_dtypes(package) == [], f"dtypes are listed in {TABLE} alone: derive from DTYPES"


@pytest.mark.parametrize(
    "source",
    [
        'NARROW = ("float16", "bfloat16")',
        "SIZES = {torch.float32: 4, torch.float64: 8}",
        'Name = Literal["int32", "int64"]',
        'def f(x):\n    match x:\n        case "float32" | "float64":\n            return 1',
        "def f(x):\n    return x.dtype == torch.float16 or x.dtype == torch.bfloat16",
        "SIZES = dict(float16=2, float32=4)",
        "LOW = (torch.half, torch.bfloat16)",
        "from torch import bfloat16, float16\nLOW = (float16, bfloat16)",
        "import torch as t\nLOW = (t.float16, t.bfloat16)",
        'LOW = "float16 bfloat16".split()',
        'SIZES = {"torch.float16": 2, "torch.float32": 4}',
        'match x:\n    case "float16":\n        size = 2\n    case "float64":\n        size = 8',
        'def f(x):\n    if x == "float16":\n        return 2\n    if x == "float64":\n        return 8',
        'def f(x):\n    return 2 if x == "float16" else 8 if x == "float64" else 4',
    ],
)
def test_a_planted_second_list_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "planted.py").write_text(source)
    assert lists_of_dtypes(tmp_path)[0].startswith("planted.py:")


@pytest.mark.parametrize(
    "source",
    [
        'a = ("float64",)',
        "b = torch.float64 if wide else torch.float32",
        "c = (x.to(torch.float32), x.to(torch.float64))",
        "d = [int(x), float(x), bool(x)]\ndef f(x: int) -> float: ...",
        "def f(x):\n    if x.dtype == torch.float64:\n        return x\n    return x.to(torch.float32)",
        'match x:\n    case "float64":\n        y = torch.zeros(1, dtype=torch.float32)',
    ],
)
def test_one_dtype_alone_is_no_list(tmp_path: Path, source: str) -> None:
    (tmp_path / "module.py").write_text(source)
    assert lists_of_dtypes(tmp_path) == []


def test_the_names_that_type_check_are_the_names_of_the_table() -> None:
    assert len(DTYPES) > len(CARD_DTYPES) > 0
    assert set(DTYPES) == {*get_args(DTypeName), *get_args(OtherDTypeName)}


def test_the_table_says_what_torch_says() -> None:
    kinds: dict[str, DTypeKind] = {}
    for name in DTYPES:
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            kinds[name] = "floating"
        elif dtype.is_complex:
            kinds[name] = "complex"
        else:
            kinds[name] = "bool" if dtype == torch.bool else "integer"
    assert {name: dtype.kind for name, dtype in DTYPES.items()} == kinds
    assert {name: dtype.size_bytes for name, dtype in DTYPES.items()} == {
        name: getattr(torch, name).itemsize for name in DTYPES
    }


def test_a_narrower_dtype_is_of_the_same_kind_and_has_half_the_bytes() -> None:
    narrower = {name: dtype.narrower for name, dtype in DTYPES.items() if dtype.narrower}
    assert narrower == {"float64": "float32", "float32": "float16"}
    assert set(narrower) < set(FLOATING)
    for wide, narrow in narrower.items():
        assert DTYPES[narrow].kind == DTYPES[wide].kind
        assert 2 * DTYPES[narrow].size_bytes == DTYPES[wide].size_bytes
