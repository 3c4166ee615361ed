"""Baselines: attempts promoted by hand into one file that carries its samples, sources and hashes."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mini_kv.artifacts.attempts import (
    check_files,
    is_correct,
    read_attempt,
    read_record_bytes,
)
from mini_kv.artifacts.contradictions import contradictions, of_parts
from mini_kv.artifacts.index import indexed_sha256
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, IntegrityError
from mini_kv.core.record import Record, from_json, to_json
from mini_kv.core.records.archived_files import (
    ATTEMPT_FILE,
    BENCHMARK_FILE,
    CARD_FILE,
    ENVIRONMENT_FILE,
    MANIFEST_FILE,
    SOURCES_FOLDER,
    RecordFile,
)
from mini_kv.core.records.attempt import Attempt, Baseline
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.card import SCHEMA_VERSION, TaskCard, is_readable_version
from mini_kv.core.records.results import Status
from mini_kv.core.rules.quality import judge_quality
from mini_kv.system.archive_folder import reason, utc_text
from mini_kv.system.files import fsync_folder, write_bytes_atomic

_R = TypeVar("_R", bound=Record)

# Part of a baseline: the file of the attempt that it was read from.
_PARTS = {
    "candidate_manifest": MANIFEST_FILE.name,
    "environment": ENVIRONMENT_FILE.name,
    "benchmark": BENCHMARK_FILE.name,
}


# ---------------------------------------------------------------------------- promotion


def promote_baseline(attempt_folder: Path, output: Path, *, now: datetime, replace: bool = False) -> Baseline:
    """Write ``output`` from a complete, correct, stable attempt; return what was written.

    Raises ``IntegrityError`` where the attempt's files are not those that were archived, and
    ``ConfigurationError`` with one sentence where the attempt does not qualify, or ``output`` exists and
    ``replace`` was not asked for or would overwrite what is no baseline.
    """
    if os.path.lexists(output):
        _refuse_overwriting(output, replace)
    folder = Path(os.path.abspath(attempt_folder))
    if Path(os.path.realpath(output)).is_relative_to(os.path.realpath(folder)):
        message = f"{output} lies in the attempt's own folder, which is never changed; allowed: any other."
        raise ConfigurationError(Code.BASELINE_UNWRITABLE, message)
    attempt, attempt_sha256 = read_attempt(folder)
    _require_unchanged(folder, attempt, attempt_sha256)
    _require_eligible(attempt)
    benchmark = _archived(folder, attempt, BENCHMARK_FILE)
    environment = _archived(folder, attempt, ENVIRONMENT_FILE)
    card = _archived(folder, attempt, CARD_FILE)
    _require_consistent(folder, attempt)
    _require_stable(attempt, benchmark, card)
    sources = _sources(folder, attempt)
    baseline = Baseline(
        schema_version=SCHEMA_VERSION,
        promoted_at=utc_text(now),
        attempt=attempt,
        attempt_sha256=attempt_sha256,
        candidate_manifest=_archived(folder, attempt, MANIFEST_FILE),
        environment=environment,
        benchmark=benchmark,
        sources=sources,
        sources_sha256={name: sha256_bytes(text.encode()) for name, text in sources.items()},
    )
    raw = to_json(baseline)
    _verify(raw, output)  # what was just made must pass what every later reader demands
    _write(output, raw, replace)
    return baseline


def _refuse_overwriting(output: Path, replace: bool) -> None:
    if output.is_dir():
        raise ConfigurationError(
            Code.BASELINE_UNWRITABLE, f"{output} is a folder; allowed: the file to write."
        )
    if not replace:
        raise _exists(output)
    try:
        there = msgspec.json.decode(read_record_bytes(output))
    except (OSError, ValueError, msgspec.DecodeError, RecursionError):
        there = None
    # An older version's or an edited one may be replaced: what it is can still be told.
    if not (isinstance(there, dict) and {"attempt", "benchmark"} <= there.keys()):
        message = f"{output} is no baseline, which is all that --replace overwrites."
        raise ConfigurationError(Code.BASELINE_EXISTS, message)


def _exists(output: Path) -> ConfigurationError:
    message = f"{output} exists already and is not overwritten; --replace does so on purpose."
    return ConfigurationError(Code.BASELINE_EXISTS, message)


def _refuse(attempt: Attempt, why: str) -> ConfigurationError:
    return ConfigurationError(
        Code.NOT_PROMOTABLE, f"Attempt {attempt.attempt_id} cannot become a baseline: {why}."
    )


def _require_unchanged(folder: Path, attempt: Attempt, attempt_sha256: str) -> None:
    named = f"Attempt {attempt.attempt_id}"
    try:
        changes = [finding.message for finding in check_files(folder, attempt)]
    except OSError as error:
        raise IntegrityError(
            Code.ATTEMPT_CHANGED, f"{named} cannot be re-hashed: {reason(error)}."
        ) from error
    known = indexed_sha256(folder.parent.parent, attempt.task_id, attempt.attempt_id)
    if known not in (None, attempt_sha256):
        changes.append(f"{ATTEMPT_FILE.name} is not what the index recorded.")
    if changes:
        raise IntegrityError(Code.ATTEMPT_CHANGED, f"{named} is not what was archived: {' '.join(changes)}")


def _require_eligible(attempt: Attempt) -> None:
    if attempt.exit_code != 0 or not attempt.accepted:
        raise _refuse(attempt, f"it was not accepted (exit code {attempt.exit_code})")
    if not attempt.complete:
        raise _refuse(attempt, "it is not complete (not everything was asked for, such as the benchmark)")
    if not is_correct(attempt):
        broken = ", ".join(f"{axis.name} {axis.status.value}" for axis in attempt.axes) or "none"
        raise _refuse(attempt, f"its axes do not show a correct candidate (axes: {broken})")
    if attempt.environment_key is None or attempt.device is None:
        raise _refuse(attempt, "it does not say in which environment it ran")
    if attempt.benchmark_stable is not True:
        what = "its times are not stable" if attempt.benchmark_stable is False else "it has no benchmark"
        raise _refuse(attempt, what)


def _archived(folder: Path, attempt: Attempt, wanted: RecordFile[_R]) -> _R:
    if all(file.path != wanted.name for file in attempt.files):
        raise _refuse(attempt, f"it holds no {wanted.name}")
    try:
        return from_json(read_record_bytes(folder / wanted.name), wanted.record)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise _refuse(attempt, f"its {wanted.name} cannot be read ({reason(error)})") from error


def _require_consistent(folder: Path, attempt: Attempt) -> None:
    if found := contradictions(folder, attempt):
        message = f"Attempt {attempt.attempt_id} contradicts its own records: {'; '.join(found)}."
        raise IntegrityError(Code.ATTEMPT_CONTRADICTED, message)


def _require_stable(attempt: Attempt, benchmark: Benchmark, card: TaskCard) -> None:
    timed = tuple(case.case_id for case in benchmark.cases)
    if sorted(timed) != sorted(card.benchmark.case_ids):
        raise _refuse(attempt, f"it timed {', '.join(timed) or 'nothing'}, not what the card plans")
    if benchmark.status is not Status.PASS or not benchmark.stable or benchmark.device != attempt.device:
        raise _refuse(
            attempt, f"its benchmark is {benchmark.status.value} and not stable on {attempt.device}"
        )
    for case in benchmark.cases:
        if (
            case.candidate is None
            or case.reference is None
            or case.status is not Status.PASS
            or not case.stable
        ):
            raise _refuse(attempt, f"case {case.case_id} was not timed well")
        if findings := judge_quality(case.candidate, case.reference, benchmark.device):
            raise _refuse(attempt, f"case {case.case_id} is unstable ({findings[0].message.rstrip('.')})")


def _sources(folder: Path, attempt: Attempt) -> dict[str, str]:
    prefix = SOURCES_FOLDER + "/"
    paths = sorted(file.path for file in attempt.files if file.path.startswith(prefix))
    if not paths:
        raise _refuse(attempt, "it holds no sources")
    sources: dict[str, str] = {}
    for path in paths:
        try:
            sources[path.removeprefix(prefix)] = read_record_bytes(folder / path).decode()
        except UnicodeDecodeError as error:
            raise _refuse(attempt, f"{path} is not UTF-8 text") from error
    return sources


def _write(output: Path, raw: bytes, replace: bool) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if replace:
            write_bytes_atomic(output, raw)
            return
        # A hard link is refused where the name exists: nothing that appeared meanwhile is overwritten.
        fresh = output.with_name(f".{output.name}.{os.getpid()}.new")
        write_bytes_atomic(fresh, raw)
        try:
            _name(fresh, output)
        finally:
            fresh.unlink(missing_ok=True)
        fsync_folder(output.parent)
    except FileExistsError as error:
        raise _exists(output) from error
    except OSError as error:
        message = f"{output} cannot be written: {reason(error)}."
        raise ConfigurationError(Code.BASELINE_UNWRITABLE, message) from error


def _name(fresh: Path, output: Path) -> None:
    """Give ``fresh`` the name ``output``. Raises ``FileExistsError`` where something has that name."""
    try:
        os.link(fresh, output)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links: the name is claimed first; what stands there is one's own then.
        os.close(os.open(output, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        try:
            os.replace(fresh, output)
        except OSError:
            output.unlink(missing_ok=True)
            raise


# ---------------------------------------------------------------------------- reading


def load_baseline(path: Path) -> Baseline:
    """Return the baseline in ``path``, as :func:`read_baseline` does, without its file's hash."""
    return read_baseline(path)[0]


def read_baseline(path: Path) -> tuple[Baseline, str]:
    """Return the baseline in ``path``, checked against every hash it carries, and the SHA-256 of its bytes.

    The parts are hashed as they stand in the file, not as this version's records would write them, so a
    baseline outlives fields that are added later. Raises ``ConfigurationError`` for a file that is no
    baseline of this major version and ``IntegrityError`` for one that was edited.
    """
    try:
        raw = read_record_bytes(Path(os.path.realpath(path)))  # Path.resolve raises on links in a ring
    except (OSError, ValueError) as error:
        message = f"The baseline {path} cannot be read: {reason(error)}."
        raise ConfigurationError(Code.BASELINE_UNREADABLE, message) from error
    return _verify(raw, path), sha256_bytes(raw)


def _verify(raw: bytes, path: Path) -> Baseline:
    try:
        baseline = from_json(raw, Baseline)
        parts: dict[str, Any] = msgspec.json.decode(raw)
    except (ValueError, msgspec.DecodeError) as error:
        message = f"{path} is not a baseline: {error}."
        raise ConfigurationError(Code.BASELINE_INVALID, message) from error
    if not is_readable_version(baseline.schema_version):
        major = SCHEMA_VERSION.partition(".")[0]
        message = f"{path} has schema version {baseline.schema_version}; this mini-kv reads {major}.x.y."
        raise ConfigurationError(Code.BASELINE_VERSION, message)
    if changed := _changed_parts(baseline, parts):
        message = f"The baseline {path} was edited: {', '.join(changed)} do not match their hashes."
        raise IntegrityError(Code.BASELINE_CHANGED, message)
    _require_eligible(baseline.attempt)
    if found := _contradictions(baseline):
        message = f"The baseline {path} contradicts itself: {'; '.join(found)}."
        raise IntegrityError(Code.BASELINE_CONTRADICTED, message)
    return baseline


def _contradictions(baseline: Baseline) -> list[str]:
    """Return what no promotion would have let pass; whoever edits a part can hash it again as well."""
    timed = baseline.benchmark
    found = list(of_parts(baseline.attempt, baseline.candidate_manifest, baseline.environment, timed))
    names = [case.case_id for case in timed.cases]
    if not names or len(set(names)) != len(names):
        found.append("its benchmark has no cases, or one twice")
    if timed.status is not Status.PASS or not timed.stable:
        found.append("its benchmark is not stable")
    found += [
        f"{case.case_id} was not timed well"
        for case in timed.cases
        if case.status is not Status.PASS or not case.stable or not (case.candidate and case.reference)
    ]
    return found


def _changed_parts(baseline: Baseline, parts: dict[str, Any]) -> list[str]:
    promised = {file.path: file.sha256 for file in baseline.attempt.files}
    changed = [] if sha256_bytes(to_json(parts["attempt"])) == baseline.attempt_sha256 else ["attempt"]
    changed += [
        part for part, name in _PARTS.items() if sha256_bytes(to_json(parts[part])) != promised.get(name)
    ]
    archived = {name for name in promised if name.startswith(SOURCES_FOLDER + "/")}
    embedded = {
        f"{SOURCES_FOLDER}/{name}": sha256_bytes(text.encode()) for name, text in baseline.sources.items()
    }
    changed += sorted(name for name in archived | embedded.keys() if embedded.get(name) != promised.get(name))
    if {f"{SOURCES_FOLDER}/{name}": digest for name, digest in baseline.sources_sha256.items()} != embedded:
        changed.append("sources_sha256")
    return changed
