"""The index over attempts: a SQLite file that can always be made again from the folders.

Every access holds ``index.lock``, where there is one to read under: replacing a database that another
connection has open would lose what that connection writes. One attempt costs one insert, however many there
are.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from mini_kv.artifacts.attempts import ATTEMPT_ID, TASK_ID
from mini_kv.artifacts.folders import (
    Entry,
    Hashes,
    attempt_folders,
    damage_of,
    entries_of,
    entry_of,
    judged,
    name_of,
    rows_of,
)
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.archived_files import ATTEMPT_FILE
from mini_kv.core.records.attempt import ArtifactIndex, IndexRow
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.results import Finding
from mini_kv.core.time_limits import INDEX_LOCK_TIMEOUT_S
from mini_kv.system.archive_folder import reason
from mini_kv.system.files import exclusive_lock, fsync_folder, write_json_atomic

INDEX_FILE = "index.db"
LOCK_FILE = "index.lock"
INDEX_JSON = "artifact_index.json"
# Raised with every change of the table or of IndexRow; another number reads as no index.
LAYOUT_VERSION = 2
# Theirs are not what a row must say today, but the hashes in them still hold.
EARLIER_LAYOUTS = frozenset({1})
# A run that ends now waits for the lock for so long at most before its attempt stands in the index.
SETTLED_S = 2 * INDEX_LOCK_TIMEOUT_S
_SHOWN = 4
# What SQLite keeps next to a database.
_COMPANIONS = ("-wal", "-shm", "-journal")
HEAL = "run 'mini-kv rebuild-index' to make it again from the folders"

_TABLE = (
    "CREATE TABLE attempts (task_id TEXT NOT NULL, attempt_id TEXT NOT NULL, row TEXT NOT NULL, "
    "PRIMARY KEY (task_id, attempt_id)) WITHOUT ROWID"
)
# What attempts were known by that are not among the rows (any more): damaged ones, and folders that are away.
_UNLISTED = (
    "CREATE TABLE unlisted (task_id TEXT NOT NULL, attempt_id TEXT NOT NULL, attempt_sha256 TEXT NOT NULL, "
    "PRIMARY KEY (task_id, attempt_id)) WITHOUT ROWID"
)


# ---------------------------------------------------------------------------- database


@contextmanager
def _held_to_read(root: Path) -> Iterator[bool]:
    """Hold the index's lock, where there is one: whoever writes has made it, and to read makes nothing."""
    if not os.path.lexists(root / LOCK_FILE):
        yield True
        return
    with exclusive_lock(root / LOCK_FILE, INDEX_LOCK_TIMEOUT_S) as held:
        yield held


def _refuse_irregular(path: Path) -> None:
    for suffix in ("", *_COMPANIONS):
        one = path.with_name(path.name + suffix)
        if os.path.lexists(one) and not stat.S_ISREG(os.lstat(one).st_mode):
            raise sqlite3.DatabaseError(f"{one.name} is not a regular file")  # a pipe would be waited for


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the database (the lock is held). Where nothing can be written it is read as it lies there.

    A log that could not be merged into it then is not read: its attempts are found in their folders.
    """
    lock = path.with_name(LOCK_FILE)
    if os.path.lexists(lock) and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return _connect(path, "rw")
    _refuse_irregular(path)
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    _refuse_irregular(path)
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=INDEX_LOCK_TIMEOUT_S,
        isolation_level=None,
    )
    try:
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _require_layout(connection: sqlite3.Connection, or_of: frozenset[int] = frozenset()) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != LAYOUT_VERSION and version not in or_of:
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
    for suffix in (*_COMPANIONS, ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _replace_database(root: Path, rows: Iterable[IndexRow], unlisted: Hashes | None = None) -> None:
    """Put a fresh database in the old one's place; the caller holds the lock."""
    fresh = root / f".{INDEX_FILE}.new"
    _remove(fresh)  # what a killed run left
    try:
        _write_database(fresh, rows, unlisted or {})
        for suffix in _COMPANIONS:  # the old database's own log must not be replayed here
            (root / (INDEX_FILE + suffix)).unlink(missing_ok=True)
        os.replace(fresh, root / INDEX_FILE)
    except BaseException:
        _remove(fresh)
        raise
    fsync_folder(root)


def _write_database(path: Path, rows: Iterable[IndexRow], unlisted: Hashes) -> None:
    with closing(_connect(path, "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_TABLE)
        connection.execute(_UNLISTED)
        _insert(connection, rows)
        connection.executemany(
            "INSERT INTO unlisted VALUES (?, ?, ?)", ((*name, digest) for name, digest in unlisted.items())
        )
        connection.execute(f"PRAGMA user_version={LAYOUT_VERSION}")
        connection.execute("COMMIT")


def _warning(code: Code, what: str) -> tuple[Finding, ...]:
    return (Finding(code=code, message=f"The index {what}; {HEAL}."),)


def _recreate_if_missing(root: Path) -> tuple[Finding, ...]:
    """Make a missing index from the folders (the lock is held); remark on it when there were any."""
    if os.path.lexists(root / INDEX_FILE):
        return ()
    entries = entries_of(attempt_folders(root))
    _replace_database(root, rows_of(entries))
    if not entries:
        return ()
    message = f"The index was missing; it was made again from {len(entries)} attempt folder(s)."
    return (Finding(code=Code.INDEX_RECREATED, message=message),)


def open_index(root: Path) -> tuple[Finding, ...]:
    """Make the index of an artifacts folder if there is none; return warnings, raise nothing."""
    try:
        with exclusive_lock(root / LOCK_FILE, INDEX_LOCK_TIMEOUT_S) as held:
            return (
                _recreate_if_missing(root)
                if held
                else _warning(Code.INDEX_LOCKED, "is locked by another run")
            )
    except (OSError, sqlite3.Error) as error:
        return _warning(Code.INDEX_UNUSABLE, f"cannot be made ({reason(error)})")


def add_to_index(root: Path, row: IndexRow) -> tuple[Finding, ...]:
    """Insert one published attempt; return warnings, raise nothing: the attempt is safe in its folder."""
    name = f"{row.task_id}/{row.attempt_id}"
    try:
        with exclusive_lock(root / LOCK_FILE, INDEX_LOCK_TIMEOUT_S) as held:
            if not held:
                return _warning(Code.INDEX_LOCKED, f"is locked by another run and lacks {name}")
            remarks = _recreate_if_missing(root)
            with closing(_connect(root / INDEX_FILE, "rw")) as connection:
                _require_layout(connection)
                _insert(connection, (row,))
            return remarks
    except (OSError, sqlite3.Error) as error:
        return _warning(Code.INDEX_UNUSABLE, f"cannot be written ({reason(error)}) and lacks {name}")


def read_index(
    root: Path, task_id: str | None = None, clock: Callable[[], float] = time.time
) -> tuple[tuple[IndexRow, ...], tuple[Finding, ...]]:
    """Return the attempts' rows, by task and id, and warnings. Raises ``ConfigurationError``.

    Where the index is missing or unusable the folders themselves are read, which is slower and as right. So
    are the folders of attempts that the index lacks. ``clock`` returns seconds since the epoch.
    """
    if not root.is_dir():
        return (), ()
    try:
        folders = attempt_folders(root, task_id)  # first: what is published from here on is not missed
    except OSError as error:
        message = f"The archive in {root} cannot be read: {reason(error)}."
        raise ConfigurationError(Code.ARTIFACTS_UNREADABLE, message) from error
    try:
        with _held_to_read(root) as held:
            if not held:
                return _read_folders(folders, Code.INDEX_LOCKED, "is locked by another run")
            if not os.path.lexists(root / INDEX_FILE):
                return _read_folders(folders, Code.INDEX_MISSING, "is missing")
            rows, unlisted = _read_database(root, task_id)
    except (OSError, sqlite3.Error, ValueError, msgspec.DecodeError) as error:
        return _read_folders(folders, Code.INDEX_UNUSABLE, f"cannot be read ({reason(error)})")
    return _with_lacking(rows, unlisted, folders, clock())


def _with_lacking(
    rows: tuple[IndexRow, ...], unlisted: Hashes, folders: Sequence[Path], now_s: float
) -> tuple[tuple[IndexRow, ...], tuple[Finding, ...]]:
    """Add the attempts that lie in the folders and have no row, as after a killed run or a deleted row.

    Damage that ``rebuild-index`` told of already is not told again.
    """
    listed = {(row.task_id, row.attempt_id) for row in rows}
    entries = judged(entries_of(folder for folder in folders if name_of(folder) not in listed), unlisted)
    found = {
        folder: entry
        for folder, entry in entries.items()
        if os.path.lexists(folder) and not (isinstance(entry, Finding) and name_of(folder) in unlisted)
    }
    lacking = {folder: entry for folder, entry in found.items() if isinstance(entry, IndexRow)}
    late = [row.path for folder, row in lacking.items() if _settled(folder, now_s)]
    every = sorted((*rows, *lacking.values()), key=lambda row: (row.task_id, row.attempt_id))
    return tuple(every), (*_lacks(late), *damage_of(found))


def _settled(folder: Path, now_s: float) -> bool:
    """Say whether an attempt was published so long ago that its run is not about to index it."""
    try:
        return abs(now_s - os.lstat(folder / ATTEMPT_FILE.name).st_mtime) > SETTLED_S
    except OSError:
        return False  # it was removed meanwhile


def _lacks(paths: Sequence[str]) -> tuple[Finding, ...]:
    if not paths:
        return ()
    shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
    count = f"{len(paths)} attempt{'' if len(paths) == 1 else 's'}"
    what = f"lacks {count} that the folders hold ({shown}), which were read there"
    return _warning(Code.INDEX_INCOMPLETE, what)


def indexed_sha256(root: Path, task_id: str, attempt_id: str) -> str | None:
    """Return the hash of ``attempt.json`` that was indexed when the attempt ended, if it is known."""
    if not os.path.lexists(root / INDEX_FILE):
        return None
    try:
        with _held_to_read(root) as held:
            return _known_hashes(root, task_id).get((task_id, attempt_id)) or None if held else None
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
        return Finding(code=Code.INDEX_CHANGED, message=message)
    if entry is None:
        return Finding(code=Code.ATTEMPT_GONE, message=f"{name} is gone, so it is left out.")
    if isinstance(entry, IndexRow) and entry.attempt_sha256 == row.attempt_sha256:
        message = f"{name} is not what the index says of it, so it is left out."
        return Finding(code=Code.INDEX_CHANGED, message=message)
    message = f"{name} was changed since it was indexed, so it is left out."
    evidence = entry.evidence if isinstance(entry, Finding) else ()
    return Finding(code=Code.ATTEMPT_CHANGED, message=message, evidence=evidence)


def _indexed_entry(root: Path, row: IndexRow) -> Entry | None:
    """Return what the folder that a row names holds; ``None`` where it names none, or none is there."""
    folder = root / row.task_id / row.attempt_id
    return (
        entry_of(folder) if _names_an_attempt(row) and os.path.lexists(folder / ATTEMPT_FILE.name) else None
    )


def _names_an_attempt(row: IndexRow) -> bool:
    return bool(TASK_ID.fullmatch(row.task_id) and ATTEMPT_ID.fullmatch(row.attempt_id))


def _read_database(
    root: Path, task_id: str | None, or_of: frozenset[int] = frozenset()
) -> tuple[tuple[IndexRow, ...], Hashes]:
    """Return the rows (of one task), and what attempts without a row were known by (the lock is held)."""
    where, values = ("", ()) if task_id is None else (" WHERE task_id = ?", (task_id,))
    with closing(_connect_to_read(root / INDEX_FILE)) as connection:
        _require_layout(connection, or_of)
        unlisted: Hashes = {}
        # An index of an earlier version has no such table.
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'unlisted'").fetchone():
            for task, attempt, digest in connection.execute("SELECT * FROM unlisted"):
                unlisted[str(task), str(attempt)] = str(digest)
        found = connection.execute(f"SELECT row FROM attempts{where} ORDER BY task_id, attempt_id", values)
        return tuple(from_json(text.encode(), IndexRow) for (text,) in found), unlisted


def _known_hashes(root: Path, task_id: str | None = None) -> Hashes:
    """Return what the index knows every attempt by (the lock is held); nothing where it cannot be read."""
    try:
        rows, unlisted = _read_database(root, task_id, EARLIER_LAYOUTS)
    except (OSError, sqlite3.Error, ValueError, msgspec.DecodeError):
        return {}
    return unlisted | {(row.task_id, row.attempt_id): row.attempt_sha256 for row in rows}


def _read_folders(
    folders: Sequence[Path], code: Code, what: str
) -> tuple[tuple[IndexRow, ...], tuple[Finding, ...]]:
    entries = entries_of(folders)
    if not entries:
        return (), ()
    return rows_of(entries), (*_warning(code, what), *damage_of(entries))


def rebuild_index(artifacts_root: Path) -> ArtifactIndex:
    """Make ``index.db`` and ``artifact_index.json`` again from the folders and return the latter.

    Every attempt is re-hashed. ``.partial`` folders are skipped; an attempt that is unreadable, in the
    wrong place or changed is named in ``damaged`` and left out. So is one whose ``attempt.json`` is not the
    one that the old index knew, where that can be read; the new index remembers it. The hashing is done
    before the lock is taken, so that runs which end meanwhile wait only for the attempts that appeared since.
    Raises ``ConfigurationError`` where the folder is missing or refuses.
    """
    if not artifacts_root.is_dir():
        raise ConfigurationError(Code.NO_ARTIFACTS, f"{artifacts_root} is not a folder of artifacts.")
    try:
        known = entries_of(attempt_folders(artifacts_root))
        with exclusive_lock(artifacts_root / LOCK_FILE, INDEX_LOCK_TIMEOUT_S) as held:
            if not held:
                message = (
                    f"Another run holds the index of {artifacts_root} for {INDEX_LOCK_TIMEOUT_S:.0f} s; "
                    "try again."
                )
                raise ConfigurationError(Code.INDEX_LOCKED, message)
            hashes = _known_hashes(artifacts_root)
            entries = judged(entries_of(attempt_folders(artifacts_root), known), hashes)
            index = ArtifactIndex(
                schema_version=SCHEMA_VERSION,
                attempts=rows_of(entries),
                damaged=damage_of(entries),
            )
            listed = {(row.task_id, row.attempt_id) for row in index.attempts}
            told = {name_of(folder): "" for folder, entry in entries.items() if isinstance(entry, Finding)}
            unlisted = {name: digest for name, digest in (told | hashes).items() if name not in listed}
            _replace_database(artifacts_root, index.attempts, unlisted)
            write_json_atomic(artifacts_root / INDEX_JSON, index)
            return index
    except (OSError, sqlite3.Error) as error:
        message = f"The index of {artifacts_root} cannot be written: {reason(error)}."
        raise ConfigurationError(Code.INDEX_UNWRITABLE, message) from error
