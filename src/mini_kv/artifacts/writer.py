"""Write one attempt: into a ``.partial`` folder, hashed, published by one rename, then indexed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from types import TracebackType

import msgspec

from mini_kv.artifacts.attempts import (
    ATTEMPT_FILE,
    PARTIAL_SUFFIX,
    SOURCES_FOLDER,
    TASK_ID,
    index_row,
    list_files,
    new_attempt_id,
    reason,
    utc_text,
)
from mini_kv.artifacts.index import RESERVED_FOLDERS, add_to_index, open_index
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import ConfigurationError, ExitCode, IntegrityError, InternalError
from mini_kv.core.record import to_json
from mini_kv.core.results import ArchivedFile, Attempt, Finding
from mini_kv.system.files import publish_folder, sha256_file, write_bytes_atomic

# Four random bytes collide once in four billion pairs within one second; a stuck source always does.
MAX_ID_DRAWS = 16


class AttemptWriter:
    """One attempt's archive, as a context. What is not finished stays behind as ``.partial``.

    ``clock`` returns a zoned time, ``random_bytes(n)`` n random bytes. ``warnings`` holds what went wrong
    with the index only: the attempt itself is safe then. Raises ``ConfigurationError`` where the
    archive's folder cannot be written.
    """

    def __init__(
        self,
        artifacts_root: Path,
        task_id: str,
        *,
        clock: Callable[[], datetime],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        if not TASK_ID.fullmatch(task_id) or task_id in RESERVED_FOLDERS:
            raise ConfigurationError("TASK_ID", f"'{task_id}' cannot be the name of a task's archive folder.")
        self._root = artifacts_root
        self._task_id = task_id
        self._written: dict[str, tuple[str, int]] = {}
        self._finished = False
        now = clock()
        self.started_at = utc_text(now)
        try:
            artifacts_root.mkdir(parents=True, exist_ok=True)
            self.warnings: tuple[Finding, ...] = open_index(artifacts_root)
            (artifacts_root / task_id).mkdir(exist_ok=True)
            self.attempt_id = self._claim(now, random_bytes)
        except OSError as error:
            raise _unwritable(artifacts_root, error) from error

    @property
    def folder(self) -> Path:
        """Where the attempt lies once it is finished."""
        return self._root / self._task_id / self.attempt_id

    @property
    def partial_folder(self) -> Path:
        """Where the attempt lies until then."""
        return self.folder.with_name(self.attempt_id + PARTIAL_SUFFIX)

    def _claim(self, now: datetime, random_bytes: Callable[[int], bytes]) -> str:
        for _ in range(MAX_ID_DRAWS):
            attempt_id = new_attempt_id(now, random_bytes(4))
            folder = self._root / self._task_id / attempt_id
            partial = folder.with_name(attempt_id + PARTIAL_SUFFIX)
            try:
                partial.mkdir()
            except FileExistsError:
                continue
            # Whoever holds the .partial folder is alone with this id, so this check cannot be overtaken.
            if not (folder.exists() or folder.is_symlink()):
                return attempt_id
            partial.rmdir()
        raise InternalError("ATTEMPT_ID", f"{MAX_ID_DRAWS} random attempt ids in a row were taken already.")

    def __enter__(self) -> AttemptWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._finished:
            raise InternalError("ATTEMPT_NOT_FINISHED", f"Attempt {self.attempt_id} was never finished.")

    def add_bytes(self, name: str, raw: bytes) -> None:
        """Write one file of the attempt, by POSIX path relative to its folder; each name once."""
        path = PurePosixPath(name)
        unsafe = (
            path.is_absolute() or ".." in path.parts or str(path) != name or "\0" in name or not path.name
        )
        if unsafe or name == ATTEMPT_FILE or name in self._written or self._finished:
            raise InternalError("ARCHIVE_NAME", f"'{name}' cannot be added to attempt {self.attempt_id}.")
        try:
            target = self.partial_folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.resolve() != self.partial_folder.resolve() / path.parent:
                raise IntegrityError("ARCHIVE_TAMPERED", f"A link was put into attempt {self.attempt_id}.")
            write_bytes_atomic(target, raw)
        except OSError as error:
            raise _unwritable(self._root, error) from error
        self._written[name] = (sha256_bytes(raw), len(raw))

    def add_json(self, name: str, record: object) -> None:
        """Write a record as indented JSON."""
        self.add_bytes(name, to_json(record))

    def add_tree(self, files: Mapping[str, bytes], folder: str = SOURCES_FOLDER) -> None:
        """Write files below ``folder``, by POSIX path relative to it: the very bytes that were compiled."""
        for name in sorted(files):
            self.add_bytes(f"{folder}/{name}", files[name])

    def finish(self, attempt: Attempt) -> Attempt:
        """Seal and publish the attempt, index it, return it as archived.

        ``attempt.files`` is filled in here. Every file is hashed again as it lies on disk: where it is
        not what was written (something else on this machine wrote here), the attempt is archived as
        found and returned not accepted, with exit code 7 and a finding ``ARCHIVE_TAMPERED``.
        """
        if self._finished or (attempt.task_id, attempt.attempt_id) != (self._task_id, self.attempt_id):
            raise InternalError(
                "ATTEMPT_MISMATCH", f"Attempt {self.attempt_id} cannot be finished with this."
            )
        try:
            sealed = self._seal(attempt)
            raw = to_json(sealed)
            write_bytes_atomic(self.partial_folder / ATTEMPT_FILE, raw)
            publish_folder(self.partial_folder, self.folder)
        except OSError as error:
            raise _unwritable(self._root, error) from error
        self._finished = True
        self.warnings += add_to_index(self._root, index_row(self.folder, sealed, sha256_bytes(raw)))
        return sealed

    def _seal(self, attempt: Attempt) -> Attempt:
        found, strange = list_files(self.partial_folder)
        for path in strange:  # a link or a pipe has no bytes that could be archived
            (self.partial_folder / path).unlink()
        files = tuple(
            ArchivedFile(
                path=path, sha256=sha256_file(self.partial_folder / path), size_bytes=found[path].st_size
            )
            for path in sorted(found)
            if path != ATTEMPT_FILE
        )
        on_disk = {file.path: (file.sha256, file.size_bytes) for file in files}
        names = {*found, *strange, *self._written}
        changed = sorted(name for name in names if on_disk.get(name) != self._written.get(name, ()))
        attempt = msgspec.structs.replace(attempt, files=files)
        if not changed:
            return attempt
        finding = Finding(
            code="ARCHIVE_TAMPERED",
            message="Files of this attempt were changed by something other than mini-kv while it ran.",
            evidence=tuple(changed),
        )
        return msgspec.structs.replace(
            attempt,
            accepted=False,
            exit_code=int(ExitCode.INTEGRITY),
            findings=(*attempt.findings, finding),
        )


def _unwritable(root: Path, error: OSError) -> ConfigurationError:
    message = f"The archive in {root} cannot be written: {reason(error)}."
    return ConfigurationError("ARTIFACTS_UNWRITABLE", message)
