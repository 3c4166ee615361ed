"""Pairs of fresh processes: the same oracle, two libraries, one log-ratio a case and pair."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from mini_kv import benchmark
from mini_kv.benchmark.pair_timing import PairInputs, PairPlan, faster_than_verified, measure_pair
from mini_kv.benchmark.samples import CaseLost, SideLost, held, make_sets
from mini_kv.benchmark.telemetry import Watch
from mini_kv.core import protocol as p
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.benchmark import BenchmarkCase
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import SCHEMA_VERSION, Case
from mini_kv.core.records.pairs import PairLoss, PairName, PairResult, PairSet
from mini_kv.core.records.results import Finding
from mini_kv.core.time_limits import DROP_TIMING_TIMEOUT_S
from mini_kv.run.crew import Crew, fresh_candidate, load_fault
from mini_kv.run.run_inputs import RunInputs
from mini_kv.system.host import usable_cpus
from mini_kv.system.seats import CandidateSeat

# Each holds a CUDA context and the buffers of its last case until all of them have been timed.
MAX_PAIRS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class PairedSide:
    """One side of every pair: what is loaded, and what it is called in the record."""

    label: str
    inputs: RunInputs
    build: Build


@dataclass(frozen=True, kw_only=True)
class PairsRequest:
    """``empty_kernel_us`` holds, by case id, the empty kernel's own device time on sides a and b.

    ``verified_us`` holds, by case id, the net times of both that were verified in this run.
    """

    a: PairedSide
    b: PairedSide
    cases: Sequence[Case]
    pairs: int
    plan: PairPlan
    empty_kernel_us: Mapping[str, tuple[float, float]]
    timeout_s: float
    lock: Path
    verified_us: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)


def verified_us(case: BenchmarkCase) -> float | None:
    """Return the candidate's net time of a case that this run has timed and verified, microseconds."""
    return case.candidate.net_p50_us if case.candidate is not None else None


def run_pairs(crew: Crew, request: PairsRequest, watch: Watch, progress: Progress) -> PairSet:
    """Time every case in ``pairs`` pairs of fresh processes around the crew's oracle.

    Processes start as many at once as this machine has cores for, all before the first of them is timed,
    and the device lock is held only while they are timed. What a side does wrong is a loss in the record;
    raises ``InternalError`` when the oracle or the device is lost.
    """
    started = time.monotonic()
    results: list[PairResult] = []
    losses: list[PairLoss] = []
    made = _make_inputs(crew, request, losses)
    pairs = range(request.pairs if made else 0)
    for first in range(0, len(pairs), at_once := pairs_at_once()):
        together = pairs[first : first + at_once]
        progress(Event(stage="pairs", done=first, total=request.pairs, detail="fresh processes"))
        with ExitStack() as stack:
            # Ended only when all of them have been timed: a CUDA context that is torn down disturbs others.
            seated = [_seat(crew, request, stack) for _ in together]
            ready = [
                one for one in zip(together, seated, strict=True) if not _refused(one, made, request, losses)
            ]
            with benchmark.hold_device(request.lock):
                for pair, seats in ready:
                    watch.look()
                    others = [seat for each in seated if each is not seats for seat in each]
                    with held(crew.timed(request.timeout_s), others):
                        for case, inputs in made.values():
                            progress(Event(stage="pairs", done=pair, total=request.pairs, detail=case.id))
                            _measure(crew, request, seats, case, inputs, pair, results, losses)
                    watch.look()
    progress(Event(stage="pairs", done=request.pairs, total=request.pairs, detail="done"))
    for case, inputs in made.values():
        for key in inputs.sets.keys:
            crew.oracle.ask(p.Forget(key=key), timeout_s=DROP_TIMING_TIMEOUT_S)
        crew.oracle.ask(p.DropTiming(case_id=case.id), timeout_s=DROP_TIMING_TIMEOUT_S)
    return PairSet(
        schema_version=SCHEMA_VERSION,
        label_a=request.a.label,
        label_b=request.b.label,
        pairs=request.pairs,
        results=tuple(results),
        losses=tuple(losses),
        elapsed_s=round(time.monotonic() - started, 4),
    )


def _make_inputs(
    crew: Crew, request: PairsRequest, losses: list[PairLoss]
) -> dict[str, tuple[Case, PairInputs]]:
    made: dict[str, tuple[Case, PairInputs]] = {}
    for case in request.cases:
        try:
            sets, payloads = make_sets(crew.timed(request.timeout_s), case)
            made[case.id] = (case, PairInputs(sets=sets, payloads=payloads))
        except CaseLost as lost:
            losses.append(PairLoss(case_id=case.id, pair=0, label="card", finding=lost.finding))
    return made


def pairs_at_once() -> int:
    """Return how many pairs' processes start together: one core each while they import torch."""
    return max(1, min(MAX_PAIRS_AT_ONCE, usable_cpus() // 2))


def _seat(crew: Crew, request: PairsRequest, stack: ExitStack) -> list[CandidateSeat]:
    seats = [fresh_candidate(crew.nursery, side.inputs) for side in (request.a, request.b)]
    for seat in seats:
        stack.callback(seat.close)
    return seats


def _refused(
    one: tuple[int, Sequence[CandidateSeat]],
    made: Mapping[str, tuple[Case, PairInputs]],
    request: PairsRequest,
    losses: list[PairLoss],
) -> bool:
    pair, seats = one
    fault = _open(seats, request)
    if fault is None:
        return False
    label, finding = fault
    losses += [PairLoss(case_id=case_id, pair=pair, label=label, finding=finding) for case_id in made]
    return True


def _open(seats: Sequence[CandidateSeat], request: PairsRequest) -> tuple[str, Finding] | None:
    for seat, side in zip(seats, (request.a, request.b), strict=True):
        fault = load_fault(seat, side.inputs, side.build)
        if fault is not None:
            return side.label, fault
    return None


def _measure(
    crew: Crew,
    request: PairsRequest,
    seats: Sequence[CandidateSeat],
    case: Case,
    inputs: PairInputs,
    pair: int,
    results: list[PairResult],
    losses: list[PairLoss],
) -> None:
    a, b = (_subject(crew, request, seat) for seat in seats)
    try:
        result = measure_pair(
            a,
            b,
            case,
            inputs,
            request.plan,
            pair=pair,
            labels=(request.a.label, request.b.label),
            empty_kernel_us=request.empty_kernel_us.get(case.id, (0.0, 0.0)),
        )
        verified_us = request.verified_us.get(case.id, (None, None))
        too_fast = faster_than_verified(result, verified_us, crew.inputs.device)
        losses += [
            PairLoss(case_id=case.id, pair=pair, label=label, finding=finding) for label, finding in too_fast
        ]
        results += [] if too_fast else [result]
    except SideLost as lost:
        label = _label(request, lost.name)
        losses.append(PairLoss(case_id=case.id, pair=pair, label=label, finding=lost.finding))


def _subject(crew: Crew, request: PairsRequest, seat: CandidateSeat) -> benchmark.TimedSubject:
    inputs = crew.inputs
    return benchmark.TimedSubject(
        card=inputs.card.card,
        device=inputs.device,
        oracle=crew.oracle,
        seat=seat,
        secret_seeds=inputs.secret_seeds,
        gpu=None,
        timeout_s=request.timeout_s,
        chooser=random.SystemRandom(),
    )


def _label(request: PairsRequest, name: PairName) -> str:
    return request.a.label if name == "a" else request.b.label
