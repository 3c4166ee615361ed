"""``verify``: one card in, one archived verdict out. The whole story on one screen, stages elsewhere."""

from __future__ import annotations

import functools
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from mini_kv import artifacts, benchmark, compiler, correctness, machine, regression, task_card
from mini_kv.core import protocol as p
from mini_kv.core.card import SCHEMA_VERSION, CaseKind, DeviceKind, DeviceRequest, TaskCard, suite_hash
from mini_kv.core.errors import ConfigurationError, ExitCode, InternalError, MiniKvError
from mini_kv.core.isolation import IsolationLevel
from mini_kv.core.progress import Event, Progress
from mini_kv.core.results import (
    Attempt,
    Baseline,
    Benchmark,
    Build,
    Correctness,
    Environment,
    Finding,
    Regression,
    Status,
)
from mini_kv.core.verdict import axes_of, exit_code_of, isolation_axis
from mini_kv.system.crew import CandidateSeat, OracleSeat
from mini_kv.system.files import sha256_file
from mini_kv.system.gpu import GpuReport, open_nvml, read_gpus
from mini_kv.system.machine import usable_cpus
from mini_kv.system.processes import adopt_orphans, descendants
from mini_kv.system.sandbox.cage import Cage, build_cage
from mini_kv.system.sandbox.kernel import guard_memory
from mini_kv.system.toolchain import Toolchain, find_toolchain
from mini_kv.system.workers import Lost, Nursery

BUILD_FOLDER = ".build"
BUILD_TIMEOUT_S = 900.0


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


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    root: Path
    card: task_card.LoadedCard
    manifest: task_card.LoadedManifest
    baseline: Baseline | None
    device: DeviceKind
    gpus: GpuReport
    toolchain: Toolchain
    environment: Environment
    cage: Cage
    secret_seeds: dict[str, str]


@dataclass(kw_only=True)
class _Evidence:
    """What the stages have left so far; archived whatever happens."""

    build: Build | None = None
    load_fault: Finding | None = None
    reference_sha256: str | None = None
    correctness: Correctness | None = None
    benchmark: Benchmark | None = None
    regression: Regression | None = None
    confirmation: Benchmark | None = None
    findings: list[Finding] = field(default_factory=list)
    stage_elapsed_s: dict[str, float] = field(default_factory=dict)
    fault: ExitCode | None = None
    interrupted: bool = False


def verify(request: VerifyRequest, progress: Progress) -> Verdict:
    """Build, load, check, time, compare, archive. Raises ``MiniKvError`` only before anything ran.

    A fault of a later stage, Ctrl-C included, ends in an archived attempt that says so.
    """
    started = time.monotonic()
    inputs = _read_inputs(request)
    root = request.artifacts_root or inputs.root / "artifacts"
    writer = artifacts.AttemptWriter(
        root, inputs.card.card.task_id, clock=lambda: datetime.now(UTC), random_bytes=secrets.token_bytes
    )
    evidence = _Evidence()
    with writer:
        try:
            _run_stages(request, inputs, evidence, progress)
        except KeyboardInterrupt:
            evidence.interrupted = True
            evidence.findings.append(Finding(code="INTERRUPTED", message="the run was interrupted"))
        except MiniKvError as error:
            evidence.fault = error.exit_code
            evidence.findings.append(Finding(code=error.code, message=error.message))
        except Exception as error:  # noqa: BLE001 - archived first, then reported as our own
            evidence.fault = ExitCode.INTERNAL
            evidence.findings.append(_own_fault(error))
        attempt = _archive(request, inputs, evidence, writer, time.monotonic() - started)
    return Verdict(
        attempt=attempt,
        folder=writer.folder,
        build=evidence.build,
        correctness=evidence.correctness,
        benchmark=evidence.benchmark,
        regression=evidence.regression,
        warnings=writer.warnings,
    )


def _run_stages(request: VerifyRequest, inputs: _Inputs, evidence: _Evidence, progress: Progress) -> None:
    adopt_orphans()
    guard_memory()
    with _crew(inputs) as crew:
        with _stage(evidence, "build"):
            evidence.build = _build(inputs, progress)
        if evidence.build.status is not Status.PASS:
            return
        with _stage(evidence, "load"):
            evidence.reference_sha256, evidence.load_fault, ready = crew.load(
                inputs, evidence.build, progress
            )
        if evidence.load_fault is not None:
            return
        with _stage(evidence, "correctness"):
            evidence.correctness = correctness.check(
                crew.subject(inputs, request.timeout_s),
                crew.contract,
                functools.partial(crew.load_contract, inputs, evidence.build),
                ready.device_count,
                progress,
            )
        crew.contract.close()
        if request.skip_benchmark or evidence.correctness.status is not Status.PASS:
            return
        with _stage(evidence, "benchmark"):
            evidence.benchmark = _time(inputs, crew, request, progress)
    if inputs.baseline is not None:
        with _stage(evidence, "regression"):
            evidence.regression = _compare(request, inputs, evidence, progress)


# --------------------------------------------------------------------------- inputs


def _read_inputs(request: VerifyRequest) -> _Inputs:
    root = task_card.find_project_root(request.task)
    card = task_card.load_task_card(request.task, root)
    folder = request.candidate if request.candidate is not None else root / card.card.candidate
    manifest = task_card.load_manifest(folder, root)
    task_card.check_pair(card.card, manifest.manifest)
    baseline = artifacts.load_baseline(request.baseline) if request.baseline is not None else None
    toolchain = find_toolchain(root / BUILD_FOLDER, os.environ)
    gpus = read_gpus(os.environ)
    device = resolve_device(request.device or card.card.device, gpus, toolchain)
    cage = _cage(request, device, root)
    environment = machine.environment(
        device=device,
        timer_plan=benchmark.TIMER_PLAN[device],
        isolation=cage.isolation.level.value,
        isolation_features=cage.isolation.features,
        toolchain=toolchain,
        gpus=gpus,
    )
    return _Inputs(
        root=root,
        card=card,
        manifest=manifest,
        baseline=baseline,
        device=device,
        gpus=gpus,
        toolchain=toolchain,
        environment=environment,
        cage=cage,
        secret_seeds={
            case.id: secrets.token_hex(8) for case in card.card.cases if case.kind is not CaseKind.ILLEGAL
        },
    )


def _cage(request: VerifyRequest, device: DeviceKind, root: Path) -> Cage:
    """Find out what candidates can be shut in with here; raises when that is less than was asked for."""
    archive = request.artifacts_root or root / "artifacts"
    cage = build_cage(device, _import_path(root), (root, archive.absolute()))
    wanted = request.require_isolation
    if not cage.isolation.level.reaches(wanted):
        raise ConfigurationError(
            "ISOLATION_TOO_WEAK",
            f"isolation level '{wanted.value}' was asked for, but this machine gives "
            f"'{cage.isolation.level.value}': {cage.isolation.reason(wanted)}.",
        )
    return cage


def resolve_device(wanted: DeviceRequest, gpus: GpuReport, toolchain: Toolchain) -> DeviceKind:
    """Return the device to verify on; ``auto`` is CUDA where GPU, CUDA build of torch and nvcc are here."""
    if wanted == "cpu":
        return "cpu"
    usable = bool(gpus.gpus) and toolchain.torch is not None and toolchain.torch.cuda is not None
    if wanted == "cuda":
        if not usable:
            raise ConfigurationError(
                "GPU_MISSING",
                "device 'cuda' was asked for, but no GPU with a driver and a CUDA build of torch is visible "
                "here; use --device cpu, or see 'mini-kv doctor'.",
            )
        return "cuda"
    return "cuda" if usable and toolchain.nvcc is not None else "cpu"


def device_lock(device: DeviceKind, gpus: GpuReport) -> Path:
    """Return the lock file of the measured device; all users of a machine share it."""
    name = (gpus.gpus[0].uuid or "gpu0") if device == "cuda" else "cpu"
    return Path(tempfile.gettempdir()) / f"mini-kv-{name}.lock"


# --------------------------------------------------------------------------- stages


@contextmanager
def _stage(evidence: _Evidence, name: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        evidence.stage_elapsed_s[name] = round(time.monotonic() - started, 4)


def _build(inputs: _Inputs, progress: Progress) -> Build:
    gpus = inputs.gpus.gpus
    arch_list = (gpus[0].compute_capability,) if inputs.device == "cuda" else ()
    progress(Event(stage="build", done=0, total=1, detail=inputs.manifest.folder))
    result = compiler.build(
        compiler.BuildRequest(
            project_root=str(inputs.root),
            candidate_folder=inputs.manifest.folder,
            manifest=inputs.manifest.manifest,
            device=inputs.device,
            arch_list=arch_list,
            timeout_s=BUILD_TIMEOUT_S,
        ),
        inputs.toolchain,
        progress=lambda text: progress(Event(stage="build", done=0, total=1, detail=text)),
        launcher=inputs.cage.launcher(inputs.toolchain),
    )
    progress(Event(stage="build", done=1, total=1, detail="cached" if result.cached else "built"))
    return result


def _time(inputs: _Inputs, crew: _Crew, request: VerifyRequest, progress: Progress) -> Benchmark:
    with open_nvml(os.environ) as nvml:
        return benchmark.run_benchmark(
            crew.timed(inputs, request.timeout_s),
            device_lock(inputs.device, inputs.gpus),
            progress,
            read=lambda: nvml.telemetry(0) if nvml is not None and inputs.device == "cuda" else None,
            own_processes=lambda: frozenset(descendants(os.getpid())),
        )


def _compare(request: VerifyRequest, inputs: _Inputs, evidence: _Evidence, progress: Progress) -> Regression:
    """Decide against the baseline; a suspicion is confirmed by a second batch in fresh processes."""
    card = inputs.card.card
    current = regression.CurrentMeasurement(
        task_id=card.task_id,
        operator_version=card.operator_version,
        suite_sha256=suite_hash(card),
        environment_key=inputs.environment.key,
        benchmark=evidence.benchmark,
        environment=inputs.environment,
    )
    assert request.baseline is not None
    name, digest = request.baseline.name, sha256_file(request.baseline)

    def decide(second: Benchmark | None) -> Regression:
        return regression.decide(
            current,
            inputs.baseline,
            regression.Policy(),
            second,
            baseline_name=name,
            baseline_sha256=digest,
        )

    decision = decide(None)
    if not regression.needs_confirmation(decision):
        return decision
    with _crew(inputs) as fresh:
        assert evidence.build is not None
        _, fault, _ = fresh.load(inputs, evidence.build, progress)
        if fault is not None:
            return decision
        evidence.confirmation = _time(inputs, fresh, request, progress)
    return decide(evidence.confirmation)


@dataclass(frozen=True, kw_only=True)
class _Crew:
    oracle: OracleSeat
    candidate: CandidateSeat
    contract: CandidateSeat

    def load(self, inputs: _Inputs, build: Build, progress: Progress) -> tuple[str, Finding | None, p.Ready]:
        """Wait for the workers, import the reference, open the library in the candidate worker."""
        progress(Event(stage="load", done=0, total=3, detail="workers start"))
        ready = self.oracle.greet()
        card = inputs.card.card
        reference = self.oracle.load(
            p.LoadReference(
                reference=card.reference,
                input_factory=card.input_factory,
                tolerances={str(name): limit for name, limit in card.tolerances.items()},
            )
        )
        request = _load_request(inputs, build)
        progress(Event(stage="load", done=1, total=3, detail="library opens"))
        fault = _load_fault(self.candidate, request, inputs)
        progress(Event(stage="load", done=3, total=3, detail="loaded" if fault is None else fault.code))
        return reference.source_sha256, fault, ready

    def load_contract(self, inputs: _Inputs, build: Build) -> Finding | None:
        """Open the library in the contract worker too; it may still be importing what the checks need."""
        return _load_fault(self.contract, _load_request(inputs, build), inputs)

    def subject(self, inputs: _Inputs, timeout_s: float) -> correctness.Subject:
        """Return what the correctness stage works on."""
        return correctness.Subject(
            card=inputs.card.card,
            manifest=inputs.manifest.manifest,
            device=inputs.device,
            oracle=self.oracle,
            seat=self.candidate,
            secret_seeds=inputs.secret_seeds,
            timeout_s=timeout_s,
        )

    def timed(self, inputs: _Inputs, timeout_s: float) -> benchmark.TimedSubject:
        """Return what the benchmark stage works on."""
        return benchmark.TimedSubject(
            card=inputs.card.card,
            device=inputs.device,
            oracle=self.oracle,
            seat=self.candidate,
            secret_seeds=inputs.secret_seeds,
            gpu=inputs.gpus.gpus[0] if inputs.device == "cuda" else None,
            timeout_s=timeout_s,
            chooser=random.SystemRandom(),
        )


@contextmanager
def _crew(inputs: _Inputs) -> Iterator[_Crew]:
    """Start oracle and candidate workers at once: they import torch while the compiler runs."""
    scratch = Path(tempfile.mkdtemp(prefix="mini-kv-"))
    nursery = Nursery(scratch, _import_path(inputs.root), inputs.cage)
    hello = p.Hello(device=inputs.device, threads=usable_cpus())
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.callback(nursery.close)
        yield _Crew(
            oracle=OracleSeat(nursery, hello),
            candidate=CandidateSeat(nursery, hello),
            contract=CandidateSeat(nursery, p.Hello(device=inputs.device, threads=1), "contract"),
        )


def _import_path(root: Path) -> Sequence[str]:
    # The workers run isolated from the environment; a card's reference may lie in the project itself.
    own = str(Path(__file__).resolve().parent.parent)
    inherited = [entry for entry in sys.path if entry and Path(entry).exists()]
    return list(dict.fromkeys([own, *inherited, str(root)]))


def _load_request(inputs: _Inputs, build: Build) -> p.LoadCandidate:
    manifest = inputs.manifest.manifest
    assert build.library is not None and build.library_sha256 is not None
    # The Python file is taken from the build's own copy: the bytes that were hashed are the ones loaded.
    sources = compiler.logs_folder(inputs.root, build) / "sources"
    return p.LoadCandidate(
        library=str(inputs.root / build.library),
        library_sha256=build.library_sha256,
        python=str(sources / manifest.python) if manifest.python else None,
        dispatcher=manifest.dispatcher,
        schema=manifest.schema,
    )


def _load_fault(seat: CandidateSeat, request: p.LoadCandidate, inputs: _Inputs) -> Finding | None:
    greeting = seat.greet()
    if isinstance(greeting, p.Failed):
        raise ConfigurationError("DEVICE_UNUSABLE", f"{greeting.code}: {greeting.message}")
    if isinstance(greeting, Lost):
        raise InternalError(
            "WORKER_LOST", f"a worker did not start: {greeting.message} {greeting.output[-500:]}"
        )
    loaded = seat.load(request)
    if isinstance(loaded, Lost):
        return Finding(
            code=f"LOAD_{loaded.code}",
            message=f"while the library was opened, {loaded.message}",
            evidence=(loaded.output[-4000:],),
        )
    if isinstance(loaded, p.Failed):
        message = loaded.message
        if loaded.code == "LIBRARY_DOES_NOT_LOAD":
            message = compiler.explain_load_error(message)
        return Finding(code=loaded.code, message=message)
    return _registration_fault(loaded, inputs)


def _registration_fault(loaded: p.CandidateLoaded, inputs: _Inputs) -> Finding | None:
    manifest = inputs.manifest.manifest
    composite = loaded.kernels.get("CompositeImplicitAutograd") or loaded.kernels.get(
        "CompositeExplicitAutograd"
    )
    for backend in (inputs.device, *manifest.backends):
        key = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}[backend]
        if backend == "cuda" and inputs.device != "cuda":
            continue  # a CPU build leaves the CUDA kernels out
        if backend == "meta" and manifest.python is not None:
            continue  # torch.library.register_fake lives outside the dispatcher's Meta key
        if not loaded.kernels.get(key) and not composite:
            return Finding(
                code="NOT_REGISTERED_FOR_DEVICE",
                message=f"'{manifest.dispatcher}' has no kernel for dispatch key {key}"
                + ("" if backend == inputs.device else f", although the manifest names backend {backend}"),
            )
    claimed, found = normal_schema(manifest.schema), normal_schema(loaded.schema)
    if claimed != found:
        return Finding(
            code="SCHEMA_DIFFERS",
            message=f"the operator's schema is '{loaded.schema}'; the manifest says '{manifest.schema}'",
        )
    return None


def normal_schema(text: str) -> str:
    """Return a schema without namespace, overload name and white space, for comparison."""
    head, bracket, tail = text.partition("(")
    return (head.rpartition("::")[2].partition(".")[0] + bracket + tail).replace(" ", "")


# --------------------------------------------------------------------------- archive


def _own_fault(error: Exception) -> Finding:
    import traceback

    text = "".join(traceback.format_exception(error))
    return Finding(
        code="INTERNAL", message=f"fault of mini-kv itself: {type(error).__name__}: {error}", evidence=(text,)
    )


def _archive(
    request: VerifyRequest,
    inputs: _Inputs,
    evidence: _Evidence,
    writer: artifacts.AttemptWriter,
    elapsed_s: float,
) -> Attempt:
    writer.add_json("task_card.json", inputs.card.card)
    writer.add_json("candidate_manifest.json", inputs.manifest.manifest)
    writer.add_json("environment.json", inputs.environment)
    _archive_build(inputs, evidence, writer)
    for name, record in (
        ("correctness.json", evidence.correctness),
        ("benchmark.json", evidence.benchmark),
        ("regression.json", evidence.regression),
        ("confirmation_benchmark.json", evidence.confirmation),
    ):
        if record is not None:
            writer.add_json(name, record)
    return writer.finish(_attempt(request, inputs, evidence, writer, elapsed_s))


def _archive_build(inputs: _Inputs, evidence: _Evidence, writer: artifacts.AttemptWriter) -> None:
    if evidence.build is None:
        return
    writer.add_json("compile.json", evidence.build)
    logs = compiler.logs_folder(inputs.root, evidence.build)
    for name in ("compile_stdout.log", "compile_stderr.log"):
        path = logs / name
        writer.add_bytes(name, path.read_bytes() if path.is_file() else b"")
    sources = logs / "sources"
    if sources.is_dir():
        writer.add_tree(
            {
                path.relative_to(sources).as_posix(): path.read_bytes()
                for path in sorted(sources.rglob("*"))
                if path.is_file() and not path.is_symlink()
            }
        )


def _attempt(
    request: VerifyRequest,
    inputs: _Inputs,
    evidence: _Evidence,
    writer: artifacts.AttemptWriter,
    elapsed_s: float,
) -> Attempt:
    card: TaskCard = inputs.card.card
    manifest = inputs.manifest.manifest
    axes = axes_of(
        evidence.build,
        evidence.load_fault,
        evidence.correctness,
        evidence.benchmark,
        evidence.regression,
        request.skip_benchmark,
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
