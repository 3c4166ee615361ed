"""A model of processes with the spreads that were measured between those of one H200.

Every process carries one offset of its timer in all it reads (0.07 us, one standard deviation), a second
one a kernel, and every batch a third, from where its operands lie; samples wobble, have a heavy tail and
are read on a grid of 32 ns. How far samples wobble, and that the tails of long kernels are no longer than
those of short ones, is read from the samples under ``evidence/h200``. Faults can be added: drift within a
process, two modes, more tail.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from research.gate_study.records import KERNELS, LEVELS, Cell, Pilot, Process, Raw, cell_name

TICK_NS = 32.0
FLOOR_US = 3.2
EMPTY_KERNEL_US = 0.6
TIMER_OFFSET_US = 0.07
TAIL_OF_US = 20.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One kernel: its net time and standard deviations of a process, a batch and a sample, microseconds."""

    net_us: float
    process_us: float
    place_us: float
    sample_us: float


SPREADS = {
    "memory_2us": Spread(net_us=2.6, process_us=0.045, place_us=0.060, sample_us=0.25),
    "spin_2us": Spread(net_us=2.2, process_us=0.013, place_us=0.0, sample_us=0.020),
    "memory_20us": Spread(net_us=19.0, process_us=0.080, place_us=0.080, sample_us=0.60),
    "memory_200us": Spread(net_us=199.0, process_us=0.50, place_us=0.30, sample_us=2.0),
    "memory_2ms": Spread(net_us=1980.0, process_us=3.0, place_us=2.0, sample_us=6.0),
}


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong beyond the ordinary: fractions of the net time, and a share of samples.

    A tail is a fraction of :data:`TAIL_OF_US` at most: what holds a launch up does so whatever it launches.
    """

    tail_share: float = 0.002
    tail_scale: float = 0.5
    drift: float = 0.0
    second_mode: float = 0.0


def simulate(
    *,
    processes: int,
    seed: int,
    spreads: dict[str, Spread] | None = None,
    faults: Faults = Faults(),
    levels: tuple[int, ...] = LEVELS,
) -> Raw:
    """Return what the study would have measured."""
    chance = random.Random(seed)
    model = SPREADS if spreads is None else spreads
    made = [_process(chance, number, model, faults, levels) for number in range(processes)]
    return Raw(
        schema_version="1.0.0",
        device="simulated",
        device_name="model of processes",
        torch="none",
        levels=levels,
        pilot=Pilot(
            empty_kernel_us=EMPTY_KERNEL_US,
            net_us={name: spread.net_us for name, spread in model.items()},
            kernel_us={name: spread.net_us for name, spread in model.items()},
            spin_cycles={name: {str(level): level for level in levels} for name in model},
        ),
        processes=tuple(made),
        controls=(),
        elapsed_s=0.0,
    )


def _process(
    chance: random.Random, number: int, model: dict[str, Spread], faults: Faults, levels: tuple[int, ...]
) -> Process:
    offset_us = chance.gauss(0.0, TIMER_OFFSET_US)
    cells: dict[str, Cell] = {}
    for name, spread in model.items():
        own_us = chance.gauss(0.0, spread.process_us)
        for level in levels:
            net_us = spread.net_us * (1.0 + level / 100.0) + own_us
            cells[cell_name(name, level)] = _cell(chance, name, net_us, spread, offset_us, faults)
    return Process(wave=number // 12, started_s=3.5 * number, cells=cells)


def _cell(
    chance: random.Random, name: str, net_us: float, spread: Spread, offset_us: float, faults: Faults
) -> Cell:
    floor_us = FLOOR_US + offset_us
    mode = faults.second_mode * net_us if chance.random() < 0.5 else 0.0
    batches: list[tuple[int, ...]] = []
    kernel = KERNELS[name]
    total = kernel.batches * kernel.iterations
    for batch in range(kernel.batches):
        center_us = floor_us - EMPTY_KERNEL_US + net_us + mode + chance.gauss(0.0, spread.place_us)
        samples = []
        for sample in range(kernel.iterations):
            drifted = 2 * (batch * kernel.iterations + sample) >= total
            value_us = chance.gauss(center_us + faults.drift * net_us * drifted, spread.sample_us)
            if chance.random() < faults.tail_share:
                value_us += faults.tail_scale * min(net_us, TAIL_OF_US) * chance.paretovariate(1.5)
            samples.append(_read_ns(chance, value_us))
        batches.append(tuple(samples))
    floors = tuple(round(1e3 * chance.gauss(floor_us, 0.004)) for _ in batches)
    return Cell(samples_ns=tuple(batches), floors_ns=floors, tick_ns=TICK_NS)


def _read_ns(chance: random.Random, value_us: float) -> int:
    # Two stamps of one grid: their distance is the one or the other neighbouring multiple of its step.
    return round(TICK_NS * math.floor(max(value_us, 0.032) * 1e3 / TICK_NS + chance.random()))
