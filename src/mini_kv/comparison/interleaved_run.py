"""``compare``: build, gate and time two candidates of one card in one run; say which is faster.

Both pass the whole correctness gate in this run, on equal inputs, before either is timed. The plan's samples
come from one pair of processes; the interval from further pairs of fresh ones.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from mini_kv import correctness
from mini_kv.benchmark.pair_timing import pair_plan
from mini_kv.benchmark.telemetry import Watch
from mini_kv.benchmark.two_candidates import run_two_sides
from mini_kv.comparison.sides import ComparisonEvidence, Side, archive
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.archived_files import COMPARISON_FILE
from mini_kv.core.records.benchmark import Benchmark, KernelWitness
from mini_kv.core.records.card import COMPARISONS_FOLDER, Case, DeviceRequest
from mini_kv.core.records.comparison import Comparison
from mini_kv.core.records.correctness import Correctness
from mini_kv.core.records.isolation import IsolationLevel
from mini_kv.core.records.pairs import PairName
from mini_kv.core.records.results import Status
from mini_kv.run import Crew, build_candidate, device_state, read_inputs, run_inputs, start_crew
from mini_kv.run.process_pairs import PairedSide, PairsRequest, run_pairs, verified_us
from mini_kv.system.archive_folder import ArchiveFolder
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.sandbox.kernel import guard_memory

DEFAULT_PAIRS = 5


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """What the user asked for. ``pairs`` of fresh processes give the interval; at least two."""

    task: Path
    a: Path
    b: Path
    device: DeviceRequest | None
    artifacts_root: Path | None
    timeout_s: float
    pairs: int = DEFAULT_PAIRS
    require_isolation: IsolationLevel = IsolationLevel.NONE


@dataclass(frozen=True, kw_only=True)
class ComparisonVerdict:
    """What the user gets: the archived record, where it lies, and both sides' evidence."""

    comparison: Comparison
    folder: Path
    a: Side
    b: Side


def compare(request: CompareRequest, progress: Progress) -> ComparisonVerdict:
    """Gate and time both candidates. Raises ``MiniKvError`` only before anything ran.

    A fault of a later stage, Ctrl-C included, ends in an archived comparison that says so.
    """
    started = time.monotonic()
    inputs = read_inputs(
        task=request.task,
        candidate=request.a,
        device=request.device,
        artifacts_root=request.artifacts_root,
        require_isolation=request.require_isolation,
    )
    evidence = ComparisonEvidence(
        a=Side(label="A", inputs=inputs), b=Side(label="B", inputs=inputs.with_candidate(request.b))
    )
    root = inputs.artifacts_root
    folder = ArchiveFolder(
        root / COMPARISONS_FOLDER / inputs.card.card.task_id,
        root=root,
        marker=COMPARISON_FILE.name,
        noun="comparison",
        clock=lambda: datetime.now(UTC),
        random_bytes=secrets.token_bytes,
    )
    with evidence.keeping_faults():
        _run_stages(request, evidence, progress)
    comparison = archive(evidence, folder, time.monotonic() - started)
    return ComparisonVerdict(comparison=comparison, folder=folder.folder, a=evidence.a, b=evidence.b)


def _run_stages(request: CompareRequest, evidence: ComparisonEvidence, progress: Progress) -> None:
    adopt_orphans()
    guard_memory()
    a, b = evidence.sides
    with start_crew(a.inputs) as crew_a:
        crew_b = crew_a.for_another(b.inputs)
        crews = ((a, crew_a), (b, crew_b))
        with evidence.stage("build"):
            for side in evidence.sides:
                side.build = build_candidate(side.inputs, _of(side, progress))
        with evidence.stage("load"):
            device_count = _load(evidence, crews, progress)
        with evidence.stage("correctness"):
            for side, crew in crews:
                _gate(side, crew, request, _of(side, progress), device_count=device_count)
        if not all(_passed(side) for side in evidence.sides):
            return
        with evidence.stage("benchmark"):
            _time(evidence, {"a": crew_a, "b": crew_b}, request, progress)
        for crew in (crew_a, crew_b):
            crew.candidate.close()  # nothing of this pair is to run, or to hold memory, during the next
        with evidence.stage("pairs"):
            _pair(evidence, crew_a, request, progress)


def _of(side: Side, progress: Progress) -> Progress:
    """Return a progress that names the side its stages belong to."""

    def show(event: Event) -> None:
        progress(msgspec.structs.replace(event, stage=f"{event.stage} {side.label}"))

    return show


def _load(evidence: ComparisonEvidence, crews: tuple[tuple[Side, Crew], ...], progress: Progress) -> int:
    """Import the reference and open both libraries; return how many devices there are."""
    progress(Event(stage="load", done=0, total=3, detail="workers start"))
    evidence.reference_sha256, ready = crews[0][1].load_oracle()
    for done, (side, crew) in enumerate(crews, start=1):
        if side.build is not None and side.build.status is Status.PASS:
            side.load_fault = crew.load(side.build)
        progress(Event(stage="load", done=done, total=3, detail=f"library {side.label}"))
    progress(Event(stage="load", done=3, total=3, detail="loaded"))
    return ready.device_count


def _gate(side: Side, crew: Crew, request: CompareRequest, progress: Progress, *, device_count: int) -> None:
    def keep(so_far: Correctness) -> None:
        side.correctness = so_far

    if side.build is not None and side.loaded:
        side.correctness = correctness.check(
            crew.subject(request.timeout_s),
            crew.contract_worker(side.build),
            progress,
            device_count=device_count,
            left=keep,
        )
    crew.close_contract()


def _passed(side: Side) -> bool:
    return side.correctness is not None and side.correctness.status is Status.PASS


def _time(
    evidence: ComparisonEvidence, crews: Mapping[PairName, Crew], request: CompareRequest, progress: Progress
) -> None:
    inputs = crews["a"].inputs
    with device_state(inputs, crews["a"].nursery) as device:
        records = run_two_sides(
            {name: crew.timed(request.timeout_s) for name, crew in crews.items()},
            run_inputs.device_lock(inputs.device, inputs.gpus),
            progress,
            read=device.read,
            own_processes=device.own_processes,
        )
    evidence.a.benchmark, evidence.b.benchmark = records["a"], records["b"]


def _pair(evidence: ComparisonEvidence, crew: Crew, request: CompareRequest, progress: Progress) -> None:
    """Time the cases that both sides have a time for in pairs of fresh processes."""
    a, b = evidence.a, evidence.b
    if a.build is None or b.build is None or a.benchmark is None or b.benchmark is None:
        return
    inputs = crew.inputs
    with device_state(inputs, crew.nursery) as device:
        watch = Watch(device.read, device.own_processes)
        evidence.pairs = run_pairs(
            crew,
            PairsRequest(
                a=PairedSide(label="A", inputs=a.inputs, build=a.build),
                b=PairedSide(label="B", inputs=b.inputs, build=b.build),
                cases=_timed_cases(evidence, a.benchmark, b.benchmark),
                pairs=request.pairs,
                plan=pair_plan(inputs.card.card.benchmark),
                empty_kernel_us=_empty_kernels(a.benchmark, b.benchmark),
                verified_us=_verified(a.benchmark, b.benchmark),
                timeout_s=request.timeout_s,
                lock=run_inputs.device_lock(inputs.device, inputs.gpus),
            ),
            watch,
            progress,
        )
        evidence.watched = watch.findings()


def _timed_cases(evidence: ComparisonEvidence, a: Benchmark, b: Benchmark) -> list[Case]:
    card = evidence.a.inputs.card.card
    both = zip(a.cases, b.cases, strict=True)
    return [
        card.case(one.case_id) for one, two in both if one.status is Status.PASS and two.status is Status.PASS
    ]


def _verified(a: Benchmark, b: Benchmark) -> dict[str, tuple[float | None, float | None]]:
    return {
        one.case_id: (verified_us(one), verified_us(two)) for one, two in zip(a.cases, b.cases, strict=True)
    }


def _empty_kernels(a: Benchmark, b: Benchmark) -> dict[str, tuple[float, float]]:
    def marker(witness: KernelWitness | None) -> float:
        return witness.marker_us if witness is not None else 0.0

    return {
        one.case_id: (marker(one.candidate_kernel), marker(two.candidate_kernel))
        for one, two in zip(a.cases, b.cases, strict=True)
    }
