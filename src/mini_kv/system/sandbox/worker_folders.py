"""The two folders of a caged worker: one that it may write, one in which the judge hands things over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mini_kv.core.records.archived_files import SOURCES_FOLDER


def make_rooms(folder: Path, user: int) -> tuple[Path, Path]:
    """Make ``scratch`` (the worker's own) and ``inbox`` (the judge's, readable) in a worker's folder."""
    scratch, inbox = folder / "scratch", folder / "inbox"
    for room in (scratch, inbox):
        room.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    inbox.chmod(0o755)
    if user != os.geteuid():
        os.chown(scratch, user, user)
    return scratch, inbox


def hand_over(library: Path, python: str | None, inbox: Path) -> tuple[str, str | None]:
    """Copy a library, and the sources around its Python file, into ``inbox``; return the copies' paths.

    Links are left out, modes are set: the reader is another user. Raises ``OSError``.
    """
    opened = _copy(library, inbox / library.name)
    if python is None:
        return opened, None
    # The sources as they were compiled, next to the library, where the plan names those.
    source, compiled = Path(python), library.parent / SOURCES_FOLDER
    tree = compiled if source.is_relative_to(compiled) else source.parent
    for place, folders, names in os.walk(tree):
        target = inbox / SOURCES_FOLDER / Path(place).relative_to(tree)
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(0o755)
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in names:
            if not os.path.islink(os.path.join(place, name)):
                _copy(Path(place, name), target / name)
    return opened, str(inbox / SOURCES_FOLDER / source.relative_to(tree))


def _copy(source: Path, target: Path) -> str:
    shutil.copyfile(source, target)
    target.chmod(0o644)
    return str(target)
