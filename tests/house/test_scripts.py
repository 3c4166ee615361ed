"""The shell scripts of scripts/: what they say when called wrongly, and which interpreter they take."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

# What takes its first argument as it comes cannot do without one.
NEEDS_AN_ARGUMENT = re.compile(r"^\w+=\$1$", re.MULTILINE)


def call(project_root: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(project_root / "scripts" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_usage_is_not_told_as_a_fault_of_line_16(project_root: Path) -> None:
    scripts = [
        path.name
        for path in sorted((project_root / "scripts").glob("*.sh"))
        if NEEDS_AN_ARGUMENT.search(path.read_text("utf-8"))
    ]
    assert len(scripts) >= 2, scripts
    for name in scripts:
        for arguments in ((), ("",), ("--help",)):
            ended = call(project_root, name, *arguments)
            assert (ended.returncode, ended.stdout) == (2, ""), (name, arguments)
            assert re.fullmatch(f"usage: scripts/{name} .+\n", ended.stderr), (name, arguments)


@pytest.mark.parametrize("arguments", [("v0_naive",), ("v0_naive", "--json")])
def test_one_candidate_alone_is_not_compared(project_root: Path, arguments: tuple[str, ...]) -> None:
    ended = call(project_root, "compare_rmsnorm.sh", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "usage: scripts/compare_rmsnorm.sh [A B] [options of mini-kv compare]\n"


def test_no_script_leaves_its_usage_to_the_shell(project_root: Path) -> None:
    scripts = sorted((project_root / "scripts").glob("*.sh"))
    assert scripts
    told_by_bash = [path.name for path in scripts if ":?usage" in path.read_text("utf-8")]
    assert told_by_bash == [], "bash adds file and line, and exits with 1"


@pytest.mark.parametrize(
    ("named", "expected"),
    [({}, ".venv/bin/python"), ({"PYTHON": "./other"}, "./other")],
    ids=["the checkout's", "PYTHON"],
)
def test_the_ahead_of_time_build_takes_the_checkouts_interpreter(
    project_root: Path, tmp_path: Path, named: dict[str, str], expected: str
) -> None:
    # Both interpreters are without torch here, so that the script ends where it names the one that it asked.
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(project_root / "scripts" / "build_cmake.sh", tmp_path / "scripts")
    for interpreter in (tmp_path / ".venv" / "bin" / "python", tmp_path / "other"):
        interpreter.write_text("#!/bin/sh\n", "utf-8")
        interpreter.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"} | named
    command = ["bash", str(tmp_path / "scripts" / "build_cmake.sh"), "--cpu"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"build_cmake.sh: {expected} has no torch")
