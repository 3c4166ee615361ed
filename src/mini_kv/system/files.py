"""Files on disk: written whole or not at all, hashed, locked, published by rename."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mini_kv.core.codes import Code
from mini_kv.core.errors import InternalError
from mini_kv.core.record import to_json

HASH_CHUNK_BYTES = 1 << 20


def write_bytes_atomic(path: Path, raw: bytes) -> None:
    """Replace ``path`` with ``raw``: a reader sees the old file or the new one, never a part.

    The temporary file lies in the same folder (``os.replace`` must not cross file systems), its bytes
    reach the disk before its name does. Raises ``OSError``; leaves no temporary file behind.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(partial, "xb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_json_atomic(path: Path, record: object) -> None:
    """Write a record as indented JSON with :func:`write_bytes_atomic`."""
    write_bytes_atomic(path, to_json(record))


def sha256_file(path: Path) -> str:
    """Return the lower-case hex SHA-256 of a regular file's bytes, read in chunks. Raises ``OSError``."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def open_regular(path: str | Path) -> io.FileIO:
    """Open a regular file to read. Raises ``OSError`` for all else, a link among it, and waits for nothing.

    What lies in an archive or a build can be exchanged between a look at it and its opening: to open a pipe
    would wait for a writer for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return io.FileIO(descriptor, "rb")


def read_regular(path: str | Path, limit_bytes: int) -> bytes:
    """Return a regular file's bytes. Raises ``OSError``, and ``ValueError`` for more than ``limit_bytes``."""
    with open_regular(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > limit_bytes:
            raise ValueError(f"{size_bytes} bytes pass the limit of {limit_bytes}")
        # A file may grow after its size was asked, or hide it; a raw stream may give less than it is asked.
        raw = bytearray()
        while len(raw) <= limit_bytes and (chunk := stream.read(HASH_CHUNK_BYTES)):
            raw += chunk
    if len(raw) > limit_bytes:
        raise ValueError(f"more than {limit_bytes} bytes pass the limit")
    return bytes(raw)


def fsync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable. File systems that cannot sync a folder are left alone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def publish_folder(partial: Path, final: Path) -> None:
    """Rename ``partial`` to ``final`` in one step, after its files have reached the disk.

    ``final`` must not exist (an empty folder counts as absent for ``rename(2)``, so it is checked
    first): raises ``FileExistsError``. Both must lie on one file system.
    """
    if os.path.lexists(final):
        raise FileExistsError(f"{final} exists already and is never replaced")
    for folder, _, names in os.walk(partial):
        for name in names:
            _fsync_file(os.path.join(folder, name))
        fsync_folder(Path(folder))
    os.rename(partial, final)
    fsync_folder(final.parent)


def _fsync_file(path: str) -> None:
    try:
        stream = open_regular(path)
    except OSError:
        return  # a link, a pipe or a file that may not be read: there are no bytes of ours to sync
    with stream:
        os.fsync(stream.fileno())


def remove_tree(folder: Path, inside: Path) -> None:
    """Delete ``folder`` and all it holds; refuse anything that does not lie strictly inside ``inside``.

    A symbolic link is unlinked and never followed; a folder that is gone already is no error. Read-only
    subfolders (a candidate's build may leave them) are made writable first.
    """
    parent = folder.parent.resolve()
    root = inside.resolve()
    if folder.name in ("", ".", "..") or not (parent == root or root in parent.parents):
        raise InternalError(
            Code.UNSAFE_DELETE, f"{folder} does not lie inside {inside}, so it is not deleted"
        )
    if folder.is_symlink() or folder.is_file():
        folder.unlink(missing_ok=True)
        return
    if not folder.exists():
        return
    for name, _, _ in os.walk(folder):
        mode = os.lstat(name).st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(name, mode | stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def exclusive_lock(path: Path, timeout_s: float) -> Iterator[bool]:
    """Hold an advisory lock on ``path`` inside the block; yield whether it was had in ``timeout_s``.

    The kernel drops the lock when its holder dies, however it dies, so a lock file that was left
    behind never blocks. The file itself stays: deleting it would let two processes lock two files of
    one name. Waiters poll (``flock`` has no deadline of its own), at most 20 ms late.
    """
    descriptor = _open_lock(path)
    try:
        yield _lock_before(descriptor, time.monotonic() + timeout_s)
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in its place is not waited for
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except OSError as refused:
        if refused.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        # Another user made it, or nothing can be written here: a lock needs no more than the right to read.
        try:
            return os.open(path, os.O_RDONLY | flags)
        except FileNotFoundError:
            raise refused from None


def _lock_before(descriptor: int, deadline: float) -> bool:
    pause_s = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                return False  # a file system without locks: callers go on as if they had waited in vain
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        left_s = deadline - time.monotonic()
        if not left_s > 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, 0.02)
