"""A whole plan: the device held while it is timed, the timer measured, the cases' records made one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mini_kv.benchmark.ceilings import peak_bytes_per_us
from mini_kv.benchmark.samples import TimedSubject, held
from mini_kv.benchmark.telemetry import Watch
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.errors import InternalError
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.results import Status
from mini_kv.core.rules.statistics import geometric_mean
from mini_kv.core.time_limits import DEVICE_LOCK_TIMEOUT_S, TIMER_TIMEOUT_S
from mini_kv.system.files import exclusive_lock

# Part of the environment key: times taken under different plans are not comparable. What changes measured
# times (a constant of the timer, a call, an order) gives the device's plan a new name here.
TIMER_PLAN = {
    "cuda": "event pair a call; 20 calls behind a delay kernel; cold: 2 x L2 overwritten outside, "
    "inputs rotate over 2 x L2; v4",
    "cpu": "perf_counter_ns; calls a sample for at least 1 ms; inputs rotate; one thread; memory kept; v3",
}
# Of the code that shapes the samples under these names; docs/method.md says what counts.
TIMER_FINGERPRINT = {
    "cuda": "3dc2416b94d3457b",
    "cpu": "aea70357e0d1e9bb",
}


def overall(cases: Sequence[BenchmarkCase], unstable_fails: bool) -> Status:
    """FAIL when a case failed, or is unstable where times count; PASS needs every case timed."""
    if not cases or any(case.status is not Status.PASS for case in cases):
        return Status.FAIL
    if unstable_fails and not all(case.stable for case in cases):
        return Status.FAIL
    return Status.PASS


@contextmanager
def hold_device(lock: Path) -> Iterator[None]:
    """Hold the device's lock in the block: one measurement at a time. Raises ``InternalError``."""
    with exclusive_lock(lock, DEVICE_LOCK_TIMEOUT_S) as held:
        if not held:
            raise InternalError(
                Code.DEVICE_BUSY,
                f"another measurement held the device for more than {DEVICE_LOCK_TIMEOUT_S:g} s",
            )
        yield


def benchmark_record(
    subject: TimedSubject,
    cases: Sequence[BenchmarkCase],
    timer: p.TimerMeasured,
    watch: Watch,
    elapsed_s: float,
) -> Benchmark:
    """Return the record of a plan's cases."""
    plan = subject.card.benchmark
    return Benchmark(
        schema_version=SCHEMA_VERSION,
        status=overall(cases, subject.device == "cuda"),
        device=subject.device,
        timer=TIMER_PLAN[subject.device],
        cache=plan.cache,
        stable=bool(cases) and all(case.stable for case in cases),
        cases=tuple(cases),
        primary_case_id=plan.primary_case_id,
        geomean_speedup=_geomean(cases),
        copy_gb_per_s=timer.copy_gb_per_s,
        peak_gb_per_s=None if subject.gpu is None else _gb_per_s(peak_bytes_per_us(subject.gpu)),
        l2_bytes=timer.l2_bytes,
        telemetry=watch.readings,
        elapsed_s=round(elapsed_s, 4),
    )


def measure_timer(subject: TimedSubject) -> p.TimerMeasured:
    """Have the oracle measure the timer itself; raises ``InternalError``."""
    with held(subject, (subject.seat, *subject.waiting)):
        return subject.oracle.measure_timer(subject.card.benchmark.cache, timeout_s=TIMER_TIMEOUT_S)


def _geomean(cases: Sequence[BenchmarkCase]) -> float | None:
    speedups = [case.speedup for case in cases]
    known = [speedup for speedup in speedups if speedup is not None]
    # Equal weights over the whole plan: a missing case must not improve the mean.
    return geometric_mean(known) if known and len(known) == len(speedups) else None


def _gb_per_s(bytes_per_us: float | None) -> float | None:
    return None if bytes_per_us is None else bytes_per_us / 1e3
