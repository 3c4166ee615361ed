"""Scratch folders: gone with their owner, swept after one that was killed, and nobody else's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_project import FakeProject, fake_project
from mini_kv import doctor
from mini_kv.run.run_inputs import device_lock
from mini_kv.system import scratch
from mini_kv.system.gpu import NO_GPUS
from mini_kv.system.sandbox.probe import probe_isolation
from mini_kv.system.scratch import MARKER, scratch_folder, scratch_place, sweep_scratch

__all__ = ["fake_project"]

OWNER = """
import sys, time
from pathlib import Path
from mini_kv.system.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "000-oracle" / "deep").mkdir(parents=True)
    (folder / "000-oracle" / "deep" / "library.so").write_bytes(bytes(1000))
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory of the test's own that others may enter, for this process and those it starts."""
    # pytest's own folder is closed to others: workers would not be sent there.
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix=f"{tmp_path.name}-")))
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["rm", "-rf", str(folder)], check=False)  # trees too deep for shutil among them


def owner() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def abandoned(place: Path) -> Path:
    """Return what a killed run leaves."""
    process, folder = owner()
    killed(process)
    assert folder.parent == place and (folder / MARKER).is_file()
    return folder


def abandoned_in(folder: Path) -> Path:
    """Return what a killed run leaves in ``folder``."""
    before = os.environ["TMPDIR"]
    os.environ["TMPDIR"] = str(folder)
    try:
        process, left = owner()
    finally:
        os.environ["TMPDIR"] = before
    killed(process)
    assert left.parent == folder
    return left


def test_what_a_killed_run_left_is_swept_and_a_living_ones_is_not(place: Path) -> None:
    process, folder = owner()
    try:
        with scratch_folder("probe-") as own:
            assert sweep_scratch() == 0
            assert own.is_dir() and (folder / "000-oracle").is_dir()
    finally:
        killed(process)
    assert folder.is_dir()
    assert sweep_scratch() == 1
    assert os.listdir(place) == []


def test_a_folder_is_gone_with_its_block_whatever_happens_there(place: Path) -> None:
    def interrupted() -> None:
        with scratch_folder() as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "x").symlink_to(place)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(place) == []


def test_links_are_removed_and_never_followed(place: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    folder = abandoned(place)
    (folder / "000-oracle" / "to_folder").symlink_to(precious)
    (folder / "to_file").symlink_to(precious / "file")
    os.mkfifo(folder / "pipe")
    elsewhere = tmp_path / "elsewhere"
    os.rename(abandoned(place), elsewhere)
    (place / "mini-kv-link").symlink_to(elsewhere)
    assert sweep_scratch() == 1
    assert os.listdir(place) == ["mini-kv-link"]
    assert (elsewhere / MARKER).is_file() and (precious / "file").read_text() == "kept"


@pytest.mark.parametrize(
    "what", ["no marker", "a linked marker", "a folder as marker", "another name", "a file"]
)
def test_what_is_no_scratch_folder_is_left_alone(place: Path, tmp_path: Path, what: str) -> None:
    folder = place / ("mini_kv-x" if what == "another name" else "mini-kv-x")
    if what == "a file":
        folder.touch()
    else:
        folder.mkdir()
        (folder / "data").touch()
    if what == "a linked marker":
        (tmp_path / "marker").touch()
        (folder / MARKER).symlink_to(tmp_path / "marker")
    if what == "a folder as marker":
        (folder / MARKER).mkdir()
    if what == "another name":
        (folder / MARKER).touch()
    assert sweep_scratch() == 0
    assert folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("given", [".", MARKER])
def test_another_users_folder_is_left_alone(place: Path, given: str) -> None:
    folder = abandoned(place)
    os.chown(folder / given, 65534, 65534)
    assert sweep_scratch() == 0
    assert (folder / "000-oracle").is_dir()


def test_a_sweep_that_runs_out_of_time_is_finished_by_the_next(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = abandoned(place)
    for number in range(50):
        (folder / f"file_{number}").touch()
    assert sweep_scratch(0.0) == 0
    now = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    assert sweep_scratch(20.0) == 0
    assert 0 < len(os.listdir(folder)) < 50 and (folder / MARKER).is_file()
    assert sweep_scratch(1000.0) == 1
    assert os.listdir(place) == []


def test_a_tree_that_is_too_deep_stops_no_start(place: Path) -> None:
    folder = abandoned(place)
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    assert sweep_scratch() == 0
    assert (folder / MARKER).is_file()
    assert subprocess.run(["rm", "-rf", str(folder)], check=False).returncode == 0


def test_a_sweep_where_there_is_nothing_to_look_at_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    monkeypatch.setattr(scratch, "_OTHER_PLACES", ())
    assert sweep_scratch() == 0


def test_a_file_system_without_locks_still_gives_folders(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(scratch.fcntl, "flock", no_locks)
    with scratch_folder() as folder:
        assert os.listdir(folder) == []
        assert sweep_scratch() == 0
    assert os.listdir(place) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's workers are other users")
def test_a_temporary_directory_that_workers_cannot_enter_cost_the_isolation(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scratch_place() == (place, None)
    other = place / "other"
    other.mkdir()
    monkeypatch.setattr(scratch, "_OTHER_PLACES", (str(tmp_path / "absent"), str(other)))
    inner = place / "closed" / "inner"
    inner.mkdir(parents=True)
    (place / "closed").chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(inner))
    found, fault = scratch_place()
    assert found == other
    assert fault is not None and f"other users cannot enter {place / 'closed'}; {other} is used" in fault
    with scratch_folder() as folder:
        assert folder.parent == other
    left = abandoned_in(other)
    assert (sweep_scratch(), left.exists()) == (1, False)
    lines = {line.name: line for line in doctor.examine(place, os.environ).lines}
    assert lines["scratch"].detail == str(other)
    other.chmod(0o700)
    found, fault = scratch_place()
    assert (found, "set TMPDIR to a folder that does" in str(fault)) == (inner, True)


def test_a_temporary_directory_in_shared_memory_cost_the_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers have a /dev/shm of their own, which covered the folder that they were to live in.
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    place, fault = scratch_place()
    assert str(place) == "/tmp"
    assert "a /dev/shm of their own; /tmp is used" in str(fault)
    level = probe_isolation("cpu").level
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert level is probe_isolation("cpu").level


def test_two_temporary_directories_made_two_locks_of_one_device(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = device_lock("cpu", NO_GPUS)
    monkeypatch.setattr(tempfile, "tempdir", str(place / "another"))
    assert device_lock("cpu", NO_GPUS) == first


def test_calibration_and_the_study_made_folders_that_no_sweep_found() -> None:
    project = Path(__file__).resolve().parents[2]
    making = {
        path.relative_to(project).as_posix()
        for top in ("src", "scripts", "research")
        for path in (project / top).rglob("*.py")
        if re.search(r"\b(mkdtemp|TemporaryDirectory)\(", path.read_text())
    }
    assert making == {"src/mini_kv/system/scratch.py"}, "all others take a scratch_folder()"


def test_a_later_run_sweeps_and_leaves_nothing_itself(place: Path, fake_project: FakeProject) -> None:
    folder = abandoned(place)
    assert fake_project.verify().attempt.exit_code == 0
    assert not folder.exists()
    assert [name for name in os.listdir(place) if not name.endswith(".lock")] == []
