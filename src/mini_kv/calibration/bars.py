"""From readings to a calibration: medians, the line through them, and the demands on the timer. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mini_kv.core.records.calibration import (
    CalibrationBar,
    CalibrationLength,
    SpinRatio,
    SpinReading,
    WideReading,
)
from mini_kv.core.rules.statistics import mean, median, std

# The timer's tick (32 ns) and the event pair's own scatter stand against 0.25 us; 3 % is the quality
# gate's limit on a P50, so a timer within it adds no doubt of its own.
WITNESS_SLACK_US = 0.25
WITNESS_SLACK_FRACTION = 0.03
SLOPE_SLACK = 0.002
LONGER = 1.05
# Absolute slack of a ratio by nominal length: one tick in 2 us is 1.6 %, averaged over many samples.
RATIO_SLACK = ((20.0, 0.005), (2.0, 0.01))
RATIO_LENGTHS_US = (2.0, 20.0, 200.0, 2000.0)


def lengths_of(readings: Sequence[SpinReading]) -> tuple[CalibrationLength, ...]:
    """Return the medians over the processes, shortest first."""
    return tuple(
        _length(nominal_us, [one for one in readings if one.nominal_us == nominal_us])
        for nominal_us in sorted({one.nominal_us for one in readings})
    )


def _length(nominal_us: float, readings: Sequence[SpinReading]) -> CalibrationLength:
    nets = [one.net_us for one in readings]
    witnesses = [one.witness_us for one in readings if one.witness_us is not None]
    true_us = median([one.true_us for one in readings])
    witness_us = median(witnesses) if witnesses else None
    return CalibrationLength(
        nominal_us=nominal_us,
        true_us=true_us,
        net_us=median(nets),
        witness_us=witness_us,
        net_spread_us=std(nets),
        error_us=median(nets) - (witness_us if witness_us is not None else true_us),
    )


@dataclass(frozen=True, kw_only=True)
class WideMedians:
    """Medians over the processes for one kernel of many blocks; microseconds, as in ``WideReading``."""

    work: Literal["spin", "copy"]
    blocks: int
    stamped_us: float
    net_us: float
    witness_stamped_us: float
    witness_us: float


def wide_medians(wide: Sequence[WideReading]) -> tuple[WideMedians, ...]:
    """Return the medians over the processes, in the order in which the kernels were first read."""
    kernels = dict.fromkeys((one.work, one.blocks) for one in wide)
    return tuple(
        _wide_medians([one for one in wide if (one.work, one.blocks) == kernel]) for kernel in kernels
    )


def _wide_medians(own: Sequence[WideReading]) -> WideMedians:
    return WideMedians(
        work=own[0].work,
        blocks=own[0].blocks,
        stamped_us=median([one.stamped_us for one in own]),
        net_us=median([one.net_us for one in own]),
        witness_stamped_us=median([one.witness_stamped_us for one in own]),
        witness_us=median([one.witness_us for one in own]),
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the least-squares line through (true, read) points."""
    x_mean, y_mean = mean([x for x, _ in points]), mean([y for _, y in points])
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    if not spread > 0.0:
        raise ValueError("a line needs two different lengths")
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    return slope, y_mean - slope * x_mean


def judge(
    lengths: Sequence[CalibrationLength], ratios: Sequence[SpinRatio], slope: float
) -> tuple[CalibrationBar, ...]:
    """Hold the readings against every demand. Fails closed: what was not measured has not passed."""
    bars = [_witness_bar(one) for one in lengths]
    bars.append(
        CalibrationBar(
            name="slope",
            demand=f"read time grows with true time at a slope of 1 within {SLOPE_SLACK:.1%}",
            found=f"{slope:.5f}",
            passed=abs(slope - 1.0) <= SLOPE_SLACK,
        )
    )
    bars += [_ratio_bar(nominal_us, ratios) for nominal_us in RATIO_LENGTHS_US]
    return tuple(bars)


def judge_wide(wide: Sequence[WideReading], blocks: int, launch_us: float) -> tuple[CalibrationBar, ...]:
    """Hold both witnesses of kernels of ``blocks`` blocks against the stamps of the very calls they saw.

    ``launch_us`` is what a launch adds to a kernel's own stamps. Without readings nothing has passed.
    """
    read = {one.work: one for one in wide_medians(wide) if one.blocks == blocks}
    works: tuple[Literal["spin", "copy"], ...] = ("spin", "copy")
    return tuple(bar for work in works for bar in _wide_bars(work, read.get(work), blocks, launch_us))


def _wide_bars(
    work: str, own: WideMedians | None, blocks: int, launch_us: float
) -> tuple[CalibrationBar, CalibrationBar]:
    def bar(name: str, witness: str, read_us: float, stamped_us: float) -> CalibrationBar:
        true_us = stamped_us + launch_us
        slack_us = max(WITNESS_SLACK_US, WITNESS_SLACK_FRACTION * true_us)
        return CalibrationBar(
            name=f"{name}_{work}_{blocks}_blocks",
            demand=f"{witness} of a {work} of {blocks} blocks within {slack_us:.2f} us of those calls' own "
            "stamps and a launch",
            found=f"{read_us:.3f} us against {true_us:.3f} us ({read_us - true_us:+.3f} us)",
            passed=abs(read_us - true_us) <= slack_us,
        )

    net = (own.net_us, own.stamped_us) if own else (math.nan, math.nan)
    cupti = (own.witness_us, own.witness_stamped_us) if own else (math.nan, math.nan)
    return bar("net", "net P50", *net), bar("cupti", "CUPTI's kernel time", *cupti)


def _witness_bar(one: CalibrationLength) -> CalibrationBar:
    witness_us = one.witness_us if one.witness_us is not None else one.true_us
    named = "CUPTI's kernel time" if one.witness_us is not None else "the spin's own stamps"
    slack_us = max(WITNESS_SLACK_US, WITNESS_SLACK_FRACTION * witness_us)
    return CalibrationBar(
        name=f"net_{one.nominal_us:g}us",
        demand=f"net P50 of a {one.nominal_us:g} us spin within {slack_us:.2f} us of {named}",
        found=f"{one.net_us:.3f} us against {witness_us:.3f} us ({one.error_us:+.3f} us)",
        passed=abs(one.net_us - witness_us) <= slack_us,
    )


def _ratio_bar(nominal_us: float, ratios: Sequence[SpinRatio]) -> CalibrationBar:
    slack = next(slack for least_us, slack in RATIO_SLACK if nominal_us >= least_us)
    own = [one for one in ratios if one.nominal_us == nominal_us]
    # The spins' own stamps say how much longer they were: a spin ends on a step of its loop, not exactly.
    read = [LONGER * one.read_ratio / one.true_ratio for one in own]
    found = median(read) if read else float("nan")
    return CalibrationBar(
        name=f"ratio_{nominal_us:g}us",
        demand=f"a spin {LONGER - 1.0:.0%} longer than {nominal_us:g} us reads as {LONGER} +- {slack:g}",
        found=f"{found:.4f} over {len(read)} processes",
        passed=abs(found - LONGER) <= slack,
    )
