"""Two candidates timed in a pair of fresh processes: equal inputs, alternating batches, net times.

The process is the unit of replication: one carries a constant offset in all its times, so the repeats
inside a pair agree with each other far better than pairs do. What is compared is therefore one log-ratio
a pair, of times net of each process's own empty call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from mini_kv.benchmark.inputs_unchanged import check_inputs
from mini_kv.benchmark.samples import (
    FALLBACK_TICK_US,
    CaseLost,
    Caught,
    Sets,
    Taken,
    TimedSubject,
    apart,
    batch_request,
    blamed_on,
    catch_output,
    check_outputs,
    hand_over,
    time_candidate,
)
from mini_kv.benchmark.witnesses import longest_us
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.card import BenchmarkPlan, Case, DeviceKind
from mini_kv.core.records.pairs import PairName, PairResult, PairSide
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.quality import MAX_LAUNCH_EXPOSED_FRACTION
from mini_kv.core.rules.statistics import MAX_SAMPLE_US, median, tick_median
from mini_kv.core.time_limits import BATCH_TIMEOUT_FACTOR, DROP_TIMING_TIMEOUT_S

MIN_PAIR_ITERATIONS = 20
# Copies of all sets of a case for every repeat stay in memory; larger ones tell little of where they lie.
MAX_MOVED_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """How one case is timed in one pair: ``repeats`` batches a side, in the order a b b a a b b a."""

    warmup: int
    iterations: int
    repeats: int
    cache: Literal["cold", "hot"]


@dataclass(frozen=True, kw_only=True)
class PairInputs:
    """Argument sets that the oracle made once, with their storages, for every pair of a case."""

    sets: Sets
    payloads: Sequence[bytearray] = field(repr=False)


def pair_plan(plan: BenchmarkPlan, repeats: int = 4, iterations: int = 50) -> PairPlan:
    """Return the pairs' plan of a card: fewer samples than a benchmark, for the process is what counts."""
    return PairPlan(
        warmup=plan.warmup,
        iterations=max(MIN_PAIR_ITERATIONS, min(plan.iterations, iterations)),
        repeats=repeats,
        cache=plan.cache,
    )


def measure_pair(
    seated: Mapping[PairName, TimedSubject],
    case: Case,
    inputs: PairInputs,
    plan: PairPlan,
    *,
    pair: int = 0,
    labels: tuple[str, str] = ("a", "b"),
    empty_kernel_us: tuple[float, float] = (0.0, 0.0),
) -> PairResult:
    """Time one case on both seats of a pair; odd pairs begin with ``b``. Raises :class:`SideLost`.

    Both seats' workers must have opened their libraries, and the caller holds the device lock. One timed
    output a side, drawn at random, is judged by the oracle, and one set of inputs must be what was sent.
    ``empty_kernel_us`` is the empty kernel's own
    device time on each side (0 where CUPTI did not tell): it belongs to the net time of a call.
    """
    sides = apart(seated)
    taken: dict[PairName, Taken] = {"a": Taken(), "b": Taken()}
    last: dict[PairName, tuple[p.Timed, float]] = {}
    first: PairName = "a" if pair % 2 == 0 else "b"
    may_move = sum(map(len, inputs.payloads)) <= MAX_MOVED_BYTES
    for name, subject in sides.items():
        with blamed_on(name):
            hand_over(subject, case, inputs.sets, inputs.payloads)
    for name in batch_order(first, plan.repeats):
        with blamed_on(name):
            last[name] = _batch(sides[name], case, plan, taken[name], may_move=may_move)
    made: dict[PairName, PairSide] = {}
    for name, label, kernel_us in zip(sides, labels, empty_kernel_us, strict=True):
        with blamed_on(name):
            timed, kept_at = last[name]
            caught = catch_output(sides[name], case.id, timed, inputs.sets, kept_at=kept_at)
            _check(sides[name], case, inputs.sets, caught)
            made[name] = _side(sides[name], label, taken[name], kernel_us)
    for subject in sides.values():
        subject.seat.drop_timing(case.id, timeout_s=DROP_TIMING_TIMEOUT_S)
    return PairResult(case_id=case.id, pair=pair, first=first, a=made["a"], b=made["b"])


def batch_order(first: PairName, repeats: int) -> tuple[PairName, ...]:
    """Return the order of batches, mirrored in every two repeats: a drift over time hits both sides alike."""
    second: PairName = "b" if first == "a" else "a"
    order: list[PairName] = []
    for repeat in range(repeats):
        order += (first, second) if repeat % 2 == 0 else (second, first)
    return tuple(order)


def _batch(
    subject: TimedSubject, case: Case, plan: PairPlan, taken: Taken, *, may_move: bool
) -> tuple[p.Timed, float]:
    # The judge draws, batch by batch, which call of a sample is kept: the last one is no safe one to skip.
    kept_at = subject.chooser.random()
    request = batch_request(subject, case.id, plan, taken, kept_at=kept_at)
    if taken.samples_us and subject.device == "cuda" and may_move:
        # A memory-bound kernel's time depends on where its buffers lie: every repeat has them elsewhere.
        request = msgspec.structs.replace(request, elsewhere=True)
    timed = time_candidate(subject, request, BATCH_TIMEOUT_FACTOR * subject.timeout_s)
    taken.add(timed)
    return timed, kept_at


def _check(subject: TimedSubject, case: Case, sets: Sets, caught: Caught) -> None:
    wrong = check_outputs(subject, sets, (caught,)) + check_inputs(subject, case, sets)
    if wrong:
        raise CaseLost(wrong[0])


def faster_than_verified(
    result: PairResult, verified_us: tuple[float | None, float | None], device: DeviceKind
) -> tuple[tuple[str, Finding], ...]:
    """Return the labels of the sides that were faster in a pair than the clocks bear, with the reason; pure.

    Only the plan's own times are held against the judge's clock and against inputs never seen before. The
    processes of a pair begin with timed calls, so a candidate can tell them from the plan's. ``verified_us``
    are the net times of sides a and b under the plan, where there are any.
    """
    return tuple(
        (
            side.label,
            Finding(
                code=Code.FASTER_THAN_VERIFIED,
                message=f"a call took {side.net_us:.2f} us in a pair, and {verified:.2f} us under the plan",
            ),
        )
        for side, verified in zip((result.a, result.b), verified_us, strict=True)
        if verified is not None and not verified <= longest_us(side.net_us, device)
    )


def _side(subject: TimedSubject, label: str, taken: Taken, empty_kernel_us: float) -> PairSide:
    ticks = [tick for tick in taken.ticks_us if 0.0 < tick <= MAX_SAMPLE_US]
    return side_times(
        label,
        taken.samples_us,
        taken.floors_us,
        tick_us=min(ticks, default=FALLBACK_TICK_US[subject.device]),
        launch_exposed=taken.exposed,
        calls_per_sample=taken.calls_per_sample,
        empty_kernel_us=empty_kernel_us,
    )


def side_times(
    label: str,
    samples_us: Sequence[tuple[float, ...]],
    floors_us: Sequence[float],
    *,
    tick_us: float,
    launch_exposed: int,
    calls_per_sample: int,
    empty_kernel_us: float,
) -> PairSide:
    """Return one side's times from its batches and floors, microseconds; pure.

    Raises :class:`CaseLost` for what is no time, times that the host leaked into, and a call no longer
    than an empty one.
    """
    samples = [sample for batch in samples_us for sample in batch]
    if any(not 0.0 <= sample <= MAX_SAMPLE_US for sample in (*samples, *floors_us)):
        raise CaseLost(Finding(code=Code.NOT_A_TIME, message="the samples or floors are not times"))
    if not launch_exposed / len(samples) <= MAX_LAUNCH_EXPOSED_FRACTION:
        message = f"in {launch_exposed} of {len(samples)} samples the device waited for the host"
        raise CaseLost(Finding(code=Code.LAUNCH_EXPOSED, message=message))
    p50_us, floor_us = tick_median(samples, tick_us), median(floors_us)
    net_us = p50_us - floor_us + empty_kernel_us
    if not net_us > 0.0:
        message = f"a P50 of {p50_us:.3f} us does not exceed the empty call's {floor_us:.3f} us"
        raise CaseLost(Finding(code=Code.BELOW_FLOOR, message=message))
    return PairSide(
        label=label,
        samples_us=tuple(samples_us),
        calls_per_sample=calls_per_sample,
        launch_exposed=launch_exposed,
        p50_us=p50_us,
        floor_us=floor_us,
        empty_kernel_us=empty_kernel_us,
        net_us=net_us,
    )
