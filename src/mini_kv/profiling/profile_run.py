"""``profile``: gate one case, capture its kernel once, check what came of it, archive all of it.

Compilers and the gate's candidate run in the cage. The profiled process cannot: the profiler lives inside
it and talks out of it. So only what passed the gate is profiled, and what it returned is judged again.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mini_kv import task_card
from mini_kv.compiler.snapshot import read_candidate
from mini_kv.core.canonical import fixed_seed
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import Case, CaseKind, DeviceKind
from mini_kv.core.records.correctness import CaseResult
from mini_kv.core.records.isolation import IsolationLevel
from mini_kv.core.records.profile import KernelFacts, Profile
from mini_kv.core.records.results import Finding, Status
from mini_kv.profiling import analysis, session
from mini_kv.profiling.evidence import Inputs, ProfileEvidence, Stop, add_files, make_record
from mini_kv.profiling.ncu import Capture, ProfileArchive, find_ncu
from mini_kv.run import build_candidate, read_inputs, start_crew
from mini_kv.system.gpu import read_gpus
from mini_kv.system.processes import adopt_orphans


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """What the user asked for. ``case_id`` of ``None`` takes the card's primary benchmark case.

    A profile is of a GPU; ``device`` is ``cpu`` only where the profiler is a stand-in.
    """

    task: Path
    candidate: Path | None
    case_id: str | None
    artifacts_root: Path | None
    timeout_s: float
    ncu: str | None = None
    device: DeviceKind = "cuda"


def profile_case(request: ProfileRequest, progress: Progress) -> tuple[Profile, Path]:
    """Profile one case; return the archived record and its folder.

    What goes wrong once the inputs are known good is a failure in the record. Raises ``MiniKvError`` for
    wrong inputs, and for a fault of mini-kv itself; nothing is archived then.
    """
    started = time.monotonic()
    inputs = _read_inputs(request)
    archive = ProfileArchive(
        inputs.run.artifacts_root,
        inputs.run.card.card.task_id,
        clock=lambda: datetime.now(UTC),
        random_bytes=secrets.token_bytes,
    )
    evidence = ProfileEvidence()
    try:
        _run_stages(request, inputs, evidence, progress)
        add_files(inputs, evidence, archive)
        profile = archive.finish(make_record(inputs, evidence, archive, time.monotonic() - started))
    except BaseException:
        archive.discard()
        raise
    return profile, archive.folder


def _run_stages(
    request: ProfileRequest, inputs: Inputs, evidence: ProfileEvidence, progress: Progress
) -> None:
    adopt_orphans()
    try:
        ncu = find_ncu(request.ncu, inputs.run.toolchain.nvcc, os.environ)
        if isinstance(ncu, Finding):
            raise Stop(ncu)
        with start_crew(inputs.run, contract="never") as crew:
            evidence.stage = "build"
            evidence.build = build_candidate(inputs.run, progress)
            _demand_built(inputs, evidence.build)
            evidence.stage = "load"
            evidence.reference_sha256 = session.load(crew, inputs, evidence.build, progress)
            evidence.stage = "correctness"
            evidence.gate = session.gate(crew, inputs, progress)
            _demand_passed(evidence.gate)
            evidence.stage = "capture"
            evidence.capture = session.capture_case(crew, inputs, evidence.build, ncu, progress=progress)
            if evidence.capture.failure is not None:
                raise Stop(evidence.capture.failure)
            evidence.stage = "correctness"
            outputs = evidence.capture.outputs
            evidence.numerics = session.check_profiled_call(crew.oracle, inputs, outputs)
        evidence.stage = "analysis"
        evidence.facts = _analyse(inputs, evidence.capture)
        progress(Event(stage="profile", done=3, total=3, detail="captured"))
    except Stop as stop:
        evidence.failure = stop.finding
        progress(Event(stage="profile", done=3, total=3, detail=stop.finding.code))


def _read_inputs(request: ProfileRequest) -> Inputs:
    if request.device == "cuda" and not read_gpus(os.environ).gpus:
        raise ConfigurationError(
            Code.GPU_MISSING, "A profile is of a GPU's kernel, and no GPU with a driver is visible here."
        )
    run = read_inputs(
        task=request.task,
        candidate=request.candidate,
        device=request.device,
        artifacts_root=request.artifacts_root,
        require_isolation=IsolationLevel.NONE,
    )
    case = _case(run.card, request.case_id)
    return Inputs(
        run=run,
        case=case,
        seed=f"{fixed_seed(run.card.card.task_id, case.id):016x}",
        snapshot=read_candidate(run.root / run.manifest.folder),
        timeout_s=request.timeout_s,
    )


def _case(card: task_card.LoadedCard, case_id: str | None) -> Case:
    wanted = case_id if case_id is not None else card.card.benchmark.primary_case_id
    legal = [case for case in card.card.cases if case.kind is not CaseKind.ILLEGAL]
    for case in legal:
        if case.id == wanted:
            return case
    timed = ", ".join(card.card.benchmark.case_ids)
    raise ConfigurationError(
        Code.CASE_UNKNOWN,
        f"{card.path} has no legal case '{wanted}'; allowed are its {len(legal)} legal cases, "
        f"{timed} among them.",
    )


def _demand_built(inputs: Inputs, build: Build) -> None:
    if build.source_sha256 != inputs.snapshot.sha256:
        raise ConfigurationError(
            Code.SOURCES_CHANGED, f"Files in {inputs.run.manifest.folder} changed while they were being read."
        )
    if build.status is not Status.PASS:
        raise Stop(
            Finding(
                code=build.code or Code.BUILD_FAILED,
                message=build.message or "The candidate does not build.",
                evidence=(build.first_error,) if build.first_error else (),
            )
        )


def _demand_passed(result: CaseResult) -> None:
    if result.status is Status.PASS:
        return
    message = f"Case '{result.case_id}' is not correct, so its profile would mean nothing: {result.message}"
    raise Stop(Finding(code=result.code or Code.CASE_FAILED, message=message))


def _analyse(inputs: Inputs, capture: Capture) -> KernelFacts:
    assert capture.raw_csv is not None
    found = analysis.analyse(
        capture.raw_csv.decode("utf-8", "replace"), inputs.run.manifest.manifest.kernel_name_regex
    )
    if isinstance(found, Finding):
        raise Stop(found)
    return found
