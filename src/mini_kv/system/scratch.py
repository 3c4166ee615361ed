"""Scratch folders below the temporary directory, and the end of those whose owner was killed.

They lie in the temporary directory, or in another one where a candidate's worker could not live in that.

A folder holds a marker that its owner keeps locked. The kernel drops the lock when the owner dies, however it
dies, so an unlocked marker means that nobody will remove the folder. What has no marker is none of ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "mini-kv-"
MARKER = ".mini-kv-owner"
# A start may be held up for so long at most: what is left then waits for the next one.
SWEEP_BUDGET_S = 0.5
# Tried in this order where the temporary directory will not do; a worker's view of the machine covers both.
_OTHER_PLACES = ("/tmp", "/var/tmp")
# Workers get one of their own, which covers whatever lies in the machine's.
_SHARED_MEMORY = "/dev/shm"
# Deeper trees are nobody's but a candidate's that means to be a nuisance.
_MAX_DEPTH = 100
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def scratch_place() -> tuple[Path, str | None]:
    """Return where scratch folders are made, and why not in the temporary directory where that will not do.

    Where no other place will do either, it is the temporary directory after all.
    """
    own = os.path.realpath(tempfile.gettempdir())
    fault = _fault(own)
    if fault is None:
        return Path(own), None
    why = f"the temporary directory {own} does not suit candidates' workers: {fault}"
    for place in map(os.path.realpath, _OTHER_PLACES):
        if os.access(place, os.W_OK | os.X_OK) and _fault(place) is None:
            return Path(place), f"{why}; {place} is used"
    return Path(own), f"{why}; set TMPDIR to a folder that does"


def _fault(place: str) -> str | None:
    """Return what keeps a candidate's worker from living in ``place``, or ``None``."""
    if place == _SHARED_MEMORY or place.startswith(_SHARED_MEMORY + "/"):
        return f"they have a {_SHARED_MEMORY} of their own"
    try:
        if os.statvfs(place).f_flag & os.ST_NOEXEC:
            return "libraries cannot be loaded from it (it is mounted noexec)"
        # Only root's workers are other users.
        closed = [folder for folder in _with_parents(place) if not os.stat(folder).st_mode & stat.S_IXOTH]
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if closed and os.geteuid() == 0:
        return f"other users cannot enter {closed[-1]}"
    return None


def _with_parents(place: str) -> tuple[str, ...]:
    return (place, *map(str, Path(place).parents))


@contextmanager
def scratch_folder(kind: str = "") -> Iterator[Path]:
    """Make a folder of mode 0700 for the block and remove it afterwards. Raises ``OSError``.

    ``kind`` stands in its name. Where the file system has no locks the folder gets no marker, and is never
    swept.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}", dir=scratch_place()[0]))
    lock = _claim(folder)
    try:
        yield folder
    finally:
        _discard(folder)
        if lock is not None:
            os.close(lock)


def sweep_scratch(budget_s: float = SWEEP_BUDGET_S) -> int:
    """Remove scratch folders of this user whose owners are dead; return how many.

    Never raises, waits for nothing, follows no link and stops when ``budget_s`` is spent.
    """
    deadline = time.monotonic() + budget_s
    swept = 0
    for folder in dict.fromkeys((str(scratch_place()[0]), os.path.realpath(tempfile.gettempdir()))):
        with contextlib.suppress(OSError), _opened(folder) as place:
            swept += _sweep_place(place, deadline)
    return swept


def _sweep_place(place: int, deadline: float) -> int:
    with os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
    swept = 0
    for name in names:
        if time.monotonic() >= deadline:
            break
        with contextlib.suppress(OSError):
            swept += _sweep_one(place, name, deadline)
    return swept


def _claim(folder: Path) -> int | None:
    """Leave a marker that is locked from the moment it can be found; return its descriptor."""
    unnamed = folder / f"{MARKER}.new"
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        unnamed.unlink()
        return None
    os.rename(unnamed, folder / MARKER)
    return descriptor


def _discard(folder: Path) -> None:
    """Remove a folder of this process's own, the marker last: one that dies half-way is swept later."""
    parent = os.path.realpath(folder.parent)
    with contextlib.suppress(OSError), _opened(parent) as place, _opened(folder.name, place) as inside:
        if _empty(inside, math.inf, MARKER) and _remove(place, folder.name, inside):
            return
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _sweep_one(place: int, name: str, deadline: float) -> bool:
    with _opened(name, place) as folder:
        if os.fstat(folder).st_uid != os.geteuid():
            return False
        marker = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            facts = os.fstat(marker)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
                return False
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while the owner lives
            return _empty(folder, deadline, MARKER) and _remove(place, name, folder)
        finally:
            os.close(marker)


def _remove(place: int, name: str, folder: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(MARKER, dir_fd=folder)
    os.rmdir(name, dir_fd=place)
    return True


def _empty(folder: int, deadline: float, kept: str | None = None, depth: int = _MAX_DEPTH) -> bool:
    """Remove what an open folder holds but ``kept``; say whether all of it went before the deadline."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    whole = depth > 0
    for name, is_folder in found if whole else ():
        if name == kept:
            continue
        if time.monotonic() >= deadline:
            return False
        try:
            if is_folder:
                with _opened(name, folder) as inner:
                    whole = _empty(inner, deadline, None, depth - 1) and whole
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        except OSError:
            whole = False
    return whole


@contextmanager
def _opened(name: str, place: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _FOLDER, dir_fd=place)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
