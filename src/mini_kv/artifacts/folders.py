"""The folders of an archive as they lie there: which are attempts, and what each of them gives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from mini_kv.artifacts.attempts import (
    ATTEMPT_ID,
    TASK_ID,
    check_files,
    index_row,
    is_correct,
    parse_attempt,
)
from mini_kv.artifacts.contradictions import contradictions
from mini_kv.core.codes import Code
from mini_kv.core.records.archived_files import ATTEMPT_FILE
from mini_kv.core.records.attempt import IndexRow
from mini_kv.core.records.card import RESERVED_TASK_IDS
from mini_kv.core.records.results import Finding
from mini_kv.system.archive_folder import reason

Entry = IndexRow | Finding
# (task, attempt): the SHA-256 of its ``attempt.json``; empty where only its damage was ever known.
Hashes = dict[tuple[str, str], str]


def attempt_folders(root: Path, task_id: str | None = None) -> list[Path]:
    """Return every folder named like a finished attempt (of one task), ordered by task and id."""
    folders: list[Path] = []
    with os.scandir(root) as tasks:
        names = sorted(
            task.name
            for task in tasks
            if TASK_ID.fullmatch(task.name) and task.name not in RESERVED_TASK_IDS and task.is_dir()
        )
    if task_id is not None:
        names = [name for name in names if name == task_id]
    for name in names:
        folders += sorted(path for path in (root / name).iterdir() if ATTEMPT_ID.fullmatch(path.name))
    return folders


def entry_of(folder: Path) -> Entry:
    """Return the row of the attempt in ``folder``, or why it cannot be trusted."""
    path = f"{folder.parent.name}/{folder.name}"
    if folder.is_symlink() or not folder.is_dir():
        message = f"{path} is not a folder, so it is no attempt."
        return Finding(code=Code.ATTEMPT_UNREADABLE, message=message)
    try:
        attempt, digest = parse_attempt(folder)
        if (attempt.task_id, attempt.attempt_id) != (folder.parent.name, folder.name):
            message = f"{path} says that it is {attempt.task_id}/{attempt.attempt_id}."
            return Finding(code=Code.ATTEMPT_MISPLACED, message=message)
        changes = check_files(folder, attempt)
    except FileNotFoundError:
        return Finding(code=Code.ATTEMPT_UNREADABLE, message=f"{path} holds no {ATTEMPT_FILE.name}.")
    except (OSError, ValueError, msgspec.DecodeError) as error:
        return Finding(
            code=Code.ATTEMPT_UNREADABLE, message=f"{path} cannot be read as an attempt: {reason(error)}."
        )
    if changes:
        evidence = tuple(f"{change.code}: {change.message}" for change in changes)
        return Finding(
            code=Code.ATTEMPT_CHANGED, message=f"{path} is not what was archived.", evidence=evidence
        )
    if is_correct(attempt) and (found := contradictions(folder, attempt)):
        message = f"{path} contradicts its own records."
        return Finding(code=Code.ATTEMPT_CONTRADICTED, message=message, evidence=found)
    return index_row(folder, attempt, digest)


def entries_of(folders: Iterable[Path], known: Mapping[Path, Entry] | None = None) -> dict[Path, Entry]:
    """Return what each folder gives, from ``known`` where it was looked at already."""
    known = known or {}
    return {folder: known[folder] if folder in known else entry_of(folder) for folder in folders}


def name_of(folder: Path) -> tuple[str, str]:
    """Return the task and id that an attempt's folder stands for."""
    return folder.parent.name, folder.name


def _changed(row: IndexRow, indexed_sha256: str) -> Finding:
    return Finding(
        code=Code.ATTEMPT_CHANGED,
        message=f"{row.path} is not what was archived.",
        evidence=(
            f"FILE_CHANGED: {ATTEMPT_FILE.name} was changed since it was indexed.",
            f"indexed: sha256 {indexed_sha256}",
            f"found: sha256 {row.attempt_sha256}",
        ),
    )


def judged(entries: Mapping[Path, Entry], known: Hashes) -> dict[Path, Entry]:
    """Return the entries with a finding for each row whose ``attempt.json`` the old index knew otherwise.

    Its hash stands nowhere in the folder, so only an index can tell.
    """
    found: dict[Path, Entry] = {}
    for folder, entry in entries.items():
        expected = known.get(name_of(folder))
        if isinstance(entry, IndexRow) and expected and expected != entry.attempt_sha256:
            found[folder] = _changed(entry, expected)
        else:
            found[folder] = entry
    return found


def rows_of(entries: Mapping[Path, Entry]) -> tuple[IndexRow, ...]:
    """Return the rows of the attempts that can be trusted."""
    return tuple(entry for entry in entries.values() if isinstance(entry, IndexRow))


def damage_of(entries: Mapping[Path, Entry]) -> tuple[Finding, ...]:
    """Return why the others cannot."""
    return tuple(entry for entry in entries.values() if isinstance(entry, Finding))
