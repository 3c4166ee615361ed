"""Two candidates under one plan: equal inputs, alternating order, the reference next to them.

In every repeat each candidate takes one batch and then the reference, as a thermometer; which candidate
begins flips from repeat to repeat. Every side gives the plan's samples and a benchmark record of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mini_kv.benchmark.case_timing import (
    MAX_TRIES,
    RETRY_BUDGET_S,
    TimedCase,
    both_series,
    judge_case,
)
from mini_kv.benchmark.inputs_unchanged import check_inputs
from mini_kv.benchmark.plan import benchmark_record, hold_device, measure_timer
from mini_kv.benchmark.samples import (
    CANDIDATE,
    REFERENCE,
    CaseLost,
    Caught,
    Sets,
    SideLost,
    Taken,
    TimedSubject,
    apart,
    blamed_on,
    catch_output,
    check_outputs,
    hand_over,
    held,
    make_sets,
    release,
    take_batch,
)
from mini_kv.benchmark.telemetry import Watch, no_readings
from mini_kv.benchmark.witnesses import Kernels
from mini_kv.core.codes import Code
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase, Telemetry
from mini_kv.core.records.card import Case
from mini_kv.core.records.pairs import PairName
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.quality import judge_quality

Sides = Mapping[PairName, TimedSubject]


def run_two_sides(
    sides: Sides,
    lock: Path,
    progress: Progress,
    *,
    read: Callable[[], Telemetry | None] = no_readings,
    own_processes: Callable[[], frozenset[int]] = frozenset,
) -> dict[PairName, Benchmark]:
    """Time every case of the card's plan on both candidates while holding the device lock ``lock``.

    Both subjects share card, oracle and seeds. Arguments and errors as in ``run_benchmark``.
    """
    started = time.monotonic()
    sides = apart(sides)
    first = sides["a"]
    plan = first.card.benchmark
    with hold_device(lock):
        watch = Watch(read, own_processes)
        timer = measure_timer(first)
        taken: list[dict[PairName, TimedCase]] = []
        for case_id in plan.case_ids:
            progress(Event(stage="benchmark", done=len(taken), total=len(plan.case_ids), detail=case_id))
            watch.look()
            taken.append(take_two(sides, first.card.case(case_id)))
            watch.look()
        # CUPTI, once attached to a process, may slow its launches: every sample comes first.
        records: dict[PairName, list[BenchmarkCase]] = {"a": [], "b": []}
        for timed in taken:
            for name, subject in sides.items():
                with held(subject, subject.waiting):
                    record = judge_case(subject, timed[name], timer)
                records[name].append(watch.judge(record))
            for name, subject in sides.items():
                release(subject, timed[name].case, timed[name].sets)
    progress(Event(stage="benchmark", done=len(taken), total=len(taken), detail="done"))
    elapsed_s = time.monotonic() - started
    return {
        name: benchmark_record(subject, records[name], timer, watch, elapsed_s)
        for name, subject in sides.items()
    }


def take_two(sides: Sides, case: Case) -> dict[PairName, TimedCase]:
    """Take the plan's samples of both sides, up to three times while the quality gate is missed by one."""
    started = time.monotonic()
    timed: dict[PairName, TimedCase] = {
        name: TimedCase(case=case, sets=Sets(made=(), keys=())) for name in sides
    }
    try:
        _prepare(sides, case, timed)
        tries = 0
        while tries < MAX_TRIES:
            tries += 1
            taken, caught = _take_repeats(sides, case, timed)
            findings: list[Finding] = []
            for name, subject in sides.items():
                one = timed[name]
                one.taken = {CANDIDATE: taken[name], REFERENCE: taken[REFERENCE]}
                with blamed_on(name):
                    candidate, reference = both_series(subject, one.taken, Kernels())
                findings += judge_quality(candidate, reference, subject.device)
                with blamed_on(name):
                    one.wrong = check_outputs(subject, one.sets, caught[name])
                    one.wrong += check_inputs(subject, case, one.sets)
                one.checked += len(caught[name])
                one.tries = tries
            wrong = any(one.wrong for one in timed.values())
            if wrong or not findings or time.monotonic() - started > RETRY_BUDGET_S:
                break
    except SideLost as lost:
        for name, one in timed.items():
            one.taken = {}
            one.wrong = (lost.finding if name == lost.name else _other_lost(lost),)
    except CaseLost as lost:  # the card's fault concerns both
        for one in timed.values():
            one.wrong = (lost.finding,)
    return timed


def _other_lost(lost: SideLost) -> Finding:
    return Finding(
        code=Code.OTHER_SIDE_LOST,
        message=f"the other candidate gave no times for this case ({lost.finding.code})",
    )


def _prepare(sides: Sides, case: Case, timed: Mapping[PairName, TimedCase]) -> None:
    sets, payloads = make_sets(sides["a"], case)
    for one in timed.values():
        one.sets = sets
    for name, subject in sides.items():
        with blamed_on(name):
            hand_over(subject, case, sets, payloads)


def batch_sides(repeats: int) -> tuple[str, ...]:
    """Return whose turn it is, batch by batch: a, b, reference; b, a, reference; and so on."""
    turns = (("a", "b", REFERENCE), ("b", "a", REFERENCE))
    return tuple(side for repeat in range(repeats) for side in turns[repeat % 2])


def _take_repeats(
    sides: Sides, case: Case, timed: Mapping[PairName, TimedCase]
) -> tuple[dict[str, Taken], dict[PairName, list[Caught]]]:
    taken: dict[str, Taken] = {"a": Taken(), "b": Taken(), REFERENCE: Taken()}
    caught: dict[PairName, list[Caught]] = {"a": [], "b": []}
    for side in batch_sides(sides["a"].card.benchmark.repeats):
        for one in timed.values():
            one.order.append(side)
        if side == REFERENCE:
            taken[side].add(take_batch(sides["a"], case, REFERENCE, taken[side]))
            continue
        name: PairName = "a" if side == "a" else "b"
        with blamed_on(name):
            kept_at = sides[name].chooser.random()
            batch = take_batch(sides[name], case, CANDIDATE, taken[name], kept_at=kept_at)
            taken[name].add(batch)
            sets = timed[name].sets
            caught[name].append(catch_output(sides[name], case.id, batch, sets, kept_at=kept_at))
    return taken, caught
