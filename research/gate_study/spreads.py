"""How far processes of equal code lie apart, and how much slower the injected slowdowns really are."""

from __future__ import annotations

import itertools
import math

from mini_kv.core.record import Record
from mini_kv.core.rules.statistics import mean, median, std, tick_median
from research.gate_study.decisions import Evidence, us
from research.gate_study.records import Raw, cell_name


class Spread(Record, frozen=True, kw_only=True):
    """One kernel without injected slowdown: times in microseconds, spreads as standard deviations.

    ``places_us`` is the spread of batches inside a process, whose operands each lie elsewhere; ``None``
    where a cell has one batch.
    """

    kernel: str
    p50_us: float
    net_us: float
    kernel_us: float
    raw_between_us: float
    net_between_us: float
    net_between_percent: float
    places_us: float | None
    achieved_percent: dict[str, float]


def spread(evidence: Evidence, kernel: str) -> Spread:
    """Return how far processes lie apart, and how much slower each level really is."""
    raw = evidence.raw
    base = [evidence.side(number, cell_name(kernel, 0)) for number in range(len(raw.processes))]
    p50s = [side.p50_us for side in base if side is not None]
    nets = [side.net_us for side in base if side is not None]
    return Spread(
        kernel=kernel,
        p50_us=median(p50s),
        net_us=median(nets),
        kernel_us=raw.pilot.kernel_us[kernel],
        raw_between_us=std(p50s),
        net_between_us=std(nets),
        net_between_percent=100.0 * std(nets) / median(nets),
        places_us=places(raw, kernel),
        achieved_percent=achieved_percent(evidence, kernel),
    )


def achieved_percent(evidence: Evidence, kernel: str) -> dict[str, float]:
    """Return how much slower each level really is, percent, of those with a batch that counts."""
    raw = evidence.raw
    achieved: dict[str, float] = {}
    for level in raw.levels:
        logs: list[float] = []
        for number in range(len(raw.processes)):
            base = evidence.side(number, cell_name(kernel, 0))
            slow = evidence.side(number, cell_name(kernel, level))
            if base is not None and slow is not None:
                logs.append(math.log(slow.net_us / base.net_us))
        if logs:
            achieved[str(level)] = 100.0 * (math.exp(mean(logs)) - 1.0)
    return achieved


def rises(achieved: dict[str, float]) -> bool:
    """Return whether every level is slower than the one below it."""
    got = [achieved[level] for level in sorted(achieved, key=int)]
    return all(low < high for low, high in itertools.pairwise(got))


def as_told(evidence: Evidence) -> str:
    """Return the achieved slowdowns in one line, those that do not rise with their level marked."""
    told: list[str] = []
    for kernel in evidence.raw.pilot.net_us:
        achieved = achieved_percent(evidence, kernel)
        parts = ", ".join(f"{level}: {got:.2f} %" for level, got in achieved.items() if level != "0")
        told.append(f"{kernel} {parts}{'' if rises(achieved) else ' (NOT RISING)'}")
    return "; ".join(told)


def places(raw: Raw, kernel: str) -> float | None:
    """Return the standard deviation of a process's batches of equal work around their own mean."""
    squares: list[float] = []
    for process in raw.processes:
        for level in raw.levels:
            cell = process.cells[cell_name(kernel, level)]
            batches = zip(cell.samples_ns, cell.floors_ns, strict=True)
            nets = [(tick_median(us(batch), cell.tick_ns / 1e3) - floor / 1e3) for batch, floor in batches]
            if len(nets) > 1:
                squares.append(std(nets) ** 2)
    return math.sqrt(mean(squares)) if squares else None
