"""Task Card and manifest files -> records, or one error that names every problem with file and line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NoReturn

import msgspec

from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.printable import printable
from mini_kv.core.record import Record
from mini_kv.core.records.card import CandidateManifest, TaskCard
from mini_kv.system.paths import PathRefused, find_project_root, read_regular_file, shown_path
from mini_kv.task_card.axis_rules import axis_findings
from mini_kv.task_card.card_rules import card_findings, version_finding
from mini_kv.task_card.document import Document, Problem, read_document
from mini_kv.task_card.manifest_rules import manifest_findings
from mini_kv.task_card.structure import Finding, converted
from mini_kv.task_card.wording import found_text, key_text

MANIFEST_FILE = "candidate.yaml"
MAX_FILE_BYTES = 1024 * 1024
MAX_PROBLEMS = 500
MAX_LOOKED_AT = 1000  # files whose names are compared with one that is not there


class LoadedCard(Record, frozen=True, kw_only=True):
    """A valid card and the file it came from. ``path`` is project-relative POSIX, ``raw`` the file's text.

    The cases that the benchmark's axes generate are among the card's cases.
    """

    card: TaskCard
    path: str
    sha256: str
    raw: str


class LoadedManifest(Record, frozen=True, kw_only=True):
    """A valid manifest and where it lies; ``folder`` and ``path`` are project-relative POSIX."""

    manifest: CandidateManifest
    folder: str
    path: str
    sha256: str


def load_task_card(path: Path, project_root: Path | None = None) -> LoadedCard:
    """Read, check and return one Task Card.

    Raises :class:`ConfigurationError` (``INVALID_TASK_CARD``) whose ``problems`` lists every finding as
    ``file:line: key: found ...; allowed: ...``, in the order of the file.
    """
    _refuse_nul(path, Code.INVALID_TASK_CARD, "Task Card")
    root = _real(find_project_root(path) if project_root is None else project_root)
    shown = shown_path(path, root)
    if not os.path.lexists(path) and _real(path).is_relative_to(root):
        near = _such_as(shown, root, "tasks/*.yaml")
        text = f"found no such file; allowed: an existing file{near}"
        _fail(Code.INVALID_TASK_CARD, "Task Card", shown, [Problem(line=0, path=(), text=text)])
    raw, document = _read(path, root, shown, Code.INVALID_TASK_CARD, "Task Card")
    data = document.data
    findings: list[Finding] = []
    card: TaskCard | None = None
    if isinstance(data, dict) and document.complete:
        version = version_finding(data)
        if version is not None:
            _fail(Code.INVALID_TASK_CARD, "Task Card", shown, [_placed(version, document)])
        card, shape = converted(data, TaskCard)
        findings = [*shape, *card_findings(data, root), *axis_findings(data)]
    problems = _merged(document, findings)
    if card is None or problems:
        _fail(Code.INVALID_TASK_CARD, "Task Card", shown, problems)
    normal = PurePosixPath(card.candidate).as_posix()
    if normal != card.candidate:
        card = msgspec.structs.replace(card, candidate=normal)
    if card.benchmark.axes:
        from mini_kv.core.rules.axes import expand_axes

        card = expand_axes(card)
    return LoadedCard(card=card, path=shown, sha256=sha256_bytes(raw), raw=raw.decode("utf-8"))


def load_manifest(folder: Path, project_root: Path) -> LoadedManifest:
    """Read, check and return the manifest of a candidate's folder.

    A relative ``folder`` is looked for from the current folder, then from the project's. Raises
    :class:`ConfigurationError` (``INVALID_MANIFEST``) with every finding.
    """
    _refuse_nul(folder, Code.INVALID_MANIFEST, "candidate manifest")
    root = _real(project_root)
    if not folder.is_absolute() and not folder.exists():
        folder = root / folder
    path = folder / MANIFEST_FILE
    shown = shown_path(path, root)
    if not os.path.lexists(path) and _real(path).is_relative_to(root):
        near = _such_as(shown, root, f"candidates/*/*/{MANIFEST_FILE}").replace(f"/{MANIFEST_FILE}", "")
        text = f"found no such file; allowed: a candidate's folder{near or f' with a {MANIFEST_FILE}'}"
        _fail(Code.INVALID_MANIFEST, "candidate manifest", shown, [Problem(line=0, path=(), text=text)])
    raw, document = _read(path, root, shown, Code.INVALID_MANIFEST, "candidate manifest")
    data = document.data
    findings: list[Finding] = []
    manifest: CandidateManifest | None = None
    if isinstance(data, dict) and document.complete:
        version = version_finding(data)
        if version is not None:
            _fail(Code.INVALID_MANIFEST, "candidate manifest", shown, [_placed(version, document)])
        manifest, shape = converted(data, CandidateManifest)
        findings = [*shape, *manifest_findings(data, _real(folder))]
    problems = _merged(document, findings)
    if manifest is None or problems:
        _fail(Code.INVALID_MANIFEST, "candidate manifest", shown, problems)
    return LoadedManifest(
        manifest=manifest, folder=shown_path(folder, root), path=shown, sha256=sha256_bytes(raw)
    )


def problems_at(loaded: LoadedCard, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return findings about a card that was loaded as its other problems are told, with their lines."""
    found = tuple(findings)
    if not found:
        return ()
    document = read_document(loaded.raw.encode("utf-8"))
    return tuple(_line(loaded.path, problem) for problem in _merged(document, found))


def _such_as(shown: str, root: Path, pattern: str) -> str:
    """Return ``, such as a, b, c``: the project's files that fit ``pattern`` and are nearest to ``shown``."""
    import difflib

    names = (path.relative_to(root).as_posix() for path in islice(root.glob(pattern), MAX_LOOKED_AT))
    known = sorted(name for name in names if name.isprintable())
    near = difflib.get_close_matches(shown, known, n=3, cutoff=0.0)
    return f", such as {', '.join(near)}" if near else ""


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _refuse_nul(path: Path, code: Code, noun: str) -> None:
    """No system call takes such a path: each would raise a ValueError of its own."""
    if "\0" in str(path):
        _fail(code, noun, repr(str(path)), [Problem(line=0, path=(), text="found a NUL byte in the path")])


def _read(path: Path, root: Path, shown: str, code: Code, noun: str) -> tuple[bytes, Document]:
    """Return the file's bytes and document; what cannot be a mapping at all fails here."""
    try:
        if not _real(path).is_relative_to(root):
            raise PathRefused("a file outside the project (itself, or where its symbolic link leads)",
                              f"files below the project's folder {root.name or root}")  # fmt: skip
        raw = read_regular_file(path, MAX_FILE_BYTES)
    except PathRefused as refusal:
        _fail(code, noun, shown, [Problem(line=0, path=(), text=str(refusal))])
    document = read_document(raw)
    if not isinstance(document.data, dict) and not document.problems:
        what = found_text(document.data) if document.data is not None else "no value (comments only)"
        text = f"found {what} at the top; allowed: a mapping of keys to values"
        document = msgspec.structs.replace(
            document, problems=(Problem(line=document.line(()), path=(), text=text),)
        )
    return raw, document


def _placed(finding: Finding, document: Document) -> Problem:
    path, text = finding
    return Problem(line=document.line(path), path=path, text=text)


def _merged(document: Document, findings: Iterable[Finding]) -> list[Problem]:
    """Return the problems in the order of the file; only the first finding about a key path counts.

    A value that YAML already reads wrongly would also have the wrong type, and so on.
    """
    problems = list(document.problems)
    reported = {problem.path for problem in problems if problem.path}
    for finding in findings:
        path = finding[0]
        if path not in reported or not path:
            reported.add(path)
            problems.append(_placed(finding, document))
    return sorted(problems, key=lambda problem: problem.line)


def _fail(code: Code, noun: str, shown: str, problems: list[Problem]) -> NoReturn:
    lines = [_line(shown, problem) for problem in dict.fromkeys(problems[:MAX_PROBLEMS])]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"{shown}: found more problems, which are not listed")
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    if len(problems) > MAX_PROBLEMS:
        count = f"more than {MAX_PROBLEMS} problems"
    raise ConfigurationError(code, f"{shown} is no valid {noun}: {count}.", tuple(lines))


def _line(shown: str, problem: Problem) -> str:
    place = f"{shown}:{problem.line}" if problem.line else shown
    key = key_text(problem.path)
    return printable(f"{place}: {key}: {problem.text}" if key else f"{place}: {problem.text}")
