"""Timing: the plan, the alternation of sides, and what the raw samples say."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mini_kv.benchmark.case_timing import TimedCase, TimedSubject, finish_case, take_case
from mini_kv.benchmark.plan import TIMER_PLAN, benchmark_record, hold_device, measure_timer, overall
from mini_kv.benchmark.telemetry import Watch, no_readings
from mini_kv.benchmark.witnesses import attach_witnesses
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.benchmark import Benchmark, Telemetry

__all__ = [
    "TIMER_PLAN",
    "TimedSubject",
    "hold_device",
    "overall",
    "run_benchmark",
]


def run_benchmark(
    subject: TimedSubject,
    lock: Path,
    progress: Progress,
    *,
    read: Callable[[], Telemetry | None] = no_readings,
    own_processes: Callable[[], frozenset[int]] = frozenset,
) -> Benchmark:
    """Time every case of the card's plan while holding the device lock ``lock``.

    ``read`` reads the measured GPU's clocks and processes, ``own_processes`` names this run's workers.
    Raises ``InternalError`` when the oracle is lost or the lock cannot be had; the candidate's faults
    are in the record.
    """
    started = time.monotonic()
    plan = subject.card.benchmark
    with hold_device(lock):
        watch = Watch(read, own_processes)
        timer = measure_timer(subject)
        taken: list[TimedCase] = []
        for case_id in plan.case_ids:
            progress(Event(stage="benchmark", done=len(taken), total=len(plan.case_ids), detail=case_id))
            watch.look()
            taken.append(take_case(subject, subject.card.case(case_id)))
            watch.look()
        # CUPTI, once attached to a process, may slow its launches: every sample comes first.
        attach_witnesses(subject)
        cases = [watch.judge(finish_case(subject, timed, timer)) for timed in taken]
    progress(Event(stage="benchmark", done=len(cases), total=len(cases), detail="done"))
    return benchmark_record(subject, cases, timer, watch, time.monotonic() - started)
