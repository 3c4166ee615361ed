"""A folder of evidence: written aside, hashed, sealed by a marker file, published by one rename."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.codes import Code, of_ids
from mini_kv.core.errors import ConfigurationError, IntegrityError, InternalError
from mini_kv.core.printable import printable
from mini_kv.core.record import to_json
from mini_kv.core.records.archived_files import SOURCES_FOLDER
from mini_kv.core.records.attempt import ArchivedFile
from mini_kv.system.files import publish_folder, remove_tree, sha256_file, write_bytes_atomic

PARTIAL_SUFFIX = ".partial"
# Four random bytes collide once in four billion pairs within one second; a stuck source always does.
MAX_ID_DRAWS = 16


def new_folder_id(now: datetime, random_bytes: bytes) -> str:
    """Return ``<UTC yyyymmddThhmmssZ>-<8 hex>`` from a zoned time and 4 random bytes."""
    if now.tzinfo is None or len(random_bytes) != 4:
        raise ValueError("an archive's id needs a time with a zone and 4 random bytes")
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{random_bytes.hex()}"


def utc_text(now: datetime) -> str:
    """Return a zoned time as ``2026-01-31T23:59:59.123456Z``: of one width, so that text sorts as time."""
    if now.tzinfo is None:
        raise ValueError("a time without a zone is not evidence")
    return f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def reason(error: Exception) -> str:
    """Return an error's words without the path of this machine that ``OSError`` adds."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def list_files(folder: Path) -> tuple[dict[str, os.stat_result], tuple[str, ...]]:
    """Return regular files by POSIX path relative to ``folder``, and all else that is no folder.

    Links are never followed: they count among what does not belong there, as does a name that is no UTF-8.
    """
    files: dict[str, os.stat_result] = {}
    strange: list[str] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path + "/")
                elif entry.is_file(follow_symlinks=False) and _is_text(path):
                    files[path] = entry.stat(follow_symlinks=False)
                else:
                    strange.append(path)
    return files, tuple(sorted(strange))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class ArchiveFolder:
    """One folder below ``parent``, named by time and chance. What is not published stays ``.partial``.

    ``clock`` returns a zoned time, ``random_bytes(n)`` n random bytes. ``marker`` is the file that seals
    the folder, ``noun`` what a person calls it; ``root`` is named when something cannot be written.
    """

    def __init__(
        self,
        parent: Path,
        *,
        root: Path,
        marker: str,
        noun: str,
        clock: Callable[[], datetime],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Claim a fresh id. Raises ``ConfigurationError`` where nothing can be written."""
        self._parent = parent
        self._root = root
        self._marker = marker
        self._noun = noun
        self._written: dict[str, tuple[str, int]] = {}
        self._published = False
        now = clock()
        self.started_at = utc_text(now)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self.folder_id = self._claim(now, random_bytes)
        except OSError as error:
            raise unwritable(root, error) from error

    @property
    def folder(self) -> Path:
        """Where it lies once it is published."""
        return self._parent / self.folder_id

    @property
    def partial_folder(self) -> Path:
        """Where it lies until then."""
        return self.folder.with_name(self.folder_id + PARTIAL_SUFFIX)

    def _claim(self, now: datetime, random_bytes: Callable[[int], bytes]) -> str:
        for _ in range(MAX_ID_DRAWS):
            folder_id = new_folder_id(now, random_bytes(4))
            folder = self._parent / folder_id
            partial = folder.with_name(folder_id + PARTIAL_SUFFIX)
            try:
                partial.mkdir()
            except FileExistsError:
                continue
            # Whoever holds the .partial folder is alone with this id, so this check cannot be overtaken.
            if not (folder.exists() or folder.is_symlink()):
                return folder_id
            partial.rmdir()
        raise InternalError(
            of_ids(self._noun), f"{MAX_ID_DRAWS} random {self._noun} ids in a row were taken already."
        )

    def add_bytes(self, name: str, raw: bytes) -> None:
        """Write one file, by POSIX path relative to the folder; each name once."""
        path = PurePosixPath(name)
        unsafe = (
            path.is_absolute() or ".." in path.parts or str(path) != name or "\0" in name or not path.name
        )
        if unsafe or name == self._marker or name in self._written or self._published:
            raise InternalError(
                Code.ARCHIVE_NAME, f"'{name}' cannot be added to {self._noun} {self.folder_id}."
            )
        try:
            target = self.partial_folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.resolve() != self.partial_folder.resolve() / path.parent:
                raise IntegrityError(
                    Code.ARCHIVE_TAMPERED, f"A link was put into {self._noun} {self.folder_id}."
                )
            write_bytes_atomic(target, raw)
        except OSError as error:
            raise unwritable(self._root, error) from error
        self._written[name] = (sha256_bytes(raw), len(raw))

    def add_json(self, name: str, record: object) -> None:
        """Write a record as indented JSON."""
        self.add_bytes(name, to_json(record))

    def add_tree(self, files: Mapping[str, bytes], folder: str = SOURCES_FOLDER) -> None:
        """Write files below ``folder``, by POSIX path relative to it."""
        for name in sorted(files):
            self.add_bytes(f"{folder}/{name}", files[name])

    def hashed(self) -> tuple[tuple[ArchivedFile, ...], tuple[str, ...]]:
        """Hash every file again as it lies on disk; return them, and the names that are not as written.

        A link or a pipe, which has no bytes that could be archived, is removed and named; so is a
        name that no record can hold.
        """
        try:
            return self._hashed()
        except OSError as error:
            raise unwritable(self._root, error) from error

    def _hashed(self) -> tuple[tuple[ArchivedFile, ...], tuple[str, ...]]:
        found, strange = list_files(self.partial_folder)
        for path in strange:
            (self.partial_folder / path).unlink()
        files = tuple(
            ArchivedFile(
                path=path, sha256=sha256_file(self.partial_folder / path), size_bytes=found[path].st_size
            )
            for path in sorted(found)
            if path != self._marker
        )
        on_disk = {file.path: (file.sha256, file.size_bytes) for file in files}
        names = {*found, *strange, *self._written}
        return files, tuple(
            sorted(printable(name) for name in names if on_disk.get(name) != self._written.get(name, ()))
        )

    def publish(self, marker: bytes) -> None:
        """Write the marker file last and give the folder its name; from now on it is never changed.

        Raises ``ConfigurationError`` where that cannot be written, as the other methods do.
        """
        try:
            write_bytes_atomic(self.partial_folder / self._marker, marker)
            publish_folder(self.partial_folder, self.folder)
        except OSError as error:
            raise unwritable(self._root, error) from error
        self._published = True

    def discard(self) -> None:
        """Remove what was begun and will not be published."""
        remove_tree(self.partial_folder, self._parent)


def unwritable(root: Path, error: OSError) -> ConfigurationError:
    """Return the error of an archive that cannot be written."""
    message = f"The archive in {root} cannot be written: {reason(error)}."
    return ConfigurationError(Code.ARTIFACTS_UNWRITABLE, message)
