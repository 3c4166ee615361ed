"""The candidate's folder, read once: what is hashed here is what the compiler gets, byte for byte."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError

MAX_FILES = 2000
MAX_BYTES = 64 << 20


class Snapshot:
    """Every regular file of a candidate folder by POSIX path relative to it, with its SHA-256.

    Hidden files and byte code stay out. They are not copied to where the compiler works either, so
    nothing reaches a build without reaching its key.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.sha256 = {name: sha256_bytes(raw) for name, raw in files.items()}

    def write(self, folder: Path) -> None:
        """Write the files below ``folder``, which must not exist yet."""
        folder.mkdir()
        for name, raw in self.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)


def read_candidate(folder: Path) -> Snapshot:
    """Read a candidate folder. Raises :class:`ConfigurationError` for what cannot be a candidate.

    Links to files are followed as long as they stay inside the candidate's folder: what they lead to is
    copied next to the sources, where the compiler can read it. Linked folders, pipes and devices are
    refused rather than silently left out.
    """
    if not folder.is_dir():
        raise ConfigurationError(Code.CANDIDATE_MISSING, f"The candidate folder {folder} does not exist.")
    own = folder.resolve()
    files: dict[str, bytes] = {}
    total_bytes = 0
    for place, folders, names in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = sorted(name for name in folders if not _left_out(name))
        for name in folders:
            _refuse_link(Path(place, name))
        for name in sorted(names):
            if _left_out(name):
                continue
            path = Path(place, name)
            _refuse_bad_name(path)
            raw = _read(path, own, MAX_BYTES - total_bytes)
            total_bytes += len(raw)
            files[path.relative_to(folder).as_posix()] = raw
            if len(files) > MAX_FILES:
                raise ConfigurationError(
                    Code.CANDIDATE_TOO_LARGE,
                    f"The candidate folder {folder} holds more than {MAX_FILES} files.",
                )
    return Snapshot(files)


def _left_out(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__" or name.endswith(".pyc")


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise ConfigurationError(
            Code.LINKED_FOLDER, f"{folder} is a link to a folder; a candidate's folders must be real ones."
        )


def _refuse_unreadable(error: OSError) -> None:
    raise ConfigurationError(
        Code.UNREADABLE, f"{error.filename} cannot be read: {error.strerror}."
    ) from error


def _refuse_bad_name(path: Path) -> None:
    try:
        path.name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigurationError(Code.BAD_NAME, f"The file name {path.name!r} is not UTF-8.") from error


def _read(path: Path, own: Path, room_bytes: int) -> bytes:
    real = Path(os.path.realpath(path))  # Path.resolve raises on links that go round in a ring
    if path.is_symlink() and own not in real.parents:
        raise ConfigurationError(
            Code.LINK_OUTSIDE_CANDIDATE, f"{path} is a link that leads out of the candidate's folder."
        )
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(Code.UNREADABLE, f"{path} cannot be read: {error.strerror}.") from error
    with os.fdopen(descriptor, "rb") as stream:
        facts = os.fstat(stream.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigurationError(Code.NOT_A_FILE, f"{path} is neither a file nor a folder.")
        raw = stream.read(room_bytes + 1)
    if len(raw) > room_bytes:
        raise ConfigurationError(
            Code.CANDIDATE_TOO_LARGE, f"The candidate folder passes {MAX_BYTES >> 20} MiB at {path}."
        )
    return raw
