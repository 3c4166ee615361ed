"""``.build/``: finished builds by content key, published by rename, checked at every use."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mini_kv.core.record import from_json
from mini_kv.core.records.archived_files import BUILD_STDERR_FILE, BUILD_STDOUT_FILE, SOURCES_FOLDER
from mini_kv.core.records.build import Build
from mini_kv.core.records.results import Status
from mini_kv.core.time_limits import NO_TIMEOUT_S
from mini_kv.system.files import exclusive_lock, read_regular, remove_tree, sha256_file, write_json_atomic

RECORD_NAME = "build.json"
MAX_RECORD_BYTES = 64 << 20
OWNER_NAME = "owner.lock"
# The archive of a build keeps these under the same names.
SOURCES_NAME = SOURCES_FOLDER
STDOUT_NAME, STDERR_NAME = BUILD_STDOUT_FILE.name, BUILD_STDERR_FILE.name
STALE_S = 3600.0
FAILED_STALE_S = 24 * 3600.0
NEWBORN_S = 60.0
"""A folder this young may not hold its owner's lock yet."""


class BuildStore:
    """The build folder of one project."""

    def __init__(self, project_root: Path) -> None:
        self.project_root = project_root
        self.folder = project_root / ".build"

    def build_folder(self, key: str) -> Path:
        """Return where the finished build of ``key`` lies once there is one."""
        return self.folder / key

    def failed_folder(self, key: str) -> Path:
        """Return where the logs of the last failed build of ``key`` lie. Never used as a cache."""
        return self.folder / f"{key}.failed"

    def find(self, key: str) -> Build | None:
        """Return the finished build, its library's bytes checked; ``None`` when there is none to trust."""
        folder = self.build_folder(key)
        try:
            build = from_json(read_regular(folder / RECORD_NAME, MAX_RECORD_BYTES), Build)
            if build.status is not Status.PASS or build.key != key or build.library is None:
                return None
            library = folder / Path(build.library).name
            if sha256_file(library) != build.library_sha256:
                return None
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        return build

    @contextmanager
    def lock(self, key: str, timeout_s: float) -> Iterator[bool]:
        """Hold the lock of ``key``; yields False when another process held it for all of ``timeout_s``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self.folder / f"{key}.lock", timeout_s) as held:
            yield held

    @contextmanager
    def partial(self, key: str) -> Iterator[Path]:
        """Make a folder to build in, locked as long as this process lives; what is left of it is removed."""
        token = f"{os.getpid()}-{secrets.token_hex(4)}"
        folder = self.folder / f"{key}.partial-{token}"
        # It gets the name that others sweep by once it is locked: before that it looks abandoned.
        newborn = self.folder / f"{key}.newborn-{token}"
        newborn.mkdir(parents=True)
        try:
            with exclusive_lock(newborn / OWNER_NAME, timeout_s=NO_TIMEOUT_S):
                os.rename(newborn, folder)
                yield folder
        finally:
            remove_tree(folder, self.folder)
            remove_tree(newborn, self.folder)

    def publish(self, partial: Path, build: Build) -> bool:
        """Move a finished or failed build to its place; False when an equal one was there first.

        The record is written last. Nothing is synced to disk on purpose: after a power cut the check
        in :meth:`find` turns a torn build into a missing one, and a cache need not survive more.
        """
        passed = build.status is Status.PASS
        final = self.build_folder(build.key) if passed else self.failed_folder(build.key)
        if passed and self.find(build.key) is not None:
            return False
        (partial / OWNER_NAME).unlink(missing_ok=True)
        write_json_atomic(partial / RECORD_NAME, build)
        self._discard(final)
        try:
            os.rename(partial, final)
        except OSError:
            # Only a process that had waited for the lock in vain can have come in between.
            if self.find(build.key) is None:
                raise
            return False
        return True

    def sweep(self, now: float) -> None:
        """Remove the partial folders of dead processes, those older than an hour, and failures of old."""
        with contextlib.suppress(OSError):
            abandoned = [one for one in self.folder.glob("*.partial-*") if _is_abandoned(one, now)]
            abandoned += [one for one in self.folder.glob("*.newborn-*") if _age_s(one, now) > NEWBORN_S]
            forgotten = [one for one in self.folder.glob("*.failed") if _age_s(one, now) > FAILED_STALE_S]
            for folder in (*abandoned, *forgotten):
                with contextlib.suppress(OSError):
                    remove_tree(folder, self.folder)

    def _discard(self, folder: Path) -> None:
        """Take a folder out of the way in one step, then delete it."""
        if not os.path.lexists(folder):
            return
        away = self.folder / f"{folder.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, away)
        remove_tree(away, self.folder)


def _age_s(folder: Path, now: float) -> float:
    try:
        return now - folder.stat().st_mtime
    except OSError:
        return 0.0  # it was published or removed meanwhile


def _is_abandoned(folder: Path, now: float) -> bool:
    age_s = _age_s(folder, now)
    if age_s > STALE_S:
        return True
    owner = folder / OWNER_NAME
    if not owner.exists():
        return age_s > NEWBORN_S
    # The kernel gave the lock back when its holder died; a process id alone may be another's by now,
    # or belong to another container.
    with contextlib.suppress(OSError), exclusive_lock(owner, timeout_s=NO_TIMEOUT_S) as free:
        return free
    return False


def wall_clock() -> float:
    """Return seconds since the epoch, for comparing with file times."""
    return time.time()
