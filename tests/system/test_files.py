"""Files are written whole or not at all, published once, and deleted only where that is safe."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from mini_kv.core.errors import InternalError
from mini_kv.core.records.results import Finding
from mini_kv.system import files


def test_atomic_write_leaves_only_the_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    files.write_bytes_atomic(target, b"one")
    files.write_bytes_atomic(target, b"two")
    assert target.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.json"]


def test_failed_write_keeps_the_old_file_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    files.write_bytes_atomic(target, b"old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.write_bytes_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_json_is_the_record(tmp_path: Path) -> None:
    files.write_json_atomic(tmp_path / "f.json", Finding(code="A", message="b"))
    assert (tmp_path / "f.json").read_bytes().startswith(b'{\n  "code": "A"')


def test_sha256_of_a_file_larger_than_one_chunk(tmp_path: Path) -> None:
    raw = os.urandom(files.HASH_CHUNK_BYTES + 17)
    (tmp_path / "x").write_bytes(raw)
    assert files.sha256_file(tmp_path / "x") == hashlib.sha256(raw).hexdigest()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "device", "socket"])
def test_what_was_exchanged_for_a_file_was_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    for read in (files.sha256_file, files.open_regular, lambda path: files.read_regular(path, 10)):
        with pytest.raises(OSError):
            read(path)
    if kind == "pipe":
        with files.exclusive_lock(path, 0.0) as held:
            assert held


def test_a_file_is_read_to_its_limit_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * (files.HASH_CHUNK_BYTES + 3))
    assert len(files.read_regular(tmp_path / "x", files.HASH_CHUNK_BYTES + 3)) == files.HASH_CHUNK_BYTES + 3
    with pytest.raises(ValueError, match="pass the limit"):
        files.read_regular(tmp_path / "x", files.HASH_CHUNK_BYTES + 2)
    with pytest.raises(ValueError, match="more than 3 bytes"):
        files.read_regular("/proc/self/status", 3)


def test_publishing_never_replaces(tmp_path: Path) -> None:
    partial, final = tmp_path / "p", tmp_path / "f"
    (partial / "sub").mkdir(parents=True)
    (partial / "sub" / "a").write_text("a")
    (partial / "dangling").symlink_to("nowhere")
    os.mkfifo(partial / "pipe")
    final.mkdir()
    with pytest.raises(FileExistsError):
        files.publish_folder(partial, final)
    final.rmdir()
    files.publish_folder(partial, final)
    assert (final / "sub" / "a").read_text() == "a"
    assert not partial.exists()


def test_a_lock_is_had_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    holder = subprocess.Popen(
        ["flock", str(path), "-c", "echo held; exec sleep 60"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with files.exclusive_lock(path, timeout_s=0.05) as held:
        assert not held
    os.killpg(holder.pid, signal.SIGKILL)
    holder.communicate()
    with files.exclusive_lock(path, timeout_s=1.0) as held:
        assert held


def test_a_lock_in_a_folder_that_may_not_be_written_names_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def open_in_a_read_only_folder(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", open_in_a_read_only_folder)
    with pytest.raises(PermissionError), files.exclusive_lock(tmp_path / "a.lock", timeout_s=1.0):
        pass


def test_remove_tree_refuses_what_lies_outside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    for folder in (outside, inside, inside / "..", inside / ".." / "out"):
        with pytest.raises(InternalError):
            files.remove_tree(folder, inside)
    assert outside.exists() and inside.exists()


def test_remove_tree_does_not_follow_a_link(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "keep").write_text("keep")
    (inside / "link").symlink_to(outside)
    files.remove_tree(inside / "link", inside)
    assert not (inside / "link").is_symlink()
    (inside / "tree").mkdir()
    (inside / "tree" / "link").symlink_to(outside)
    files.remove_tree(inside / "tree", inside)
    files.remove_tree(inside / "tree", inside)
    assert (outside / "keep").exists()
    assert not (inside / "tree").exists()


def test_remove_tree_opens_read_only_folders(tmp_path: Path) -> None:
    sealed = tmp_path / "tree" / "sealed"
    sealed.mkdir(parents=True)
    (sealed / "a").write_text("a")
    sealed.chmod(0o500)
    files.remove_tree(tmp_path / "tree", tmp_path)
    assert not (tmp_path / "tree").exists()
