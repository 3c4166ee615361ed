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
# What can list things: a collection, a Literal, the patterns of one case, an ``or`` of comparisons.
LISTS = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Subscript, ast.MatchOr, ast.BoolOp)


def dtype_names(node: ast.AST) -> Iterator[str]:
    """Yield each dtype that an expression names, as text or as torch's attribute."""
    for part in ast.walk(node):
        match part:
            case ast.Constant(value=str(name)) if name in DTYPES:
                yield name
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in DTYPES:
                yield name


def lists_of_dtypes(package: Path) -> list[str]:
    """Return where a module other than the table lists two dtypes or more."""
    paths = sorted(package.rglob("*.py"))
    assert paths, f"{package} holds no module"
    return [
        f"{path.relative_to(package).as_posix()}:{node.lineno}"
        for path in paths
        if path.relative_to(package) != TABLE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, LISTS) and len(set(dtype_names(node))) > 1
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
    ],
)
def test_a_planted_second_list_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "planted.py").write_text(source)
    assert lists_of_dtypes(tmp_path)[0].startswith("planted.py:")


def test_one_dtype_alone_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('a = ("float64",)\nb = torch.float64 if wide else torch.float32\n')
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
