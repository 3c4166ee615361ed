"""What a profiling run is given and what it leaves, and the record and files that are made of both."""

from __future__ import annotations

from dataclasses import dataclass

from mini_kv.compiler.snapshot import Snapshot
from mini_kv.core.codes import Code, Fault
from mini_kv.core.errors import ExitCode
from mini_kv.core.records.archived_files import (
    BUILD_FILE,
    CARD_FILE,
    ENVIRONMENT_FILE,
    LOGS_FOLDER,
    MANIFEST_FILE,
    RAW_PAGE_FILE,
    REPORT_FILE,
)
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import SCHEMA_VERSION, Case
from mini_kv.core.records.correctness import CaseResult, Numerics
from mini_kv.core.records.profile import REPLAY_NOTE, KernelFacts, Profile, Stage
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.suite import suite_hash
from mini_kv.profiling.ncu import Capture, ProfileArchive
from mini_kv.run import RunInputs

# What a failure means to the caller: the environment's, the build's, the candidate's, or the capture's.
_STAGE_CODES: dict[Stage, ExitCode] = {
    "profiler": ExitCode.CONFIGURATION,
    "build": ExitCode.COMPILATION,
    "load": ExitCode.COMPILATION,
    "correctness": ExitCode.CORRECTNESS,
    "capture": ExitCode.BENCHMARK,
    "analysis": ExitCode.BENCHMARK,
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything that was read and found good before anything ran."""

    run: RunInputs
    case: Case
    seed: str
    snapshot: Snapshot
    timeout_s: float


@dataclass(kw_only=True)
class ProfileEvidence:
    """What the stages have left so far; archived whatever happens."""

    stage: Stage = "profiler"
    failure: Finding | None = None
    build: Build | None = None
    reference_sha256: str | None = None
    gate: CaseResult | None = None
    capture: Capture | None = None
    numerics: Numerics | None = None
    facts: KernelFacts | None = None


class Stop(Exception):
    """A stage ended the run; the finding says why and is archived."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.code)
        self.finding = finding


def _of_the_machine(failure: Finding, stage: Stage) -> bool:
    # In the other stages a code may come out of the candidate's process, which can name any.
    code = Code.named(failure.code) if stage in ("profiler", "capture") else None
    if code is None:
        return False
    return code.facts.fault is Fault.MACHINE and code.facts.exit_code is ExitCode.CONFIGURATION


def add_files(inputs: Inputs, evidence: ProfileEvidence, archive: ProfileArchive) -> None:
    """Write everything but ``profile.json`` into the archive."""
    archive.add_json(CARD_FILE.name, inputs.run.card.card)
    archive.add_json(MANIFEST_FILE.name, inputs.run.manifest.manifest)
    archive.add_json(ENVIRONMENT_FILE.name, inputs.run.environment)
    archive.add_tree(inputs.snapshot.files)
    if evidence.build is not None:
        archive.add_json(BUILD_FILE.name, evidence.build)
    capture = evidence.capture
    if capture is None:
        return
    archive.add_tree(capture.logs, LOGS_FOLDER)
    if capture.report is not None:
        archive.add_bytes(REPORT_FILE.name, capture.report)
    if capture.raw_csv is not None:
        archive.add_bytes(RAW_PAGE_FILE.name, capture.raw_csv)


def make_record(
    inputs: Inputs, evidence: ProfileEvidence, archive: ProfileArchive, elapsed_s: float
) -> Profile:
    """Return the record of a run, passed or failed, with the exit code that it means."""
    card, manifest, failure = inputs.run.card.card, inputs.run.manifest.manifest, evidence.failure
    environmental = failure is not None and _of_the_machine(failure, evidence.stage)
    status = Status.PASS if failure is None else Status.ERROR if environmental else Status.FAIL
    code = ExitCode.ACCEPTED
    if failure is not None:
        code = ExitCode.CONFIGURATION if environmental else _STAGE_CODES[evidence.stage]
    return Profile(
        schema_version=SCHEMA_VERSION,
        profile_id=archive.profile_id,
        status=status,
        stage=evidence.stage,
        failure=failure,
        exit_code=int(code),
        note=REPLAY_NOTE,
        task_id=card.task_id,
        operator_version=card.operator_version,
        case_id=inputs.case.id,
        params=inputs.case.params,
        seed=inputs.seed,
        candidate_id=manifest.candidate_id,
        candidate_version=manifest.version,
        candidate_folder=inputs.run.manifest.folder,
        device=inputs.run.device,
        suite_sha256=suite_hash(card),
        card_sha256=inputs.run.card.sha256,
        manifest_sha256=inputs.run.manifest.sha256,
        source_sha256=inputs.snapshot.sha256,
        reference_sha256=evidence.reference_sha256,
        build_key=evidence.build.key if evidence.build else None,
        library_sha256=evidence.build.library_sha256 if evidence.build else None,
        environment_key=inputs.run.environment.key,
        started_at=archive.started_at,
        elapsed_s=round(elapsed_s, 3),
        profiler=evidence.capture.run if evidence.capture else None,
        gate=evidence.gate,
        numerics=evidence.numerics,
        facts=evidence.facts,
        files=(),
    )
