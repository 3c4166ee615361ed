"""Archives where they are hard to keep: read-only, another user's, on a full disk, without hard links."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import attempt_factory as make
from mini_kv.artifacts import load_baseline, promote_baseline, read_index, rebuild_index
from mini_kv.core.errors import ConfigurationError, IntegrityError
from mini_kv.core.record import to_json
from mini_kv.system import archive_folder
from mini_kv.system.archive_folder import ArchiveFolder

MiniKv = Callable[..., tuple[int, str, str]]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """An archive of one attempt on a file system that cannot be written; making one needs root."""
    folder = tmp_path / "archive"
    make.write_attempt(folder)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    bound = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, check=False)
    if bound.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_index_of_a_read_only_archive_was_not_read(read_only: Path, mini_kv: MiniKv) -> None:
    code, out, err = mini_kv("leaderboard", "--artifacts", str(read_only))
    assert (code, "v0_naive" in out, err) == (0, True, "")
    code, _, err = mini_kv("rebuild-index", "--artifacts", str(read_only))
    assert (code, "cannot be written: Read-only file system" in err) == (2, True)


def test_reading_an_archive_left_a_lock_in_it(tmp_path: Path, mini_kv: MiniKv) -> None:
    """A copied archive, as one that is committed, has no lock; neither may a look at it make one."""
    _, writer = make.write_attempt(tmp_path)
    for with_index in (True, False):
        (tmp_path / "index.lock").unlink(missing_ok=True)
        if not with_index:
            (tmp_path / "index.db").unlink()
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path))
        assert (code, "v0_naive" in out) == (0, True)
        assert [row.attempt_id for row in read_index(tmp_path)[0]] == [writer.attempt_id]
        promote_baseline(writer.folder, tmp_path.parent / f"baseline_{with_index}.json", now=make.START)
        after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert after == before


def test_an_edited_attempt_of_an_archive_that_cannot_be_written_was_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer = make.write_attempt(tmp_path)
    path = writer.folder / "attempt.json"
    path.write_bytes(to_json(json.loads(path.read_bytes()) | {"elapsed_s": 0.5}))
    monkeypatch.setattr("mini_kv.artifacts.index.os.access", lambda *_: False)
    with pytest.raises(IntegrityError, match="not what the index recorded"):
        promote_baseline(writer.folder, tmp_path / "baseline.json", now=make.START)
    assert [row.attempt_id for row in read_index(tmp_path)[0]] == [writer.attempt_id]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from mini_kv.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_left_a_half_written_index(tmp_path: Path) -> None:
    make.write_attempt(tmp_path / "archive")
    before = sorted(os.listdir(tmp_path / "archive"))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert hard == resource.RLIM_INFINITY or hard > 4096
    attempt = next((tmp_path / "archive").glob("*/*/attempt.json")).parent
    for argv, said in (
        (("rebuild-index", "--artifacts", str(tmp_path / "archive")), "cannot be written"),
        (("promote-baseline", "--attempt", str(attempt), "--output", str(tmp_path / "b.json")), "too large"),
    ):
        ended = subprocess.run(
            [sys.executable, "-c", LIMITED, *argv], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
        assert said in ended.stderr
    assert [name for name in os.listdir(tmp_path) if "b.json" in name] == []
    left = [name for name in os.listdir(tmp_path / "archive") if name not in before]
    assert [name for name in left if not name.startswith("index.db-")] == [], "only the database's own log"
    assert rebuild_index(tmp_path / "archive").damaged == ()


def test_a_file_system_without_hard_links_took_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    _, writer = make.write_attempt(tmp_path / "archive")
    monkeypatch.setattr(os, "link", no_links)
    output = tmp_path / "baselines" / "b.json"
    promote_baseline(writer.folder, output, now=make.START)
    assert load_baseline(output).attempt.attempt_id == writer.attempt_id
    with pytest.raises(ConfigurationError, match="exists already"):
        promote_baseline(writer.folder, output, now=make.START)
    assert os.listdir(output.parent) == ["b.json"]


@pytest.mark.parametrize("step", ["list_files", "write_bytes_atomic", "publish_folder"])
def test_a_disk_that_was_full_at_the_last_step_of_a_comparison_was_a_fault_of_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = ArchiveFolder(
        tmp_path / "comparisons" / "t", root=tmp_path, marker="comparison.json", noun="comparison",
        clock=make.ticking_clock(), random_bytes=make.counting_bytes(),
    )  # fmt: skip
    folder.add_bytes("a.json", b"{}")
    monkeypatch.setattr(archive_folder, step, full)

    def finish() -> None:
        folder.hashed()
        folder.publish(b"{}")

    with pytest.raises(ConfigurationError, match="cannot be written: No space left on device"):
        finish()
    assert not folder.folder.exists()
