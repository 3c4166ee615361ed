"""No function takes a row of unnamed values, no file is too long to read, no class name means two things."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "mini_kv"
# What is touched takes four; five is what nothing may exceed.
MOST_POSITIONAL = 5
MOST_LINES = 400
# One entry a code, and nothing to read in one go.
TABLES = {"core/codes.py"}
SIX = "; ".join(f"{name}: int" for name in "abcdef")
# A Triton kernel's parameters are how it is launched; a card's input factory calls make_tensor by the
# signature that the tutorial shows.
LAUNCHED_OR_DOCUMENTED = {"references/triton_rows.py: _row", "references/inputs.py: make_tensor"}


def modules(package: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package).as_posix(), path.read_text("utf-8")


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    """Return how many parameters a caller may give without their names, ``self`` and ``cls`` aside."""
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def fields_by_place(node: ast.ClassDef) -> int:
    """Return how many fields of a record a caller may give without their names."""
    how = [*node.decorator_list, *node.bases, *node.keywords]
    said = [ast.unparse(one) for one in how]
    record = any(one.rpartition(".")[2].startswith(("dataclass", "NamedTuple", "Record")) for one in said)
    if not record or any("kw_only=True" in one for one in said):
        return 0
    return sum(isinstance(one, ast.AnnAssign) for one in node.body)


def crowded(package: Path, most: int = MOST_POSITIONAL) -> set[str]:
    return {
        f"{name}: {getattr(node, 'name', 'lambda')}"
        for name, text in modules(package)
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and positional(node) > most)
        or (isinstance(node, ast.ClassDef) and fields_by_place(node) > most)
    }


def long_files(package: Path) -> dict[str, int]:
    lines = {name: len(text.splitlines()) for name, text in modules(package)}
    return {name: count for name, count in lines.items() if count > MOST_LINES}


def shared_class_names(package: Path) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, text in modules(package):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_function_takes_more_than_five_positional_parameters() -> None:
    assert crowded(PACKAGE) == LAUNCHED_OR_DOCUMENTED


def test_no_module_has_more_than_400_lines() -> None:
    assert long_files(PACKAGE).keys() <= TABLES


def test_a_class_name_stands_once() -> None:
    assert shared_class_names(PACKAGE) == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, b, c, d, e): ...", set()),
        ("def f(a, b, c, d, e, *, f): ...", set()),
        ("def f(a, b, c, d, e, f): ...", {"m.py: f"}),
        ("def f(a, b, /, c, d, e, f=1): ...", {"m.py: f"}),
        ("async def f(a, b, c, d, e, f): ...", {"m.py: f"}),
        ("class C:\n    def f(self, a, b, c, d, e): ...", set()),
        ("class C:\n    def f(self, a, b, c, d, e, f): ...", {"m.py: f"}),
        ("def f():\n    def g(a, b, c, d, e, f): ...", {"m.py: g"}),
        ("f = lambda a, b, c, d, e, f: 0", {"m.py: lambda"}),
        (f"@dataclass(frozen=True)\nclass C:\n    {SIX}", {"m.py: C"}),
        (f"class C(NamedTuple):\n    {SIX}", {"m.py: C"}),
        (f"class C(Record, frozen=True):\n    {SIX}", {"m.py: C"}),
        (f"@dataclass(frozen=True, kw_only=True)\nclass C:\n    {SIX}", set()),
        (f"class C(Record, frozen=True, kw_only=True):\n    {SIX}", set()),
        (f"class C(Protocol):\n    {SIX}", set()),
    ],
)
def test_a_function_of_six_parameters_is_seen(tmp_path: Path, source: str, found: set[str]) -> None:
    (tmp_path / "m.py").write_text(source)
    assert crowded(tmp_path) == found


def test_a_long_file_and_a_second_class_of_a_name_are_seen(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("class Crew: ...\n" + "\n" * (MOST_LINES - 1))
    assert (long_files(tmp_path), shared_class_names(tmp_path)) == ({}, {})
    (tmp_path / "long.py").write_text("class Crew: ...\n" + "\n" * MOST_LINES)
    assert long_files(tmp_path) == {"long.py": MOST_LINES + 1}
    assert shared_class_names(tmp_path) == {"Crew": ["long.py", "short.py"]}
