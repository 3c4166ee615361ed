"""A manifest and sources that a file carries: what a candidate's folder must obey, they must obey too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from mini_kv.core.canonical import canonical_sha256
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.printable import printable
from mini_kv.core.record import to_json
from mini_kv.core.records.card import CandidateManifest
from mini_kv.task_card.card_rules import version_finding
from mini_kv.task_card.document import KeyPath, Plain
from mini_kv.task_card.loading import MANIFEST_FILE, LoadedManifest
from mini_kv.task_card.manifest_rules import manifest_findings
from mini_kv.task_card.scalars import text_problem
from mini_kv.task_card.structure import Finding
from mini_kv.task_card.wording import found_text, key_text


def unpack_candidate(manifest: CandidateManifest, sources: Mapping[str, str], folder: Path) -> LoadedManifest:
    """Write a baseline's ``sources`` below ``folder``, which is made, and check the manifest there.

    The file may be someone else's: its hashes say only that its parts belong together. Raises
    :class:`ConfigurationError`: ``BASELINE_SOURCES`` for a name that no candidate's folder can hold,
    ``BASELINE_MANIFEST`` for a manifest that ``candidate.yaml`` would be refused for.
    """
    folder.mkdir()
    for name, text in sources.items():
        _write(name, text, folder)
    data = msgspec.json.decode(to_json(manifest))  # lists and texts, as a document has them
    version = version_finding(data)
    findings = (
        [version]
        if version is not None
        else [*_text_findings(data), *manifest_findings(data, Path(os.path.realpath(folder)))]
    )
    if findings:
        message = f"the baseline's candidate_manifest is no valid one: {_told(findings)}"
        raise ConfigurationError(Code.BASELINE_MANIFEST, message)
    return LoadedManifest(
        manifest=manifest,
        folder=folder.as_posix(),
        path=(folder / MANIFEST_FILE).as_posix(),
        sha256=canonical_sha256(manifest),
    )


def _write(name: str, text: str, folder: Path) -> None:
    path = PurePosixPath(name)
    shown = printable(found_text(name))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        message = f"the baseline holds a source named {shown}; allowed: names below a folder"
        raise ConfigurationError(Code.BASELINE_SOURCES, message)
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        message = f"the baseline holds a source named {shown}, which cannot be written: {why}"
        raise ConfigurationError(Code.BASELINE_SOURCES, message) from error


def _text_findings(value: Plain, path: KeyPath = ()) -> Iterator[Finding]:
    """Yield each text that no document can hold, of keys without a pattern among them."""
    if isinstance(value, str):
        if problem := text_problem(value):
            yield path, problem
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in pairs:
        yield from _text_findings(inner, (*path, step))


def _told(findings: list[Finding]) -> str:
    path, text = findings[0]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return printable(f"{key_text(path)}: {text}{more}")
