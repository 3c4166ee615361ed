"""Ctrl-C, SIGTERM, SIGKILL, two at once, a full disk: the evidence stays readable and nothing runs on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness import Project, assert_gone, processes_with, rehash
from mini_kv.artifacts import read_index


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_run_leaves_an_archive_and_no_process(
    project: Project, number: signal.Signals
) -> None:
    started = project.start("--task", project.card("hanging"), "--timeout", "120")
    started.wait_for("correctness: ...")
    time.sleep(3.0)  # the daemon is forked and the third case hangs by now
    begun = time.monotonic()
    started.process.send_signal(number)
    time.sleep(0.05)
    started.process.send_signal(number)  # people press it twice
    run = started.finish(timeout_s=60.0)
    assert time.monotonic() - begun < 20.0
    assert run.code == 130
    attempt = rehash(run)
    assert (attempt.exit_code, attempt.complete, attempt.accepted) == (130, False, False)
    assert "INTERRUPTED" in [finding.code for finding in attempt.findings]
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_ctrl_c_while_timing_keeps_what_was_found(project: Project) -> None:
    text = Path(project.card("unchecked")).read_text()
    card = project.root / "tasks" / f"long_{project.scratch.name}.yaml"
    card.write_text(text.replace("iterations: 5, repeats: 2", "iterations: 10000, repeats: 100"))
    started = project.start("--task", str(card))
    started.wait_for("benchmark: ...")
    time.sleep(1.0)
    started.process.send_signal(signal.SIGINT)
    run = started.finish(timeout_s=60.0)
    assert run.code == 130
    attempt = rehash(run)
    assert run.axis("numerics")[0] == "PASS"
    assert "correctness.json" in {file.path for file in attempt.files}
    assert not attempt.complete


@pytest.fixture
def tmp_path_of_all() -> Iterator[Path]:
    """A temporary folder that every user may enter and write to, as the system's own."""
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.mark.slow
def test_workers_die_with_a_judge_that_is_killed_and_the_next_run_sweeps(
    project: Project, tmp_path_of_all: Path
) -> None:
    # pytest's own folder is closed to the user that workers run as: there they would reach no namespace.
    place = tmp_path_of_all
    environ = {"TMPDIR": str(place)}
    started = project.start("--task", project.card("hanging"), "--timeout", "120", environ=environ)
    started.wait_for("correctness: ...")
    time.sleep(1.0)
    assert len(processes_with(started.marker)) >= 3
    started.process.kill()
    started.process.communicate()
    assert_gone(started.marker, within_s=5.0)
    # What it had begun is left as what it is: unfinished, and no attempt.
    rows, _ = read_index(started.artifacts)
    assert rows == ()
    assert not list(started.artifacts.glob("*/*/attempt.json"))
    left = list(place.glob("mini-kv-*/"))
    assert left, "nothing could be removed by a process that is gone"
    assert project.verify("unchecked", "--skip-benchmark", environ=environ).code == 0
    assert list(place.glob("mini-kv-*/")) == []


@pytest.mark.slow
def test_two_runs_at_once_lose_nothing(project: Project) -> None:
    archive = project.scratch / "shared"
    runs = [
        project.start("--task", project.card("unchecked"), "--skip-benchmark", artifacts=archive)
        for _ in range(2)
    ]
    done = []
    threads = [threading.Thread(target=lambda run=run: done.append(run.finish().code)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert done == [0, 0]
    rows, _ = read_index(archive)
    folders = {path.parent.name for path in archive.glob("unchecked/*/attempt.json")}
    assert {row.attempt_id for row in rows} == folders
    assert len(folders) == 2


def test_an_archive_that_cannot_be_written_is_one_sentence(project: Project) -> None:
    blocked = project.scratch / "blocked"
    blocked.write_text("a file where the folder should be")
    run = project.verify("unchecked", artifacts=blocked)
    assert run.code == 2
    assert run.stderr.count("\n") == 1
    assert "cannot be written" in run.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; making one needs root."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_sentence_and_no_attempt(project: Project, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(40 << 10))
    run = project.verify("unchecked", candidate="does_not_compile", artifacts=small_disk / "artifacts")
    assert run.code == 2, run.stdout + run.stderr
    assert "cannot be written" in run.stderr
    assert "No space left" in run.stderr
    assert "Traceback" not in run.stderr
    assert not list((small_disk / "artifacts").glob("*/*/attempt.json"))


@pytest.mark.slow
def test_what_goes_wrong_while_timed_is_told_apart(project: Project) -> None:
    run = project.verify("timed")
    rehash(run)
    record = run.record("benchmark.json")
    cases = {case["case_id"]: case for case in record["cases"]}
    assert [finding["code"] for finding in cases["wrong_while_timed"]["findings"]][:1] == [
        "TIMED_OUTPUT_WRONG"
    ]
    assert [finding["code"] for finding in cases["crashes_while_timed"]["findings"]][:1] == ["CRASHED"]
    assert cases["sound"]["status"] == "PASS"
    assert record["geomean_speedup"] is None
    assert run.axis("timing") == ("FAIL", "TIMED_OUTPUT_WRONG")
    assert run.code == 4
