"""``verify``: one card in, one archived verdict out. The whole story on one screen, stages elsewhere."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from mini_kv import artifacts, correctness, regression
from mini_kv.core import protocol as p
from mini_kv.core.errors import ExitCode
from mini_kv.core.progress import Event, Progress
from mini_kv.core.record import Record
from mini_kv.core.records import archived_files as files
from mini_kv.core.records.attempt import Attempt, Baseline
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import SCHEMA_VERSION, DeviceRequest, TaskCard
from mini_kv.core.records.correctness import Correctness
from mini_kv.core.records.isolation import IsolationLevel
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.regression import Regression
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.suite import suite_hash
from mini_kv.core.rules.verdict import axes_of, caught_in_pairs, exit_code_of, isolation_axis
from mini_kv.run import (
    Crew,
    RunInputs,
    RunLog,
    build_candidate,
    build_files,
    read_inputs,
    start_crew,
)
from mini_kv.run.baseline_rebuild import require_sound_sources
from mini_kv.run.regression_gate import (
    CANDIDATE,
    GateRequest,
    gate,
    time_crew,
    times_while_importing,
    warn_of_incomparable,
)
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.sandbox.kernel import guard_memory


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """What the user asked for."""

    task: Path
    candidate: Path | None
    device: DeviceRequest | None
    skip_benchmark: bool
    baseline: Path | None
    artifacts_root: Path | None
    timeout_s: float
    require_isolation: IsolationLevel = IsolationLevel.NONE
    require_comparable: bool = False
    pairs: int = regression.Policy().pairs


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the user gets: the archived attempt, where it lies, and the stages' records."""

    attempt: Attempt
    folder: Path
    build: Build | None
    correctness: Correctness | None
    benchmark: Benchmark | None
    regression: Regression | None
    warnings: tuple[Finding, ...]


@dataclass(kw_only=True)
class _Evidence(RunLog):
    """What the stages have left so far; archived whatever happens."""

    build: Build | None = None
    load_fault: Finding | None = None
    reference_sha256: str | None = None
    correctness: Correctness | None = None
    benchmark: Benchmark | None = None
    regression: Regression | None = None
    pairs: PairSet | None = None
    more_pairs: PairSet | None = None
    confirmation: Benchmark | None = None
    retimed: Benchmark | None = None


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run: what was asked for, read and found good, and what the stages have left so far.

    ``baseline`` comes with the hash of the very bytes that it was read from.
    """

    request: VerifyRequest
    inputs: RunInputs
    baseline: tuple[Baseline, str] | None
    evidence: _Evidence
    progress: Progress

    @property
    def wants_times(self) -> bool:
        """Whether the candidate is to be timed: only what passed the correctness stage is."""
        found = self.evidence.correctness
        return not self.request.skip_benchmark and found is not None and found.status is Status.PASS


def verify(request: VerifyRequest, progress: Progress) -> Verdict:
    """Build, load, check, time, compare, archive. Raises ``MiniKvError`` only before anything ran.

    A fault of a later stage, Ctrl-C included, ends in an archived attempt that says so.
    """
    started = time.monotonic()
    inputs = read_inputs(
        task=request.task,
        candidate=request.candidate,
        device=request.device,
        artifacts_root=request.artifacts_root,
        require_isolation=request.require_isolation,
    )
    baseline = _baseline(request, inputs, progress)
    task_id = inputs.card.card.task_id
    writer = artifacts.AttemptWriter(
        inputs.artifacts_root, task_id, clock=lambda: datetime.now(UTC), random_bytes=secrets.token_bytes
    )
    evidence = _Evidence()
    run = _Run(request=request, inputs=inputs, baseline=baseline, evidence=evidence, progress=progress)
    with writer:
        with evidence.keeping_faults():
            _run_stages(run)
        attempt = _archive(run, writer, time.monotonic() - started)
    return Verdict(
        attempt=attempt,
        folder=writer.folder,
        build=evidence.build,
        correctness=evidence.correctness,
        benchmark=evidence.benchmark,
        regression=evidence.regression,
        warnings=writer.warnings,
    )


def _baseline(request: VerifyRequest, inputs: RunInputs, progress: Progress) -> tuple[Baseline, str] | None:
    """Return the baseline that was asked for and the hash of the very bytes that it was read from."""
    if request.baseline is None:
        return None
    baseline, sha256 = artifacts.read_baseline(request.baseline)
    name = str(request.baseline)
    require_sound_sources(baseline, name)
    warn_of_incomparable(inputs, baseline, name, required=request.require_comparable, progress=progress)
    return baseline, sha256


def _run_stages(run: _Run) -> None:
    adopt_orphans()
    guard_memory()
    with start_crew(run.inputs, contract="where judged") as crew:
        build = _build(run)
        if build is None:
            return
        ready = _load(run, crew, build)
        if ready is None:
            return
        _check(run, crew, build, ready)
        _time(run, crew)
        _trace(run, crew)
        crew.candidate.close()
        _compare(run, crew, build)


# --------------------------------------------------------------------------- stages


def _build(run: _Run) -> Build | None:
    """Build the candidate; ``None`` where that failed."""
    with run.evidence.stage("build"):
        build = run.evidence.build = build_candidate(run.inputs, run.progress)
    return build if build.status is Status.PASS else None


def _load(run: _Run, crew: Crew, build: Build) -> p.Ready | None:
    """Wait for the workers, import the reference, open the library; ``None`` where that is at fault."""
    evidence, progress = run.evidence, run.progress
    with evidence.stage("load"):
        progress(Event(stage="load", done=0, total=3, detail="workers start"))
        evidence.reference_sha256, ready = crew.load_oracle()
        progress(Event(stage="load", done=1, total=3, detail="library opens"))
        fault = evidence.load_fault = crew.load(build)
        progress(Event(stage="load", done=3, total=3, detail="loaded" if fault is None else fault.code))
    return ready if fault is None else None


def _check(run: _Run, crew: Crew, build: Build, ready: p.Ready) -> None:
    """Run cases and contract checks, and on a GPU take the times while the contract worker imports."""
    turn = threading.Lock()

    def keep(so_far: Correctness) -> None:
        run.evidence.correctness = so_far

    def time_meanwhile(so_far: Correctness) -> None:
        if not run.request.skip_benchmark and times_while_importing(run.inputs.device):
            keep(so_far)
            with turn:
                _take_times(run, crew)

    with run.evidence.stage("correctness"):
        run.evidence.correctness = correctness.check(
            crew.subject(run.request.timeout_s),
            crew.contract_worker(build, turn),
            run.progress,
            device_count=ready.device_count,
            meanwhile=time_meanwhile,
            left=keep,
        )
    crew.close_contract()


def _time(run: _Run, crew: Crew) -> None:
    """Time what passed, unless it was timed already while the contract worker imported."""
    if run.wants_times and run.evidence.benchmark is None:
        _take_times(run, crew)


def _take_times(run: _Run, crew: Crew) -> None:
    with run.evidence.stage("benchmark"):
        run.evidence.benchmark = time_crew(crew, run.request.timeout_s, run.progress)


def _trace(run: _Run, crew: Crew) -> None:
    """Trace the candidate's own worker, where no contract worker has been traced."""
    if crew.contract is not None:
        return
    assert run.evidence.correctness is not None
    with run.evidence.stage("trace"):
        run.evidence.correctness = correctness.traced_last(
            crew.subject(run.request.timeout_s), run.evidence.correctness
        )


def _compare(run: _Run, crew: Crew, build: Build) -> None:
    """Let the gate decide against the baseline, and keep whatever it measured for that."""
    request, evidence = run.request, run.evidence
    if not run.wants_times or run.baseline is None:
        return
    assert request.baseline is not None and evidence.benchmark is not None
    baseline, sha256 = run.baseline
    wanted = GateRequest(
        baseline=baseline,
        name=request.baseline.name,
        sha256=sha256,
        build=build,
        policy=msgspec.structs.replace(regression.Policy(), pairs=request.pairs),
        timeout_s=request.timeout_s,
    )
    with evidence.stage("regression"):
        gated = gate(crew, evidence.benchmark, wanted, run.progress)
        evidence.regression = gated.regression
        evidence.pairs, evidence.more_pairs = gated.pairs, gated.more_pairs
        evidence.confirmation, evidence.retimed = gated.confirmation, gated.retimed
        evidence.findings += gated.findings


# --------------------------------------------------------------------------- archive


def _archive(run: _Run, writer: artifacts.AttemptWriter, elapsed_s: float) -> Attempt:
    inputs, evidence = run.inputs, run.evidence
    records: dict[str, Record | None] = {
        files.CARD_FILE.name: inputs.card.card,
        files.MANIFEST_FILE.name: inputs.manifest.manifest,
        files.ENVIRONMENT_FILE.name: inputs.environment,
        files.CORRECTNESS_FILE.name: evidence.correctness,
        files.BENCHMARK_FILE.name: evidence.benchmark,
        files.REGRESSION_FILE.name: evidence.regression,
        files.PAIRS_FILE.name: evidence.pairs,
        files.MORE_PAIRS_FILE.name: evidence.more_pairs,
        files.CONFIRMATION_FILE.name: evidence.confirmation,
        files.RETIMED_FILE.name: evidence.retimed,
    }
    if evidence.build is not None:
        for name, raw in build_files(inputs, evidence.build).items():
            writer.add_bytes(name, raw)
    for name, record in records.items():
        if record is not None:
            writer.add_json(name, record)
    return writer.finish(_attempt(run, writer, elapsed_s))


def _attempt(run: _Run, writer: artifacts.AttemptWriter, elapsed_s: float) -> Attempt:
    request, inputs, evidence = run.request, run.inputs, run.evidence
    card: TaskCard = inputs.card.card
    manifest = inputs.manifest.manifest
    axes = axes_of(
        evidence.build,
        evidence.load_fault,
        evidence.correctness,
        evidence.benchmark,
        regression=evidence.regression,
        benchmark_skipped=request.skip_benchmark,
        baseline_given=request.baseline is not None,
        require_comparable=request.require_comparable,
        caught=caught_in_pairs((evidence.pairs, evidence.more_pairs), CANDIDATE),
    )
    axes = (*axes, isolation_axis(inputs.cage.isolation))
    code = exit_code_of(axes, evidence.fault, evidence.interrupted)
    timed = evidence.benchmark
    primary = _primary_p50_us(timed)
    return Attempt(
        schema_version=SCHEMA_VERSION,
        attempt_id=writer.attempt_id,
        task_id=card.task_id,
        operator=card.operator,
        operator_version=card.operator_version,
        candidate_id=manifest.candidate_id,
        candidate_version=manifest.version,
        candidate_folder=inputs.manifest.folder,
        device=inputs.device,
        suite_sha256=suite_hash(card),
        environment_key=inputs.environment.key,
        build_key=evidence.build.key if evidence.build else None,
        reference_sha256=evidence.reference_sha256,
        started_at=writer.started_at,
        elapsed_s=round(elapsed_s, 4),
        stage_elapsed_s=evidence.stage_elapsed_s,
        complete=evidence.correctness is not None and timed is not None and not evidence.interrupted,
        accepted=code == ExitCode.ACCEPTED,
        exit_code=int(code),
        axes=axes,
        findings=(*([evidence.load_fault] if evidence.load_fault else []), *evidence.findings),
        secret_seeds=inputs.secret_seeds,
        benchmark_stable=timed.stable if timed else None,
        geomean_speedup=timed.geomean_speedup if timed else None,
        primary_p50_us=primary,
        files=(),
    )


def _primary_p50_us(timed: Benchmark | None) -> float | None:
    if timed is None:
        return None
    primary = [case.candidate for case in timed.cases if case.case_id == timed.primary_case_id]
    return primary[0].p50_us if primary and primary[0] is not None else None


__all__ = ["Verdict", "VerifyRequest", "verify"]
