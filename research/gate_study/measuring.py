"""Measures the study's processes through the product's own workers, one at a time on the device.

Processes start in waves and import together; while one is measured, nothing else of the study runs.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.records.benchmark import KernelWitness, Telemetry
from mini_kv.core.rules.statistics import median, tick_median
from mini_kv.system.gpu import open_nvml
from research.gate_study.bench import Bench, Subject, as_cell, close, open_all
from research.gate_study.controls import Neighbour, control_processes, strangers_among, take_controls
from research.gate_study.decisions import Evidence
from research.gate_study.records import LEVELS, Cell, Control, Kernel, Pilot, Process, Raw, cell_name
from research.gate_study.room import fitting_wave, process_bytes
from research.gate_study.spreads import as_told

SCHEMA_VERSION = "1.0.0"
# What the spin's length is found with: a tenth of a long kernel, at about 2 GHz.
PROBE_SHARE = 0.1
NOMINAL_CYCLES_PER_US = 2000.0


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


def take_pilot(bench: Bench, subject: Subject, heard: Subject, levels: Sequence[int]) -> Pilot:
    """Find the spins that make every kernel slower by the levels; the processes are open.

    CUPTI stays attached to a process, so it is heard in one of its own (``heard``).
    """
    kernel_us, marker_us = _witness(bench, heard)
    spins: dict[str, dict[str, int]] = {}
    net: dict[str, float] = {}
    for name, kernel in bench.studied.items():
        base_us, us_per_cycle = probe(subject, name, kernel)
        net[name] = base_us + marker_us
        spins[name] = spins_for(net[name], us_per_cycle, levels)
    return Pilot(empty_kernel_us=marker_us, net_us=net, kernel_us=kernel_us, spin_cycles=spins)


def probe(subject: Subject, name: str, kernel: Kernel) -> tuple[float, float]:
    """Return a kernel's net time, microseconds, and what a cycle of its spin adds; raises ``RuntimeError``.

    Batches without and with a spin alternate on the same operands. The spin is at least as long as the
    largest slowdown: so long a one is known better, relatively, than any slowdown by itself.
    """
    subject.prepare("base", kernel, 0)
    first = subject.batch("base", kernel)
    cycles = max(kernel.probe_cycles, round(PROBE_SHARE * net_us([first]) * NOMINAL_CYCLES_PER_US))
    subject.prepare("probe", kernel, cycles)
    without: list[p.Timed] = []
    added_us: list[float] = []
    for _ in range(kernel.probe_rounds):
        without.append(subject.batch("base", kernel, calls=first.calls_per_sample))
        spun = subject.batch("probe", kernel, calls=first.calls_per_sample)
        added_us.append(net_us([spun]) - net_us(without[-1:]))
    subject.drop("base")
    subject.drop("probe")
    slope = median(added_us) / cycles
    if not slope > 0.0:
        raise RuntimeError(f"a spin of {cycles} cycles does not lengthen {name}: {added_us} us")
    return net_us(without), slope


def spins_for(whole_us: float, us_per_cycle: float, levels: Sequence[int]) -> dict[str, int]:
    """Return the spin of every level, cycles: proportional to it, and never less than a lower level's."""
    cycles = {level: whole_us * level / 100.0 / us_per_cycle for level in levels}
    spins: dict[str, int] = {}
    least = 0
    for level in sorted(levels):
        spins[str(level)] = max(round(cycles[level]), least) if level else 0
        least = spins[str(level)] + 1
    return spins


def _witness(bench: Bench, subject: Subject) -> tuple[dict[str, float], float]:
    if bench.device != "cuda":
        return dict.fromkeys(bench.studied, 0.0), 0.0
    seen: dict[str, KernelWitness] = {}
    for name, kernel in bench.studied.items():
        subject.prepare(name, kernel, 0)
        seen[name] = subject.witness(name)
    markers = [witness.marker_us for witness in seen.values()]
    return {name: witness.kernel_us for name, witness in seen.items()}, median(markers)


# --------------------------------------------------------------------------- the whole


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a session begins with: the pilot and the negative controls."""

    ready: p.Ready
    pilot: Pilot
    controls: tuple[Control, ...]
    lost: tuple[str, ...]


def open_session(
    bench: Bench, levels: Sequence[int], telemetry: Callable[[], Telemetry | None], say: Callable[[str], None]
) -> Opening:
    """Take the pilot and the negative controls, in fresh processes."""
    started = time.monotonic()
    early = [Subject(bench) for _ in range(2 + control_processes(bench.device))]
    neighbour = Neighbour() if bench.device == "cuda" else None
    lost: list[str] = []
    controls: list[Control] = []
    try:
        failures = [failure for failure in open_all(early) if failure]
        if failures:
            raise RuntimeError(failures[0])
        if neighbour is not None:
            neighbour.wait()
        say(f"opened {time.monotonic() - started:.1f} s")
        pilot = take_pilot(bench, early[0], early[1], levels)
        say(f"pilot {time.monotonic() - started:.1f} s: net {pilot.net_us} spins {pilot.spin_cycles}")
        try:
            controls = take_controls(bench, early[2:], neighbour, telemetry)
        except RuntimeError as error:
            lost.append(f"controls: {error}")
            say(lost[-1])
    finally:
        if neighbour is not None:
            neighbour.end()
        close(early)
    say(f"controls {time.monotonic() - started:.1f} s")
    ready = early[0].ready
    assert ready is not None
    return Opening(ready=ready, pilot=pilot, controls=tuple(controls), lost=tuple(lost))


def run(
    bench: Bench, processes: int, wave_size: int, budget_s: float, say: Callable[[str], None]
) -> Iterator[Raw]:
    """Yield what was measured, more of it after every wave; end when the budget is spent."""
    started = time.monotonic()
    levels = LEVELS if bench.device == "cuda" else (0, 5)
    size = wave_size
    if bench.device == "cuda":
        size = fitting_wave(wave_size, bench.studied.values(), len(levels))
        need_bytes = size * process_bytes(bench.studied.values(), len(levels))
        say(f"waves of {size} processes, {need_bytes / 2**30:.0f} GiB of GPU memory at most")
    done: list[Process] = []
    with open_nvml(os.environ) as nvml:

        def telemetry() -> Telemetry | None:
            return nvml.telemetry(0) if nvml is not None and bench.device == "cuda" else None

        def elapsed() -> float:
            return time.monotonic() - started

        opening = open_session(bench, levels, telemetry, say)
        lost = list(opening.lost)
        wave = 0
        subjects = [Subject(bench) for _ in range(min(size, processes))]
        while subjects and elapsed() < budget_s:
            for subject, failure in zip(subjects, open_all(subjects), strict=True):
                begun = elapsed()
                if begun >= budget_s:
                    break
                try:
                    if failure:
                        raise RuntimeError(failure)
                    one = _measured(bench, subject, opening.pilot, levels, len(done), telemetry)
                except RuntimeError as error:
                    lost.append(f"process {len(done)} of wave {wave}: {error}")
                    say(lost[-1])
                    continue
                done.append(msgspec.structs.replace(one, wave=wave, started_s=round(begun, 3)))
            # Together and only now: tearing down one's CUDA context would disturb the next one's times. The
            # next wave imports meanwhile, and opens the device when the last wave has left it.
            more = min(size, processes - len(done)) if elapsed() < budget_s else 0
            following = [Subject(bench) for _ in range(more)]
            close(subjects)
            subjects = following
            wave += 1
            say(f"wave {wave}: {len(done)} processes, {elapsed():.1f} s")
            raw = Raw(
                schema_version=SCHEMA_VERSION,
                device=bench.device,
                device_name=opening.ready.device_name or opening.ready.device,
                torch=opening.ready.torch,
                levels=tuple(levels),
                pilot=opening.pilot,
                processes=tuple(done),
                controls=opening.controls,
                elapsed_s=round(elapsed(), 2),
                lost=tuple(lost),
            )
            if wave == 1:
                say(f"injected, achieved: {as_told(Evidence(raw))}")
            yield raw
        close(subjects)


def _measured(
    bench: Bench,
    subject: Subject,
    pilot: Pilot,
    levels: Sequence[int],
    number: int,
    telemetry: Callable[[], Telemetry | None],
) -> Process:
    cells = measure(subject, bench.studied, pilot, levels, seed=number)
    reading = telemetry()
    # One kernel a process, in turn: the clock's bound on an honest claim, for its false alarms to be counted.
    bounded = bench.chosen[number % len(bench.chosen)]
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
