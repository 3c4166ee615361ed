"""What ``attempt.json`` says against what the records next to it say: an edit of one of them alone shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from mini_kv.artifacts.attempts import ATTEMPT_ID, read_record_bytes
from mini_kv.core.record import Record, from_json
from mini_kv.core.records.archived_files import (
    BENCHMARK_FILE,
    BUILD_FILE,
    CARD_FILE,
    CORRECTNESS_FILE,
    ENVIRONMENT_FILE,
    MANIFEST_FILE,
    RecordFile,
)
from mini_kv.core.records.attempt import Attempt
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.card import CandidateManifest, TaskCard
from mini_kv.core.records.environment import Environment, key_follows
from mini_kv.core.records.results import Status
from mini_kv.core.rules.statistics import follows_from_samples, geometric_mean
from mini_kv.core.rules.suite import suite_hash
from mini_kv.system.archive_folder import reason

_R = TypeVar("_R", bound=Record)


def contradictions(folder: Path, attempt: Attempt) -> tuple[str, ...]:
    """Return where an attempt that says it is correct is not what its own records show; one sentence each.

    The records were re-hashed already. One that is missing or unreadable shows nothing, which is no proof.
    """
    try:
        card = _record(folder, attempt, CARD_FILE)
        manifest = _record(folder, attempt, MANIFEST_FILE)
        environment = _record(folder, attempt, ENVIRONMENT_FILE)
        build = _record(folder, attempt, BUILD_FILE)
        correctness = _record(folder, attempt, CORRECTNESS_FILE)
        timed = None
        if attempt.benchmark_stable is not None or attempt.geomean_speedup is not None:
            timed = _record(folder, attempt, BENCHMARK_FILE)
    except (OSError, ValueError) as error:
        return (f"it says that it is correct, but {reason(error)}",)
    found = [*of_parts(attempt, manifest, environment, timed), *_of_card(attempt, card)]
    found += _differ("build key", attempt.build_key, build.key)
    for what, status in (("build", build.status), ("correctness", correctness.status)):
        found += _differ(what, Status.PASS.value, status.value)
    return tuple(found)


def of_parts(
    attempt: Attempt, manifest: CandidateManifest, environment: Environment, timed: Benchmark | None
) -> Iterator[str]:
    """Yield what the parts that a baseline carries too say otherwise; ``timed`` where there are times."""
    second = attempt.started_at[:19].replace("-", "").replace(":", "") + "Z"
    if not ATTEMPT_ID.fullmatch(attempt.attempt_id):
        yield f"its id is {attempt.attempt_id}, which is no attempt's"
    else:
        yield from _differ("id's time", attempt.attempt_id[:16], second)
    yield from _differ("candidate id", attempt.candidate_id, manifest.candidate_id)
    yield from _differ("candidate version", attempt.candidate_version, manifest.version)
    yield from _differ("operator", attempt.operator, manifest.operator)
    yield from _differ("environment key", attempt.environment_key, environment.key)
    if not key_follows(environment):
        yield f"the environment key {environment.key} does not follow from the environment that it stands for"
    yield from _differ("device", attempt.device, environment.device)
    if timed is None:
        return
    primary = [case.candidate for case in timed.cases if case.case_id == timed.primary_case_id]
    p50_us = primary[0].p50_us if primary and primary[0] is not None else None
    yield from _differ("timed device", attempt.device, timed.device)
    yield from _differ("benchmark's stability", attempt.benchmark_stable, timed.stable)
    yield from _differ("speedup", attempt.geomean_speedup, timed.geomean_speedup)
    yield from _differ("primary P50", attempt.primary_p50_us, p50_us)
    yield from _of_samples(timed)


def _of_samples(timed: Benchmark) -> Iterator[str]:
    speedups: list[float] = []
    for case in timed.cases:
        if case.candidate is None or case.reference is None:
            continue
        if not (follows_from_samples(case.candidate) and follows_from_samples(case.reference)):
            yield f"the figures of {case.case_id} do not follow from its samples"
            return
        speedups.append(case.reference.p50_us / case.candidate.p50_us)
        if not (0.0 < speedups[-1] < math.inf and _equal(case.speedup, speedups[-1])):
            yield f"the speedup of {case.case_id} does not follow from its times"
            return
    if len(speedups) == len(timed.cases) > 0 and not _equal(timed.geomean_speedup, geometric_mean(speedups)):
        yield "its mean speedup does not follow from those of its cases"


def _equal(claimed: float | None, follows: float) -> bool:
    return claimed is not None and math.isclose(claimed, follows, rel_tol=1e-9)


def _of_card(attempt: Attempt, card: TaskCard) -> Iterator[str]:
    yield from _differ("task id", attempt.task_id, card.task_id)
    yield from _differ("operator", attempt.operator, card.operator)
    yield from _differ("operator version", attempt.operator_version, card.operator_version)
    yield from _differ("suite hash", attempt.suite_sha256, suite_hash(card))


def _differ(what: str, claimed: object, recorded: object) -> Iterator[str]:
    if claimed != recorded:
        yield f"it says that its {what} is {claimed}, its records say {recorded}"


def _record(folder: Path, attempt: Attempt, wanted: RecordFile[_R]) -> _R:
    if all(file.path != wanted.name for file in attempt.files):
        raise ValueError(f"it holds no {wanted.name}")
    return from_json(read_record_bytes(folder / wanted.name), wanted.record)
