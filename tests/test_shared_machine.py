"""The test process holds no CUDA context, what needs one has a process of its own; who must be alone is."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shared_machine import Turns

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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "shared_machine",
        "-p",
        "no:cacheprovider",
        *options,
    ]
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


SHORT_AND_ALONE = """
import os, pathlib, time, pytest
HERE = pathlib.Path(__file__).parent

def others(): return sorted(path.name for path in HERE.glob("running-*"))

@pytest.mark.parametrize("number", range(40))
def test_short(number):
    mine = HERE / f"running-{number}"
    mine.touch()
    time.sleep(0.02)
    mine.unlink()
    with (HERE / "met").open("a") as file: file.write("alone" if (HERE / "alone").exists() else "")

@pytest.mark.parametrize("number", range(4))
def test_alone(number, machine_alone):
    with machine_alone():
        (HERE / "alone").touch()
        assert [others() for _ in range(20) if not time.sleep(0.005)] == [[]] * 20
        (HERE / "alone").unlink()
"""


@pytest.mark.parametrize("jobs", ["0", "3"])
def test_who_must_be_alone_is_and_the_others_come_to_their_end(tmp_path: Path, jobs: str) -> None:
    assert "44 passed" in outcome(tmp_path, SHORT_AND_ALONE, "-n", jobs)
    assert (tmp_path / "met").read_text("ascii") == ""


def is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_stream_of_short_blocks_does_not_keep_who_must_be_alone_waiting(tmp_path: Path) -> None:
    waiting = Turns(tmp_path)
    order: list[str] = []

    def alone() -> None:
        with waiting.shared(), waiting.alone():
            order.append("alone")

    def short() -> None:
        with Turns(tmp_path).shared():
            order.append("short")

    with Turns(tmp_path).shared():
        first = threading.Thread(target=alone)
        first.start()
        deadline = time.monotonic() + 60.0
        while is_free(tmp_path / "gate"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # Nobody new comes in any more, although this block is a shared one.
        second = threading.Thread(target=short)
        second.start()
        second.join(0.2)
        assert order == []
    first.join(60.0)
    second.join(60.0)
    assert order == ["alone", "short"]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_calls_cuda_in_its_own_process_passes_in_a_pytest_of_its_own() -> None:
    files = [
        str(path)
        for path in sorted(HERE.rglob("test_*.py"))
        if "mark.cuda_here" in path.read_text("utf-8") and path != Path(__file__).resolve()
    ]
    assert len(files) >= 2, "the tests that call CUDA themselves are elsewhere now"
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
