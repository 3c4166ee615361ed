"""``artifacts/profiles/<task>/<id>/``: written aside, published by one rename, checked when it is read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from mini_kv.core.canonical import fixed_seed, sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, IntegrityError
from mini_kv.core.record import Record, from_json, to_json
from mini_kv.core.records.archived_files import (
    BUILD_FILE,
    CARD_FILE,
    ENVIRONMENT_FILE,
    MANIFEST_FILE,
    PROFILE_FILE,
    RAW_PAGE_FILE,
    REPORT_FILE,
    SOURCES_FOLDER,
    RecordFile,
)
from mini_kv.core.records.card import (
    PROFILES_FOLDER,
    SCHEMA_VERSION,
    is_readable_version,
)
from mini_kv.core.records.environment import key_follows
from mini_kv.core.records.profile import Profile
from mini_kv.core.records.results import Status
from mini_kv.core.rules.suite import suite_hash
from mini_kv.system.archive_folder import ArchiveFolder
from mini_kv.system.files import read_regular, sha256_file

MAX_RECORD_BYTES = 64 << 20

_R = TypeVar("_R", bound=Record)


class ProfileArchive(ArchiveFolder):
    """The archive of one profile. ``folder`` exists once :meth:`finish` has returned, whole."""

    def __init__(
        self,
        artifacts_root: Path,
        task_id: str,
        *,
        clock: Callable[[], datetime],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Claim a fresh id. Raises ``ConfigurationError`` where the archive's folder cannot be written."""
        super().__init__(
            artifacts_root / PROFILES_FOLDER / task_id,
            root=artifacts_root,
            marker=PROFILE_FILE.name,
            noun="profile",
            clock=clock,
            random_bytes=random_bytes,
        )

    @property
    def profile_id(self) -> str:
        """The profile's id, its folder's name."""
        return self.folder_id

    def finish(self, profile: Profile) -> Profile:
        """Write ``profile.json`` with the hash of every other file, publish the folder, return the record.

        Raises ``IntegrityError`` where a file is no longer what was written, ``ConfigurationError`` where
        nothing can be written.
        """
        files, changed = self.hashed()
        if changed:
            raise IntegrityError(
                Code.ARCHIVE_TAMPERED,
                f"Files of profile {self.profile_id} were changed by something other than mini-kv while "
                f"it ran: {', '.join(changed)}.",
            )
        sealed = msgspec.structs.replace(profile, files=files)
        self.publish(to_json(sealed))
        return sealed


# --------------------------------------------------------------------------- reading


def load_profile(path: Path) -> tuple[Profile, str, str | None]:
    """Return a profile, the SHA-256 of its ``profile.json``, and its raw page's text if it holds one.

    ``path`` is the folder, or the ``profile.json`` in it. Every file is hashed again and every record in
    the folder held against what the profile says it is bound to. Raises ``ConfigurationError`` for what is
    no profile, ``IntegrityError`` (``PROFILE_TAMPERED``) for one that does not hold what it promises.
    """
    folder = path.parent if path.name == PROFILE_FILE.name else path
    profile, digest = _read(folder)
    _check_files(folder, profile)
    _check_bindings(folder, profile)
    if all(entry.path != RAW_PAGE_FILE.name for entry in profile.files):
        return profile, digest, None
    try:
        return profile, digest, _part(folder, RAW_PAGE_FILE.name).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise _tampered(profile, f"its raw page cannot be read: {error}") from error


def _read(folder: Path) -> tuple[Profile, str]:
    path = folder / PROFILE_FILE.name
    try:
        raw = read_regular(path, MAX_RECORD_BYTES)
        profile = from_json(raw, Profile)
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{folder} holds no {PROFILE_FILE.name}, so it is not the folder of a profile."
        raise ConfigurationError(Code.NOT_A_PROFILE, message) from error
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            Code.PROFILE_UNREADABLE, f"{path} cannot be read as a profile: {why}."
        ) from error
    if not is_readable_version(profile.schema_version):
        message = (
            f"{path} is of schema version {profile.schema_version}; this mini-kv reads {SCHEMA_VERSION}."
        )
        raise ConfigurationError(Code.PROFILE_UNREADABLE, message)
    return profile, sha256_bytes(raw)


def _check_files(folder: Path, profile: Profile) -> None:
    for entry in profile.files:
        path = folder / entry.path
        try:
            whole = not path.is_symlink() and path.stat().st_size == entry.size_bytes
            same = whole and sha256_file(path) == entry.sha256
        except OSError:
            same = False
        if not same or not path.resolve().is_relative_to(folder.resolve()):
            raise _tampered(profile, f"'{entry.path}' is not the file whose hash it holds")


def _check_bindings(folder: Path, profile: Profile) -> None:
    """Hold the records in the folder against the hashes that bind the profile."""
    listed = {entry.path for entry in profile.files}
    needed = {CARD_FILE.name, MANIFEST_FILE.name, ENVIRONMENT_FILE.name}
    if profile.status is Status.PASS:
        needed |= {BUILD_FILE.name, REPORT_FILE.name, RAW_PAGE_FILE.name}
    if not needed <= listed:
        raise _tampered(profile, f"it does not hold {', '.join(sorted(needed - listed))}")
    try:
        card = _record(folder, CARD_FILE)
        manifest = _record(folder, MANIFEST_FILE)
        environment = _record(folder, ENVIRONMENT_FILE)
        build = _record(folder, BUILD_FILE) if BUILD_FILE.name in listed else None
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise _tampered(profile, f"one of its records cannot be read: {error}") from error
    bound: dict[str, tuple[object, object]] = {
        "task": (card.task_id, profile.task_id),
        "suite": (suite_hash(card), profile.suite_sha256),
        "seed": (f"{fixed_seed(card.task_id, profile.case_id):016x}", profile.seed),
        "candidate": (manifest.candidate_id, profile.candidate_id),
        "environment": (environment.key, profile.environment_key),
    }
    if build is not None:
        bound["build"] = (build.key, profile.build_key)
        bound["library"] = (build.library_sha256, profile.library_sha256)
        bound["sources of the build"] = (build.source_sha256, profile.source_sha256)
    sources = f"{SOURCES_FOLDER}/"
    archived = {
        entry.path.removeprefix(sources): entry.sha256
        for entry in profile.files
        if entry.path.startswith(sources)
    }
    bound["sources"] = (archived, profile.source_sha256)
    if not key_follows(environment):
        raise _tampered(profile, "its environment key does not follow from its environment")
    for noun, (found, promised) in bound.items():
        if found != promised:
            raise _tampered(profile, f"its {noun} is not the one it is bound to")


def _record(folder: Path, wanted: RecordFile[_R]) -> _R:
    return from_json(_part(folder, wanted.name), wanted.record)


def _part(folder: Path, name: str) -> bytes:
    return read_regular(folder / name, MAX_RECORD_BYTES)


def _tampered(profile: Profile, why: str) -> IntegrityError:
    return IntegrityError(
        Code.PROFILE_TAMPERED, f"Profile {profile.profile_id} does not hold what it promises: {why}."
    )
