"""docs/method.md gives every constant of the method with its value and a reason."""

from __future__ import annotations

import ast
import importlib
import math
import re
from pathlib import Path

import pytest

PACKAGE = Path("src/mini_kv")
# Where a number decides what is measured, believed, compared or called slower.
METHOD = (
    "core/rules/quality.py",
    "core/rules/statistics.py",
    "worker/batches.py",
    "worker/cpu_timer.py",
    "worker/cuda_timer.py",
    "worker/copy_costs.py",
    "benchmark/*.py",
    "regression/*.py",
    "calibration/*.py",
    "comparison/verdicts.py",
    "comparison/interleaved_run.py",
    "run/regression_gate.py",
    "run/process_pairs.py",
)
HEADING = "## Every constant"
_ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \| `(?P<value>[^`]+)` \| (?P<reason>.+) \|$", re.MULTILINE)


def is_number(node: ast.expr) -> bool:
    """Whether an expression is made of numbers: also tuples, and mappings from names to numbers."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Tuple(elts=parts) if parts:
            return all(map(is_number, parts))
        case ast.Dict(values=values) if values:
            return all(map(is_number, values))
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.Call(func=ast.Attribute(attr="sqrt"), args=[argument]):
            return is_number(argument)
        case _:
            return False


def assigned(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [(name, value)]
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            return [(ast.unparse(name), value) for name, value in zip(names, values, strict=True)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return [(name, value)]
        case _:
            return []


def constants_of(path: Path, package: Path) -> dict[str, str]:
    """Return a module's numbers by dotted name, as they are written; a policy's fields among them."""
    module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
    found: dict[str, str] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for name, value in assigned(node):
            if name.isupper() and is_number(value):
                found[f"{module}.{name}"] = ast.unparse(value)
        if isinstance(node, ast.ClassDef) and node.name == "Policy":
            fields = [pair for statement in node.body for pair in assigned(statement)]
            found |= {f"{module}.Policy.{name}": ast.unparse(value) for name, value in fields}
    return found


def documented(text: str) -> list[tuple[str, str]]:
    _, heading, section = text.partition(HEADING)
    assert heading, f"docs/method.md has no section '{HEADING}'"
    rows = list(_ROW.finditer(section.partition("\n## ")[0]))
    return [(row["name"], row["value"]) for row in rows]


def test_every_constant_of_the_method_has_its_value_and_reason(project_root: Path) -> None:
    package = project_root / PACKAGE
    found: dict[str, str] = {}
    for pattern in METHOD:
        paths = sorted(package.glob(pattern))
        assert paths, f"{pattern} matches no module"
        for path in paths:
            found |= constants_of(path, package)
    rows = documented((project_root / "docs/method.md").read_text(encoding="utf-8"))
    missing = [f"| `{name}` | `{value}` | why? |" for name, value in found.items() if name not in dict(rows)]
    assert missing == [], "rows that docs/method.md lacks"
    assert sorted(name for name, _ in rows) == sorted(found), "rows twice, or of constants that are gone"
    assert dict(rows) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("LIMIT = 0.05", {"m.LIMIT": "0.05"}),
        ("A_US, _B = 1.0, 2 << 20", {"m.A_US": "1.0", "m._B": "2 << 20"}),
        ("SLACK: dict[str, float] = {'cpu': 5.0}", {"m.SLACK": "{'cpu': 5.0}"}),
        ("PAIRS = ((2.0, 3), (1.0, 4))", {"m.PAIRS": "((2.0, 3), (1.0, 4))"}),
        ("CODE = 'TEXT'\nFLAG = True\nlow = 3\nKERNELS = Path('x')", {}),
        ("class Policy:\n    limit: float = 0.05", {"m.Policy.limit": "0.05"}),
    ],
)
def test_constants_are_numbers_in_capitals_and_a_policys_fields(
    tmp_path: Path, source: str, found: dict[str, str]
) -> None:
    path = tmp_path / "m.py"
    path.write_text(source)
    assert constants_of(path, tmp_path) == found


def running(name: str) -> object:
    """Return the value of a constant by dotted name, of the module as it is imported."""
    module, _, last = name.rpartition(".")
    if module.endswith(".Policy"):
        return getattr(importlib.import_module(f"mini_kv.{module.removesuffix('.Policy')}").Policy(), last)
    return getattr(importlib.import_module(f"mini_kv.{module}"), last)


def test_what_is_documented_is_what_runs(project_root: Path) -> None:
    """A constant that is assigned again further down would be documented wrongly."""
    rows = documented((project_root / "docs/method.md").read_text(encoding="utf-8"))
    assert len(rows) > 50
    for name, text in rows:
        assert running(name) == eval(text, {"math": math}), name
