"""The layers hold, a breach of any of them is seen, and the judge starts quickly and without torch."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mini_kv.cli.main import COMMANDS
from processor_time import least_ms, spent_ms

# No torch, no processes, no clock in these: what they say follows from what they are given.
PURE = (
    "core",
    "benchmark.ceilings",
    "calibration.bars",
    "comparison.verdicts",
    "correctness.grading",
    "correctness.rounds",
    "leaderboard",
    "profiling.analysis",
    "regression",
)
# All that they import from outside the package; what else there is may read files, clocks or the machine.
PURE_IMPORTS = {
    *("__future__", "collections", "csv", "dataclasses", "enum", "functools", "hashlib", "html", "itertools"),
    *("math", "msgspec", "re", "statistics", "string", "struct", "types", "typing"),
}
HELP_LIMIT_MS = 150


def lint_imports(source: Path, config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), str(config), "--no-logo", "--no-cache"],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def contracts(project_root: Path) -> list[dict[str, Any]]:
    config = tomllib.loads((project_root / "pyproject.toml").read_text("utf-8"))
    found: list[dict[str, Any]] = config["tool"]["importlinter"]["contracts"]
    return found


def test_every_import_keeps_the_layers(project_root: Path) -> None:
    result = lint_imports(project_root / "src", project_root / "pyproject.toml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("core/cost.py", "import mini_kv.system.files", "A layer imports only what lies below it"),
        ("core/cost.py", "import time", "core has no torch"),
        ("core/cost.py", "import torch", "Only workers and references import torch"),
        ("system/files.py", "import mini_kv.worker", "A layer imports only what lies below it"),
        ("cli/schema.py", "import mini_kv.references.vector_add", "References are imported in workers only"),
        # Hidden in a function, and two steps away: still reached.
        ("cli/schema.py", "def late(): import mini_kv.planted", "The judge reaches torch through no chain"),
        ("cli/schema.py", "def late(): from research import ROOT", "The product imports no study"),
        # A new module must be given a place.
        ("planted.py", "", "A layer imports only what lies below it"),
    ],
)
def test_a_planted_breach_is_seen(
    project_root: Path, tmp_path: Path, module: str, line: str, broken: str
) -> None:
    package = tmp_path / "mini_kv"
    shutil.copytree(project_root / "src/mini_kv", package, ignore=shutil.ignore_patterns("__pycache__"))
    if "planted" in module + line:
        (package / "planted.py").write_text("import torch\n")
    with open(package / module, "a") as stream:
        stream.write(f"\n{line}\n")
    result = lint_imports(tmp_path, project_root / "pyproject.toml")
    assert result.returncode == 1, result.stdout + result.stderr
    assert [row for row in result.stdout.splitlines() if broken in row and "BROKEN" in row], result.stdout


@pytest.mark.parametrize("name", PURE)
def test_every_pure_module_is_named_by_a_contract(project_root: Path, name: str) -> None:
    place = project_root / "src/mini_kv" / name.replace(".", "/")
    assert place.is_dir() or place.with_suffix(".py").is_file(), "renamed: this test guards nothing"
    forbidden = {
        target
        for contract in contracts(project_root)
        if contract["type"] == "forbidden" and f"mini_kv.{name}" in contract["source_modules"]
        for target in contract["forbidden_modules"]
    }
    assert {"datetime", "io", "os", "pathlib", "random", "subprocess", "time"} <= forbidden


def impurities(path: Path) -> list[str]:
    """Return what a module imports, at whatever place, that is not known as pure; and that it opens files."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                found += [one.name for one in names]
            case ast.ImportFrom(module=str(module)):
                found.append(module)
            case ast.Call(func=ast.Name(id="open" | "__import__" | "input" as name)):
                found.append(f"{name}()")
            case _:
                pass
    return [name for name in found if name.partition(".")[0] not in PURE_IMPORTS | {"mini_kv"}]


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_imports_what_is_known_as_pure(project_root: Path, name: str) -> None:
    place = project_root / "src/mini_kv" / name.replace(".", "/")
    paths = sorted(place.rglob("*.py")) or [place.with_suffix(".py")]
    assert {path.name: found for path in paths if (found := impurities(path))} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import math\nfrom collections.abc import Mapping\nfrom mini_kv.core import cost", []),
        ("import logging, shutil", ["logging", "shutil"]),
        ("def late():\n    from importlib.resources import files", ["importlib.resources"]),
        ("text = open(name).read()", ["open()"]),
    ],
)
def test_an_impure_import_is_seen(tmp_path: Path, source: str, found: list[str]) -> None:
    (tmp_path / "module.py").write_text(source)
    assert impurities(tmp_path / "module.py") == found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_imported_without_torch(project_root: Path, name: str) -> None:
    module = COMMANDS[name][0]
    assert (project_root / f"src/mini_kv/cli/{module}.py").is_file(), "renamed: this test guards nothing"
    code = f"import sys, mini_kv.cli.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_help_answers_in_time() -> None:
    def once() -> float:
        taken_ms, code = spent_ms([sys.executable, "-m", "mini_kv", "--help"], stdout=subprocess.DEVNULL)
        assert code == 0
        return taken_ms

    assert least_ms(once, HELP_LIMIT_MS) <= HELP_LIMIT_MS
