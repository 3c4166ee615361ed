"""Attempts as they lie on disk: their names, their files, and what may be believed of them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from mini_kv.core.canonical import canonical_sha256, sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.printable import printable
from mini_kv.core.record import from_json
from mini_kv.core.records.archived_files import ATTEMPT_FILE, ENVIRONMENT_FILE, SOURCES_FOLDER
from mini_kv.core.records.attempt import Attempt, IndexRow
from mini_kv.core.records.card import IDENTIFIER, SCHEMA_VERSION, is_readable_version
from mini_kv.core.records.environment import Environment
from mini_kv.core.records.results import Finding, Status
from mini_kv.system.archive_folder import PARTIAL_SUFFIX, list_files, reason
from mini_kv.system.files import read_regular, sha256_file

MAX_RECORD_BYTES = 256 << 20

ATTEMPT_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
TASK_ID = re.compile(IDENTIFIER)

# Axes without which nothing was shown, and what each must say.
PROOF_AXES = {
    "build": frozenset({Status.PASS}),
    "numerics": frozenset({Status.PASS}),
    # A card may demand no contract check at all; then there is none to pass.
    "contract": frozenset({Status.PASS, Status.SKIPPED}),
}
# Speed against a baseline is not correctness.
SPEED_AXES = frozenset({"regression"})
BROKEN = frozenset({Status.FAIL, Status.INVALID, Status.ERROR})
CORRECT_EXIT_CODES = frozenset({0, 6})


def is_correct(attempt: Attempt) -> bool:
    """Say whether the attempt showed a correct candidate, whatever its speed against a baseline.

    The build, numerics and contract axes must stand there and pass; no other axis but the regression
    gate's may have failed.
    """
    by_name = {axis.name: axis.status for axis in attempt.axes}
    if len(by_name) != len(attempt.axes) or attempt.exit_code not in CORRECT_EXIT_CODES:
        return False
    if any(by_name.get(name) not in allowed for name, allowed in PROOF_AXES.items()):
        return False
    return not any(status in BROKEN for name, status in by_name.items() if name not in SPEED_AXES)


def describe_environment(environment: Environment) -> str:
    """Return the machine in a few words, for tables: device and torch."""
    gpus = {gpu.name for gpu in environment.gpus}
    device = ", ".join(sorted(gpus)) if environment.device == "cuda" and gpus else environment.cpu_model
    return f"{device}, torch {environment.torch}"


def read_record_bytes(path: Path) -> bytes:
    """Return a record's bytes; ``OSError`` or ``ValueError`` for links, devices, sizes no record has."""
    return read_regular(path, MAX_RECORD_BYTES)


def parse_attempt(folder: Path) -> tuple[Attempt, str]:
    """Return the attempt in ``folder`` and the SHA-256 of its ``attempt.json``.

    Raises ``OSError`` or ``ValueError`` (``msgspec.ValidationError`` is one) with the reason.
    """
    raw = read_record_bytes(folder / ATTEMPT_FILE.name)
    attempt = from_json(raw, Attempt)
    if not is_readable_version(attempt.schema_version):
        major = SCHEMA_VERSION.partition(".")[0]
        raise ValueError(f"its schema version {attempt.schema_version} is not {major}.x.y")
    return attempt, sha256_bytes(raw)


def read_attempt(folder: Path) -> tuple[Attempt, str]:
    """Like :func:`parse_attempt`, for a folder a person named; raises ``ConfigurationError``."""
    if folder.name.endswith(PARTIAL_SUFFIX):
        raise ConfigurationError(Code.ATTEMPT_UNFINISHED, f"{folder} is an attempt that was never finished.")
    try:
        return parse_attempt(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{folder} holds no {ATTEMPT_FILE.name}, so it is not the folder of an attempt."
        raise ConfigurationError(Code.NOT_AN_ATTEMPT, message) from error
    except (OSError, ValueError, msgspec.DecodeError) as error:
        message = f"{folder / ATTEMPT_FILE.name} cannot be read as an attempt: {reason(error)}."
        raise ConfigurationError(Code.ATTEMPT_UNREADABLE, message) from error


def check_files(folder: Path, attempt: Attempt) -> tuple[Finding, ...]:
    """Re-hash every file of an attempt; return one finding for each that is changed, missing or added."""
    found, strange = list_files(folder)
    found.pop(ATTEMPT_FILE.name, None)
    findings: list[Finding] = []
    for file in sorted(attempt.files, key=lambda file: file.path):
        facts = found.pop(file.path, None)
        if facts is None:
            findings.append(Finding(code=Code.FILE_MISSING, message=f"{file.path} is missing."))
            continue
        digest = sha256_file(folder / file.path) if facts.st_size == file.size_bytes else None
        if digest != file.sha256:
            evidence = (
                f"promised: {file.size_bytes} bytes, sha256 {file.sha256}",
                f"found: {facts.st_size} bytes, sha256 {digest or 'not computed'}",
            )
            message = f"{file.path} was changed."
            findings.append(Finding(code=Code.FILE_CHANGED, message=message, evidence=evidence))
    findings += [
        Finding(code=Code.FILE_ADDED, message=f"{printable(path)} was not there when the attempt ended.")
        for path in sorted((*found, *strange))
    ]
    return tuple(findings)


def index_row(folder: Path, attempt: Attempt, attempt_sha256: str) -> IndexRow:
    """Return what the index keeps of an attempt that lies in ``<artifacts>/<task>/<attempt>``."""
    try:
        raw = read_record_bytes(folder / ENVIRONMENT_FILE.name)
        environment = describe_environment(from_json(raw, Environment))
    except (OSError, ValueError, msgspec.DecodeError):
        environment = None  # an attempt that failed early may not have come so far
    return IndexRow(
        task_id=attempt.task_id,
        attempt_id=attempt.attempt_id,
        path=f"{folder.parent.name}/{folder.name}",
        attempt_sha256=attempt_sha256,
        candidate_id=attempt.candidate_id,
        candidate_version=attempt.candidate_version,
        device=attempt.device,
        suite_sha256=attempt.suite_sha256,
        environment_key=attempt.environment_key,
        environment=environment,
        started_at=attempt.started_at,
        complete=attempt.complete,
        accepted=attempt.accepted,
        correct=is_correct(attempt),
        benchmark_stable=attempt.benchmark_stable,
        geomean_speedup=attempt.geomean_speedup,
        primary_p50_us=attempt.primary_p50_us,
        exit_code=attempt.exit_code,
        candidate_folder=attempt.candidate_folder,
        code_sha256=_code_sha256(attempt),
    )


def _code_sha256(attempt: Attempt) -> str | None:
    prefix = SOURCES_FOLDER + "/"
    files = {file.path: file.sha256 for file in attempt.files if file.path.startswith(prefix)}
    return canonical_sha256(files) if files else None
