"""The test process holds no CUDA context; what needs one in its own process has a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
MEMBERS = """
import os, pytest
GPUS = "CUDA_VISIBLE_DEVICES"

def test_plain(): assert os.environ[GPUS] == ""

@pytest.mark.gpu
def test_starts_processes(): assert os.environ[GPUS] == "3"

def test_plain_again(): assert os.environ[GPUS] == ""

@pytest.mark.cuda_here
def test_calls_cuda():
    assert os.environ[GPUS] == "3"
    import torch
    torch.open_context()
"""
OPENS = """
def test_opens(): __import__("torch").open_context()
"""
# Enough of torch for the question whether this process has a context.
TORCH = """
class cuda:
    context = False
    is_initialized = staticmethod(lambda: cuda.context)
def open_context(): cuda.context = True
"""


def outcome(folder: Path, test: str, *options: str) -> str:
    """Run one test file with the plugin alone, GPU 3 visible; returns the output."""
    (folder / "test_it.py").write_text(test, "utf-8")
    (folder / "torch.py").write_text(TORCH, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu\n  cuda_here\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gpu_access", "-p", "no:cacheprovider", *options]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{HERE}", "CUDA_VISIBLE_DEVICES": "3"}
    ended = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    return ended.stdout


@pytest.mark.parametrize("jobs", ["0", "1"])
def test_gpus_are_shown_to_what_gpu_tests_start_and_to_no_test_process(tmp_path: Path, jobs: str) -> None:
    assert "3 passed, 1 skipped" in outcome(tmp_path, MEMBERS, "-n", jobs)


def test_a_pytest_of_its_own_may_open_a_context(tmp_path: Path) -> None:
    assert "1 passed, 3 deselected" in outcome(tmp_path, MEMBERS, "--cuda-here", "-m", "cuda_here")


def test_a_test_that_opens_a_context_where_it_may_not_is_refused(tmp_path: Path) -> None:
    said = outcome(tmp_path, OPENS)
    assert "1 passed, 1 error" in said
    assert "the test process has opened a CUDA context" in said


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_calls_cuda_in_its_own_process_passes_in_a_pytest_of_its_own() -> None:
    files = [
        str(path) for path in sorted(HERE.glob("test_*.py")) if "mark.cuda_here" in path.read_text("utf-8")
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--cuda-here",
        "-m",
        "cuda_here",
        "-p",
        "no:cacheprovider",
    ]
    ended = subprocess.run(
        [*command, *files], cwd=HERE.parent, capture_output=True, text=True, timeout=1700, check=False
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert re.search(r"\d+ passed", ended.stdout)
    assert "skipped" not in ended.stdout
