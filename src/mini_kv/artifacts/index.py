"""The index over attempts: a SQLite file that can always be made again from the folders.

Every access holds ``index.lock``: replacing a database that another connection has open would lose what
that connection writes. One attempt costs one insert, however many there are.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec

from mini_kv.artifacts.attempts import (
    ATTEMPT_FILE,
    ATTEMPT_ID,
    TASK_ID,
    check_files,
    index_row,
    is_correct,
    parse_attempt,
)
from mini_kv.artifacts.contradictions import contradictions
from mini_kv.core.attempt import ArtifactIndex, IndexRow
from mini_kv.core.card import RESERVED_TASK_IDS, SCHEMA_VERSION
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.record import from_json, to_json
from mini_kv.core.results import Finding
from mini_kv.system.archive_folder import reason
from mini_kv.system.files import exclusive_lock, fsync_folder, write_json_atomic

INDEX_FILE = "index.db"
LOCK_FILE = "index.lock"
INDEX_JSON = "artifact_index.json"
LOCK_TIMEOUT_S = 30.0
# Raised with every change of the table or of IndexRow; another number reads as no index.
LAYOUT_VERSION = 1
HEAL = "run 'mini-kv rebuild-index' to make it again from the folders"

_TABLE = (
    "CREATE TABLE attempts (task_id TEXT NOT NULL, attempt_id TEXT NOT NULL, row TEXT NOT NULL, "
    "PRIMARY KEY (task_id, attempt_id)) WITHOUT ROWID"
)
# What attempts were known by that are not among the rows any more: damaged ones, and folders that are away.
_UNLISTED = (
    "CREATE TABLE unlisted (task_id TEXT NOT NULL, attempt_id TEXT NOT NULL, attempt_sha256 TEXT NOT NULL, "
    "PRIMARY KEY (task_id, attempt_id)) WITHOUT ROWID"
)

Entry = IndexRow | Finding
Hashes = dict[tuple[str, str], str]


# ---------------------------------------------------------------------------- folders


def _attempt_folders(root: Path) -> list[Path]:
    """Return every folder named like a finished attempt, ordered by task and id."""
    folders: list[Path] = []
    with os.scandir(root) as tasks:
        names = sorted(
            task.name
            for task in tasks
            if TASK_ID.fullmatch(task.name) and task.name not in RESERVED_TASK_IDS and task.is_dir()
        )
    for name in names:
        folders += sorted(path for path in (root / name).iterdir() if ATTEMPT_ID.fullmatch(path.name))
    return folders


def _entry(folder: Path) -> Entry:
    """Return the row of the attempt in ``folder``, or why it cannot be trusted."""
    path = f"{folder.parent.name}/{folder.name}"
    if folder.is_symlink() or not folder.is_dir():
        message = f"{path} is not a folder, so it is no attempt."
        return Finding(code="ATTEMPT_UNREADABLE", message=message)
    try:
        attempt, digest = parse_attempt(folder)
        if (attempt.task_id, attempt.attempt_id) != (folder.parent.name, folder.name):
            message = f"{path} says that it is {attempt.task_id}/{attempt.attempt_id}."
            return Finding(code="ATTEMPT_MISPLACED", message=message)
        changes = check_files(folder, attempt)
    except FileNotFoundError:
        return Finding(code="ATTEMPT_UNREADABLE", message=f"{path} holds no attempt.json.")
    except (OSError, ValueError, msgspec.DecodeError) as error:
        return Finding(
            code="ATTEMPT_UNREADABLE", message=f"{path} cannot be read as an attempt: {reason(error)}."
        )
    if changes:
        evidence = tuple(f"{change.code}: {change.message}" for change in changes)
        return Finding(code="ATTEMPT_CHANGED", message=f"{path} is not what was archived.", evidence=evidence)
    if is_correct(attempt) and (found := contradictions(folder, attempt)):
        message = f"{path} contradicts its own records."
        return Finding(code="ATTEMPT_CONTRADICTED", message=message, evidence=found)
    return index_row(folder, attempt, digest)


def _scan(root: Path, known: dict[Path, Entry] | None = None) -> dict[Path, Entry]:
    known = known or {}
    return {folder: known[folder] if folder in known else _entry(folder) for folder in _attempt_folders(root)}


def _changed(row: IndexRow, indexed_sha256: str) -> Finding:
    return Finding(
        code="ATTEMPT_CHANGED",
        message=f"{row.path} is not what was archived.",
        evidence=(
            f"FILE_CHANGED: {ATTEMPT_FILE} was changed since it was indexed.",
            f"indexed: sha256 {indexed_sha256}",
            f"found: sha256 {row.attempt_sha256}",
        ),
    )


def _judged(entries: dict[Path, Entry], known: Hashes) -> dict[Path, Entry]:
    """Return the entries with a finding for each row whose ``attempt.json`` the old index knew otherwise.

    Its hash stands nowhere in the folder, so only an index can tell.
    """
    judged: dict[Path, Entry] = {}
    for folder, entry in entries.items():
        expected = known.get((folder.parent.name, folder.name))
        if isinstance(entry, IndexRow) and expected not in (None, entry.attempt_sha256):
            judged[folder] = _changed(entry, str(expected))
        else:
            judged[folder] = entry
    return judged


def _rows(entries: dict[Path, Entry]) -> tuple[IndexRow, ...]:
    return tuple(entry for entry in entries.values() if isinstance(entry, IndexRow))


# ---------------------------------------------------------------------------- database


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None
    )
    try:
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _require_layout(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != LAYOUT_VERSION:
        raise sqlite3.DatabaseError(f"layout version {version} is not {LAYOUT_VERSION}")
    # A view, a trigger or a computed column under these names could go on for ever.
    found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master LIMIT 8")}
    if not {_TABLE} <= found <= {_TABLE, _UNLISTED}:
        raise sqlite3.DatabaseError("its tables are not those of an index")


def _insert(connection: sqlite3.Connection, rows: Iterable[IndexRow]) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)",
        ((row.task_id, row.attempt_id, to_json(row, indent=None).decode()) for row in rows),
    )


def _remove(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _replace_database(root: Path, rows: Iterable[IndexRow], unlisted: Hashes | None = None) -> None:
    """Put a fresh database in the old one's place; the caller holds the lock."""
    fresh = root / f".{INDEX_FILE}.new"
    _remove(fresh)
    with closing(_connect(fresh, "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_TABLE)
        connection.execute(_UNLISTED)
        _insert(connection, rows)
        connection.executemany(
            "INSERT INTO unlisted VALUES (?, ?, ?)",
            ((*name, digest) for name, digest in (unlisted or {}).items()),
        )
        connection.execute(f"PRAGMA user_version={LAYOUT_VERSION}")
        connection.execute("COMMIT")
    for suffix in ("-wal", "-shm", "-journal"):  # the old database's own log must not be replayed here
        (root / (INDEX_FILE + suffix)).unlink(missing_ok=True)
    os.replace(fresh, root / INDEX_FILE)
    fsync_folder(root)


def _warning(code: str, what: str) -> tuple[Finding, ...]:
    return (Finding(code=code, message=f"The index {what}; {HEAL}."),)


def _recreate_if_missing(root: Path) -> tuple[Finding, ...]:
    """Make a missing index from the folders (the lock is held); remark on it when there were any."""
    if os.path.lexists(root / INDEX_FILE):
        return ()
    entries = _scan(root)
    _replace_database(root, _rows(entries))
    if not entries:
        return ()
    message = f"The index was missing; it was made again from {len(entries)} attempt folder(s)."
    return (Finding(code="INDEX_RECREATED", message=message),)


def open_index(root: Path) -> tuple[Finding, ...]:
    """Make the index of an artifacts folder if there is none; return warnings, raise nothing."""
    try:
        with exclusive_lock(root / LOCK_FILE, LOCK_TIMEOUT_S) as held:
            return (
                _recreate_if_missing(root) if held else _warning("INDEX_LOCKED", "is locked by another run")
            )
    except (OSError, sqlite3.Error) as error:
        return _warning("INDEX_UNUSABLE", f"cannot be made ({reason(error)})")


def add_to_index(root: Path, row: IndexRow) -> tuple[Finding, ...]:
    """Insert one published attempt; return warnings, raise nothing: the attempt is safe in its folder."""
    name = f"{row.task_id}/{row.attempt_id}"
    try:
        with exclusive_lock(root / LOCK_FILE, LOCK_TIMEOUT_S) as held:
            if not held:
                return _warning("INDEX_LOCKED", f"is locked by another run and lacks {name}")
            remarks = _recreate_if_missing(root)
            with closing(_connect(root / INDEX_FILE, "rw")) as connection:
                _require_layout(connection)
                _insert(connection, (row,))
            return remarks
    except (OSError, sqlite3.Error) as error:
        return _warning("INDEX_UNUSABLE", f"cannot be written ({reason(error)}) and lacks {name}")


def read_index(root: Path, task_id: str | None = None) -> tuple[tuple[IndexRow, ...], tuple[Finding, ...]]:
    """Return the attempts' rows, by task and id, and warnings.

    Where the index is missing or unusable the folders themselves are read, which is slower and as right.
    """
    if not root.is_dir():
        return (), ()
    try:
        with exclusive_lock(root / LOCK_FILE, LOCK_TIMEOUT_S) as held:
            if not held:
                return _read_folders(root, task_id, "INDEX_LOCKED", "is locked by another run")
            if not os.path.lexists(root / INDEX_FILE):
                return _read_folders(root, task_id, "INDEX_MISSING", "is missing")
            return _read_database(root, task_id), ()
    except (OSError, sqlite3.Error, ValueError, msgspec.DecodeError) as error:
        return _read_folders(root, task_id, "INDEX_UNUSABLE", f"cannot be read ({reason(error)})")


def indexed_sha256(root: Path, task_id: str, attempt_id: str) -> str | None:
    """Return the hash of ``attempt.json`` that was indexed when the attempt ended, if it is known."""
    if not os.path.lexists(root / INDEX_FILE):
        return None
    try:
        with exclusive_lock(root / LOCK_FILE, LOCK_TIMEOUT_S) as held:
            return _known_hashes(root, task_id).get((task_id, attempt_id)) if held else None
    except OSError:
        return None


def changed_rows(root: Path, rows: Iterable[IndexRow]) -> tuple[set[IndexRow], tuple[Finding, ...]]:
    """Return the rows that are not what their attempt's folder gives, every file re-hashed, and what to say.

    The index is a file like any other: what stands in a row must be what the attempt itself says.
    """
    changed: dict[IndexRow, Finding] = {}
    for row in rows:
        if (entry := _indexed_entry(root, row)) != row:
            changed[row] = _unlike(row, entry)
    return set(changed), tuple(changed.values())


def _unlike(row: IndexRow, entry: Entry | None) -> Finding:
    name = f"{row.task_id}/{row.attempt_id}"
    if not _names_an_attempt(row):
        message = f"{name} stands in the index and is no attempt's name, so it is left out."
        return Finding(code="INDEX_CHANGED", message=message)
    if entry is None:
        return Finding(code="ATTEMPT_GONE", message=f"{name} is gone, so it is left out.")
    if isinstance(entry, IndexRow) and entry.attempt_sha256 == row.attempt_sha256:
        message = f"{name} is not what the index says of it, so it is left out."
        return Finding(code="INDEX_CHANGED", message=message)
    message = f"{name} was changed since it was indexed, so it is left out."
    evidence = entry.evidence if isinstance(entry, Finding) else ()
    return Finding(code="ATTEMPT_CHANGED", message=message, evidence=evidence)


def _indexed_entry(root: Path, row: IndexRow) -> Entry | None:
    """Return what the folder that a row names holds; ``None`` where it names none, or none is there."""
    folder = root / row.task_id / row.attempt_id
    return _entry(folder) if _names_an_attempt(row) and os.path.lexists(folder / ATTEMPT_FILE) else None


def _names_an_attempt(row: IndexRow) -> bool:
    return bool(TASK_ID.fullmatch(row.task_id) and ATTEMPT_ID.fullmatch(row.attempt_id))


def _read_database(root: Path, task_id: str | None) -> tuple[IndexRow, ...]:
    where, values = ("", ()) if task_id is None else (" WHERE task_id = ?", (task_id,))
    with closing(_connect(root / INDEX_FILE, "rw")) as connection:
        _require_layout(connection)
        found = connection.execute(f"SELECT row FROM attempts{where} ORDER BY task_id, attempt_id", values)
        return tuple(from_json(text.encode(), IndexRow) for (text,) in found)


def _known_hashes(root: Path, task_id: str | None = None) -> Hashes:
    """Return what the index knows every attempt by (the lock is held); nothing where it cannot be read."""
    known: Hashes = {}
    try:
        with closing(_connect(root / INDEX_FILE, "rw")) as connection:
            _require_layout(connection)
            # An index of an earlier version has no such table.
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'unlisted'").fetchone():
                for task, attempt, digest in connection.execute("SELECT * FROM unlisted"):
                    known[str(task), str(attempt)] = str(digest)
        rows = _read_database(root, task_id)
    except (OSError, sqlite3.Error, ValueError, msgspec.DecodeError):
        return {}
    return known | {(row.task_id, row.attempt_id): row.attempt_sha256 for row in rows}


def _read_folders(
    root: Path, task_id: str | None, code: str, what: str
) -> tuple[tuple[IndexRow, ...], tuple[Finding, ...]]:
    entries = _scan(root)
    if not entries:
        return (), ()
    damaged = tuple(entry for entry in entries.values() if isinstance(entry, Finding))
    rows = tuple(row for row in _rows(entries) if task_id in (None, row.task_id))
    return rows, (*_warning(code, what), *damaged)


def rebuild_index(artifacts_root: Path) -> ArtifactIndex:
    """Make ``index.db`` and ``artifact_index.json`` again from the folders and return the latter.

    Every attempt is re-hashed. ``.partial`` folders are skipped; an attempt that is unreadable, in the
    wrong place or changed is named in ``damaged`` and left out. So is one whose ``attempt.json`` is not the
    one that the old index knew, where that can be read; the new index remembers it. The hashing is done
    before the lock is taken, so that runs which end meanwhile wait only for the attempts that appeared since.
    Raises ``ConfigurationError`` where the folder is missing or refuses.
    """
    if not artifacts_root.is_dir():
        raise ConfigurationError("NO_ARTIFACTS", f"{artifacts_root} is not a folder of artifacts.")
    try:
        known = _scan(artifacts_root)
        with exclusive_lock(artifacts_root / LOCK_FILE, LOCK_TIMEOUT_S) as held:
            if not held:
                message = (
                    f"Another run holds the index of {artifacts_root} for {LOCK_TIMEOUT_S:.0f} s; try again."
                )
                raise ConfigurationError("INDEX_LOCKED", message)
            hashes = _known_hashes(artifacts_root)
            entries = _judged(_scan(artifacts_root, known), hashes)
            index = ArtifactIndex(
                schema_version=SCHEMA_VERSION,
                attempts=_rows(entries),
                damaged=tuple(entry for entry in entries.values() if isinstance(entry, Finding)),
            )
            listed = {(row.task_id, row.attempt_id) for row in index.attempts}
            unlisted = {name: digest for name, digest in hashes.items() if name not in listed}
            _replace_database(artifacts_root, index.attempts, unlisted)
            write_json_atomic(artifacts_root / INDEX_JSON, index)
            return index
    except (OSError, sqlite3.Error) as error:
        message = f"The index of {artifacts_root} cannot be written: {reason(error)}."
        raise ConfigurationError("INDEX_UNWRITABLE", message) from error
