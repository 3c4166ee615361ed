"""Measures the study's processes through the product's own workers, one at a time on the device.

Processes start in waves and import together; while one is measured, nothing else of the study runs.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.benchmark import KernelWitness, Telemetry
from mini_kv.core.statistics import median, tick_median
from mini_kv.system.gpu import open_nvml
from study.bench import Bench, Subject, as_cell, close
from study.controls import control_processes, strangers_among, take_controls
from study.records import LEVELS, Cell, Control, Kernel, Pilot, Process, Raw, cell_name

SCHEMA_VERSION = "1.0.0"
# For every batch of a cell: the pilot's own error must stay below that of a decision.
PILOT_BATCHES = 2
PROBE_CYCLES = 4000


# --------------------------------------------------------------------------- cells


def net_us(batches: Sequence[p.Timed]) -> float:
    """Return the net time of batches, microseconds, the empty kernel's own time not yet added."""
    samples = [sample for batch in batches for sample in batch.samples_us]
    tick_us = min(batch.tick_us for batch in batches)
    return tick_median(samples, tick_us) - median([batch.floor_us for batch in batches])


def measure(
    subject: Subject, kernels: dict[str, Kernel], pilot: Pilot, levels: Sequence[int], seed: int
) -> dict[str, Cell]:
    """Measure every cell in one process: in an order of its own, then in that order reversed.

    Every batch has operands of its own: a kernel's time depends on where they lie.
    """
    order = [(name, level) for name in kernels for level in levels]
    random.Random(seed).shuffle(order)
    most = max(kernel.batches for kernel in kernels.values())
    taken: dict[tuple[str, int], list[p.Timed]] = {cell: [] for cell in order}
    for batch in range(most):
        for name, level in order if batch % 2 == 0 else reversed(order):
            if batch >= kernels[name].batches:
                continue
            earlier = taken[(name, level)]
            calls = earlier[0].calls_per_sample if earlier else 0
            case = cell_name(name, level)
            place = levels.index(level) * most + batch
            subject.prepare(case, kernels[name], pilot.spin_cycles[name][str(level)], place=place)
            earlier.append(subject.batch(case, kernels[name], calls=calls))
            subject.drop(case)
    return {cell_name(*cell): as_cell(batches) for cell, batches in taken.items()}


def bound(subject: Subject, name: str, kernel: Kernel, claim_us: float) -> float | None:
    """Return what a call of a kernel as it is takes by this process's clock, operands of level 0."""
    subject.prepare(name, kernel, 0)
    subject.batch(name, kernel, iterations=1, calls=1)
    outside_us = subject.outside_us(name, claim_us)
    subject.drop(name)
    return outside_us


# --------------------------------------------------------------------------- pilot


def take_pilot(
    bench: Bench, subject: Subject, heard: Subject, levels: Sequence[int]
) -> tuple[Pilot, p.Ready]:
    """Find the spins that make every kernel slower by the levels: computed once, corrected once.

    CUPTI stays attached to a process, so it is heard in one of its own (``heard``).
    """
    ready = subject.open()
    base: dict[str, float] = {}
    spins: dict[str, dict[str, int]] = {}
    probes: dict[str, float] = {}
    for name, kernel in bench.kernels.items():
        base[name] = _time(subject, name, kernel, 0)
        probes[name] = (_time(subject, name, kernel, PROBE_CYCLES) - base[name]) / PROBE_CYCLES
    heard.open()
    kernel_us, marker_us = _witness(bench, heard)
    for name, kernel in bench.kernels.items():
        whole_us = base[name] + marker_us
        wanted = {level: whole_us * level / 100.0 for level in levels}
        first = {level: _cycles(added, probes[name]) for level, added in wanted.items()}
        spins[name] = {"0": 0} | {
            str(level): _corrected(subject, name, kernel, first[level], wanted[level], base[name])
            for level in levels
            if level
        }
    net = {name: base[name] + marker_us for name in base}
    return Pilot(empty_kernel_us=marker_us, net_us=net, kernel_us=kernel_us, spin_cycles=spins), ready


def _time(subject: Subject, name: str, kernel: Kernel, spin: int) -> float:
    subject.prepare(name, kernel, spin)
    batches: list[p.Timed] = []
    for _ in range(PILOT_BATCHES * kernel.batches):
        batches.append(subject.batch(name, kernel, calls=batches[0].calls_per_sample if batches else 0))
    subject.drop(name)
    return net_us(batches)


def _cycles(added_us: float, us_per_cycle: float) -> int:
    return max(1, round(added_us / us_per_cycle)) if added_us > 0.0 and us_per_cycle > 0.0 else 0


def _corrected(
    subject: Subject, name: str, kernel: Kernel, spin: int, wanted_us: float, base_us: float
) -> int:
    # The base is measured again beside it: a process drifts more than the smallest slowdowns.
    added = _time(subject, name, kernel, spin) - 0.5 * (base_us + _time(subject, name, kernel, 0))
    slope = max(added, 0.25 * wanted_us) / spin if spin else 1.0
    return max(1, min(4 * spin, round(wanted_us / slope)))


def _witness(bench: Bench, subject: Subject) -> tuple[dict[str, float], float]:
    if bench.device != "cuda":
        return dict.fromkeys(bench.kernels, 0.0), 0.0
    seen: dict[str, KernelWitness] = {}
    for name, kernel in bench.kernels.items():
        subject.prepare(name, kernel, 0)
        seen[name] = subject.witness(name)
    markers = [witness.marker_us for witness in seen.values()]
    return {name: witness.kernel_us for name, witness in seen.items()}, median(markers)


# --------------------------------------------------------------------------- the whole


def run(
    bench: Bench, processes: int, wave_size: int, budget_s: float, say: Callable[[str], None]
) -> Iterator[Raw]:
    """Yield what was measured, more of it after every wave; end when the budget is spent."""
    started = time.monotonic()
    levels = LEVELS if bench.device == "cuda" else (0, 5)
    early = [Subject(bench) for _ in range(2 + control_processes(bench.device))]
    pilot, ready = take_pilot(bench, early[0], early[1], levels)
    say(f"pilot {time.monotonic() - started:.1f} s: net {pilot.net_us} spins {pilot.spin_cycles}")
    done: list[Process] = []
    with open_nvml(os.environ) as nvml:

        def telemetry() -> Telemetry | None:
            return nvml.telemetry(0) if nvml is not None and bench.device == "cuda" else None

        controls: list[Control] = []
        lost: list[str] = []
        try:
            controls = take_controls(bench, early[2:], telemetry)
        except RuntimeError as error:
            lost.append(f"controls: {error}")
            say(lost[-1])
        close(early)
        say(f"controls {time.monotonic() - started:.1f} s")
        wave = 0
        while len(done) < processes and time.monotonic() - started < budget_s:
            subjects = [Subject(bench) for _ in range(min(wave_size, processes - len(done)))]
            for subject in subjects:
                subject.open()
            for subject in subjects:
                begun = time.monotonic() - started
                if begun >= budget_s:
                    break
                try:
                    one = _measured(bench, subject, pilot, levels, len(done), telemetry)
                except RuntimeError as error:
                    lost.append(f"process {len(done)} of wave {wave}: {error}")
                    say(lost[-1])
                    continue
                done.append(msgspec.structs.replace(one, wave=wave, started_s=round(begun, 3)))
            # Together and only now: tearing down one's CUDA context would disturb the next one's times.
            close(subjects)
            wave += 1
            elapsed = time.monotonic() - started
            say(f"wave {wave}: {len(done)} processes, {elapsed:.1f} s")
            yield Raw(
                schema_version=SCHEMA_VERSION,
                device=bench.device,
                device_name=ready.device_name or ready.device,
                torch=ready.torch,
                levels=tuple(levels),
                pilot=pilot,
                processes=tuple(done),
                controls=tuple(controls),
                elapsed_s=round(elapsed, 2),
                lost=tuple(lost),
            )


def _measured(
    bench: Bench,
    subject: Subject,
    pilot: Pilot,
    levels: Sequence[int],
    number: int,
    telemetry: Callable[[], Telemetry | None],
) -> Process:
    cells = measure(subject, bench.kernels, pilot, levels, seed=number)
    reading = telemetry()
    # One kernel a process, in turn: the clock's bound on an honest claim, for its false alarms to be counted.
    bounded = list(bench.kernels)[number % len(bench.kernels)]
    outside_us = bound(subject, bounded, bench.kernels[bounded], pilot.net_us[bounded])
    return Process(
        wave=0,
        started_s=0.0,
        cells=cells,
        sm_clock_mhz=reading.sm_clock_mhz if reading else None,
        temperature_c=reading.temperature_c if reading else None,
        bounded=bounded,
        outside_us=outside_us,
        strangers=strangers_among(bench, reading, frozenset()),
        throttled=reading.throttle_reasons if reading else (),
    )
