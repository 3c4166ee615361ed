"""The shell scripts of scripts/: what they say when called wrongly."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NEED_AN_ARGUMENT = ("profile_rmsnorm.sh", "run_zoo_gpu.sh")


def call(project_root: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(project_root / "scripts" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [(), ("",), ("--help",)], ids=["none", "empty", "option"])
@pytest.mark.parametrize("name", NEED_AN_ARGUMENT)
def test_usage_is_not_told_as_a_fault_of_line_16(
    project_root: Path, name: str, arguments: tuple[str, ...]
) -> None:
    ended = call(project_root, name, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"usage: scripts/{name} ")
    assert ended.stderr.count("\n") == 1


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
