"""Finding the project, keeping paths inside it, and reading input files without trusting them."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path, PurePosixPath

from mini_kv.core.printable import printable

PROJECT_MARKERS = ("pyproject.toml", ".git", "mini_kv.toml")

_DRIVE_LETTER = re.compile(r"^[A-Za-z]:[/\\]")


class PathRefused(Exception):
    """A path or file that is not accepted; ``found`` and ``allowed`` are the two halves of a sentence."""

    def __init__(self, found: str, allowed: str) -> None:
        super().__init__(f"found {found}; allowed: {allowed}")
        self.found = found
        self.allowed = allowed


def find_project_root(start: Path) -> Path:
    """Return the folder that bounds every path of the card (or folder) ``start``.

    It is the nearest ancestor that holds one of ``PROJECT_MARKERS``. Without a marker it is the current
    folder when ``start`` lies inside it, else the folder of ``start`` itself. ``start`` need not exist;
    only its folder is resolved, so that a card linked from elsewhere still belongs to where the link is.
    """
    absolute = Path(os.path.abspath(start))
    folder = Path(os.path.realpath(absolute if absolute.is_dir() else absolute.parent))
    for ancestor in (folder, *folder.parents):
        if any(os.path.lexists(ancestor / marker) for marker in PROJECT_MARKERS):
            return ancestor
    here = Path(os.path.realpath(os.curdir))
    return here if folder.is_relative_to(here) else folder


def shown_path(path: Path, project_root: Path) -> str:
    """Return ``path`` relative to the project in POSIX form, or as it was given when it lies outside.

    ``project_root`` must be a real path. Characters that cannot be printed are escaped: a file's name must
    not break the line or the encoding of what names it.
    """
    shown = path.as_posix()
    for form in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        if form.is_relative_to(project_root):
            shown = form.relative_to(project_root).as_posix()
            break
    return printable(shown)


def confined_path(text: str, folder: Path, bound: str) -> Path:
    """Resolve the POSIX path ``text`` below ``folder`` and return the real path.

    ``folder`` must be a real path (no symbolic links); ``bound`` names it in sentences ("the project").
    Raises :class:`PathRefused` for an absolute path, a ``..``, a backslash, a character that is not
    printable, and for anything that leads out of ``folder`` through symbolic links. The path need not exist.
    """
    allowed = f"a relative path with '/' that stays inside {bound}"
    if not text or not text.isprintable():
        raise PathRefused(repr(text)[:80], allowed)
    if text.startswith(("/", "~")) or _DRIVE_LETTER.match(text):
        raise PathRefused(f"the absolute path {text[:80]!r}", allowed)
    if "\\" in text:
        raise PathRefused(f"a backslash in {text[:80]!r}", allowed)
    relative = PurePosixPath(text)
    if ".." in relative.parts:
        raise PathRefused(f"'..' in {text[:80]!r}", allowed)
    real = Path(os.path.realpath(folder / relative))
    if not real.is_relative_to(folder):
        raise PathRefused(f"{text[:80]!r}, which a symbolic link leads out of {bound}", allowed)
    return real


def require_regular_file(path: Path) -> None:
    """Raise :class:`PathRefused` unless ``path`` is an existing regular file (links are followed)."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _refusal(error) from None
    _refuse_unless_regular(status)


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a regular file of at most ``max_bytes``; raises :class:`PathRefused`.

    A file that is too large is refused by its size, before a byte is read. Pipes and devices are refused
    without waiting for them.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _refusal(error) from None
    try:
        status = os.fstat(handle)
        _refuse_unless_regular(status)
        _refuse_if_larger(status.st_size, max_bytes)
        with os.fdopen(handle, "rb", closefd=False) as stream:
            # One byte more than allowed: a file may grow after its size was asked, or hide it (/proc).
            raw = stream.read(max_bytes + 1)
        _refuse_if_larger(len(raw), max_bytes)
        return raw
    except OSError as error:
        raise _refusal(error) from None
    finally:
        os.close(handle)


def _refuse_unless_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise PathRefused("a directory", "a regular file")
    if not stat.S_ISREG(status.st_mode):
        raise PathRefused("a pipe, socket or device", "a regular file")


def _refuse_if_larger(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise PathRefused(f"a file of {size_bytes:,} bytes", f"at most {max_bytes:,} bytes")


def _refusal(error: OSError | ValueError) -> PathRefused:
    if isinstance(error, ValueError):
        return PathRefused("a path with a NUL byte", "a path of an existing file")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return PathRefused("no such file", "an existing file")
    if error.errno == errno.ELOOP:
        return PathRefused("a loop of symbolic links", "an existing file")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PathRefused("a file that this user may not read", "a readable file")
    return PathRefused(f"a file that cannot be opened ({os.strerror(error.errno or 0)})", "a readable file")
