"""Write one attempt: into a ``.partial`` folder, hashed, published by one rename, then indexed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType

import msgspec

from mini_kv.artifacts.attempts import TASK_ID, index_row
from mini_kv.artifacts.index import add_to_index, open_index
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, ExitCode, InternalError
from mini_kv.core.record import to_json
from mini_kv.core.records.archived_files import ATTEMPT_FILE
from mini_kv.core.records.attempt import Attempt
from mini_kv.core.records.card import RESERVED_TASK_IDS
from mini_kv.core.records.results import Finding
from mini_kv.system.archive_folder import ArchiveFolder, unwritable


class AttemptWriter(ArchiveFolder):
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
        if not TASK_ID.fullmatch(task_id) or task_id in RESERVED_TASK_IDS:
            raise ConfigurationError(
                Code.TASK_ID, f"'{task_id}' cannot be the name of a task's archive folder."
            )
        self._task_id = task_id
        try:
            artifacts_root.mkdir(parents=True, exist_ok=True)
            self.warnings: tuple[Finding, ...] = open_index(artifacts_root)
        except OSError as error:
            raise unwritable(artifacts_root, error) from error
        super().__init__(
            artifacts_root / task_id,
            root=artifacts_root,
            marker=ATTEMPT_FILE.name,
            noun="attempt",
            clock=clock,
            random_bytes=random_bytes,
        )

    @property
    def attempt_id(self) -> str:
        """The attempt's id, its folder's name."""
        return self.folder_id

    def __enter__(self) -> AttemptWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._published:
            raise InternalError(Code.ATTEMPT_NOT_FINISHED, f"Attempt {self.attempt_id} was never finished.")

    def finish(self, attempt: Attempt) -> Attempt:
        """Seal and publish the attempt, index it, return it as archived.

        ``attempt.files`` is filled in here. Every file is hashed again as it lies on disk: where it is
        not what was written (something else on this machine wrote here), the attempt is archived as
        found and returned not accepted, with exit code 7 and a finding ``ARCHIVE_TAMPERED``.
        """
        if self._published or (attempt.task_id, attempt.attempt_id) != (self._task_id, self.attempt_id):
            raise InternalError(
                Code.ATTEMPT_MISMATCH, f"Attempt {self.attempt_id} cannot be finished with this."
            )
        sealed = self._seal(attempt)
        raw = to_json(sealed)
        self.publish(raw)
        self.warnings += add_to_index(self._root, index_row(self.folder, sealed, sha256_bytes(raw)))
        return sealed

    def _seal(self, attempt: Attempt) -> Attempt:
        files, changed = self.hashed()
        attempt = msgspec.structs.replace(attempt, files=files)
        if not changed:
            return attempt
        finding = Finding(
            code=Code.ARCHIVE_TAMPERED,
            message="Files of this attempt were changed by something other than mini-kv while it ran.",
            evidence=changed,
        )
        return msgspec.structs.replace(
            attempt,
            accepted=False,
            exit_code=int(ExitCode.INTEGRITY),
            findings=(*attempt.findings, finding),
        )
