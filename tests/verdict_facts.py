"""What many tests of whole runs look at: a verdict's axes and codes, its archive, a baseline made of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fake_project import FakeProject
from mini_kv.artifacts import check_files, promote_baseline, read_attempt
from mini_kv.core.records.archived_files import ALWAYS, ATTEMPT_FILE, ATTEMPT_FILES, SOURCES_FOLDER
from mini_kv.core.records.attempt import Attempt
from mini_kv.core.records.results import Status
from mini_kv.pipeline import Verdict

WRONG = "payloads = [bytes(len(payloads[0])), *payloads[1:]]"
SLOWER = "reply = change(reply, samples_us=tuple(1.2 * s for s in reply.samples_us))"


def axis(verdict: Verdict, name: str) -> tuple[Status, str | None]:
    found = next(axis for axis in verdict.attempt.axes if axis.name == name)
    return found.status, found.code


def codes(verdict: Verdict) -> list[str]:
    return [finding.code for finding in verdict.attempt.findings]


def assert_archived(verdict: Verdict) -> Attempt:
    attempt, _ = read_attempt(verdict.folder)
    assert attempt == verdict.attempt
    assert check_files(verdict.folder, attempt) == ()
    names = {file.path for file in attempt.files}
    known = {file.name for file in ATTEMPT_FILES}
    assert {name for name in names if not name.startswith(f"{SOURCES_FOLDER}/")} <= known
    assert {file.name for file in ATTEMPT_FILES if file.when == ALWAYS} <= {ATTEMPT_FILE.name, *names}
    return attempt


def baseline_of(project: FakeProject) -> Path:
    verdict = project.verify()
    output = project.root / "baseline.json"
    promote_baseline(verdict.folder, output, now=datetime(2026, 1, 1, tzinfo=UTC))
    return output
