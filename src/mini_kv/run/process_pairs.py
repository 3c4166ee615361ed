"""Pairs of fresh processes: the same oracle, two libraries, one log-ratio a case and pair."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from mini_kv import benchmark
from mini_kv.benchmark.pair_timing import PairInputs, PairPlan, faster_than_verified, measure_pair
from mini_kv.benchmark.samples import CaseLost, SideLost, held, make_sets
from mini_kv.benchmark.telemetry import Watch
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


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A case with the inputs that the oracle made once for every pair."""

    case: Case
    inputs: PairInputs


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Pairs under way: what is timed around which oracle, and what has come of it so far."""

    crew: Crew
    request: PairsRequest
    results: list[PairResult] = field(default_factory=list)
    losses: list[PairLoss] = field(default_factory=list)

    def subject(self, seat: CandidateSeat) -> benchmark.TimedSubject:
        """Return what a pair's side is timed as; its device is not watched here."""
        subject = self.crew.timed(self.request.timeout_s)
        return replace(subject, seat=seat, gpu=None)

    def lose(self, case_id: str, pair: int, label: str, finding: Finding) -> None:
        """Note that a side gave no time that counts."""
        self.losses.append(PairLoss(case_id=case_id, pair=pair, label=label, finding=finding))


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
    at = _Pairs(crew=crew, request=request)
    made = _make_inputs(at)
    pairs = range(request.pairs if made else 0)
    for first in range(0, len(pairs), at_once := pairs_at_once()):
        together = pairs[first : first + at_once]
        progress(Event(stage="pairs", done=first, total=request.pairs, detail="fresh processes"))
        with ExitStack() as stack:
            # Ended only when all of them have been timed: a CUDA context that is torn down disturbs others.
            seated = [_seat(crew, request, stack) for _ in together]
            ready = [
                (pair, seats)
                for pair, seats in zip(together, seated, strict=True)
                if not _refused(at, pair, seats, made)
            ]
            with benchmark.hold_device(request.lock):
                for pair, seats in ready:
                    watch.look()
                    others = [seat for each in seated if each is not seats for seat in each]
                    with held(crew.timed(request.timeout_s), others):
                        for one in made:
                            progress(Event(stage="pairs", done=pair, total=request.pairs, detail=one.case.id))
                            _measure(at, pair, seats, one)
                    watch.look()
    progress(Event(stage="pairs", done=request.pairs, total=request.pairs, detail="done"))
    for one in made:
        crew.oracle.forget(*one.inputs.sets.keys, timeout_s=DROP_TIMING_TIMEOUT_S)
        crew.oracle.drop_timing(one.case.id, timeout_s=DROP_TIMING_TIMEOUT_S)
    return PairSet(
        schema_version=SCHEMA_VERSION,
        label_a=request.a.label,
        label_b=request.b.label,
        pairs=request.pairs,
        results=tuple(at.results),
        losses=tuple(at.losses),
        elapsed_s=round(time.monotonic() - started, 4),
    )


def _make_inputs(at: _Pairs) -> list[_Case]:
    made: list[_Case] = []
    for case in at.request.cases:
        try:
            sets, payloads = make_sets(at.crew.timed(at.request.timeout_s), case)
            made.append(_Case(case=case, inputs=PairInputs(sets=sets, payloads=payloads)))
        except CaseLost as lost:
            at.lose(case.id, 0, "card", lost.finding)
    return made


def pairs_at_once() -> int:
    """Return how many pairs' processes start together: one core each while they import torch."""
    return max(1, min(MAX_PAIRS_AT_ONCE, usable_cpus() // 2))


def _seat(crew: Crew, request: PairsRequest, stack: ExitStack) -> list[CandidateSeat]:
    seats = [fresh_candidate(crew.nursery, side.inputs) for side in (request.a, request.b)]
    for seat in seats:
        stack.callback(seat.close)
    return seats


def _refused(at: _Pairs, pair: int, seats: Sequence[CandidateSeat], made: Sequence[_Case]) -> bool:
    fault = _open(seats, at.request)
    if fault is None:
        return False
    for one in made:
        at.lose(one.case.id, pair, *fault)
    return True


def _open(seats: Sequence[CandidateSeat], request: PairsRequest) -> tuple[str, Finding] | None:
    for seat, side in zip(seats, (request.a, request.b), strict=True):
        fault = load_fault(seat, side.inputs, side.build)
        if fault is not None:
            return side.label, fault
    return None


def _measure(at: _Pairs, pair: int, seats: Sequence[CandidateSeat], one: _Case) -> None:
    a, b = map(at.subject, seats)
    request, case_id = at.request, one.case.id
    try:
        result = measure_pair(
            {"a": a, "b": b},
            one.case,
            one.inputs,
            request.plan,
            pair=pair,
            labels=(request.a.label, request.b.label),
            empty_kernel_us=request.empty_kernel_us.get(case_id, (0.0, 0.0)),
        )
        verified_us = request.verified_us.get(case_id, (None, None))
        too_fast = faster_than_verified(result, verified_us, at.crew.inputs.device)
        for label, finding in too_fast:
            at.lose(case_id, pair, label, finding)
        if not too_fast:
            at.results.append(result)
    except SideLost as lost:
        at.lose(case_id, pair, _label(request, lost.name), lost.finding)


def _label(request: PairsRequest, name: PairName) -> str:
    return request.a.label if name == "a" else request.b.label
