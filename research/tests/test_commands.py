"""The studies' commands: what they say when called wrongly, and that the README names each of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from research import ROOT

SCRIPTS = sorted((ROOT / "research").glob("*/run.sh"))
MODULES = sorted(path.parent.name for path in (ROOT / "research").glob("*/__main__.py"))


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


@pytest.mark.parametrize("arguments", [(), ("",), ("--help",)], ids=["none", "empty", "option"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_a_script_without_a_folder_for_its_output_says_its_usage_alone(
    script: Path, arguments: tuple[str, ...]
) -> None:
    ended = call("bash", str(script), *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"usage: {script.relative_to(ROOT)} OUT_DIR")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("name", MODULES)
def test_a_command_says_what_it_takes(name: str) -> None:
    ended = call(sys.executable, "-m", f"research.{name}", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: ")


def test_the_readme_names_every_study_and_only_commands_that_are_there() -> None:
    page = (ROOT / "research" / "README.md").read_text("utf-8")
    studies = re.findall(r"^\| \[`(\w+)`\]\(\1\) \|.*\?.*\|.*`.*\|.*`.*\|.*`.*\|$", page, flags=re.MULTILINE)
    assert sorted(studies) == sorted({*MODULES, *(path.parent.name for path in SCRIPTS)})
    assert set(re.findall(r"python -m research\.(\w+)", page)) <= {*MODULES}
    assert set(re.findall(r"research/\w+/run\.sh", page)) == {str(path.relative_to(ROOT)) for path in SCRIPTS}


def test_what_the_readme_says_was_made_is_there() -> None:
    page = (ROOT / "research" / "README.md").read_text("utf-8")
    named = re.findall(r"`((?:evidence|docs|README)[\w./*-]*)`", page)
    assert len(named) > 10
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []
