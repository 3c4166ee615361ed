"""Statistics over raw samples, in plain Python: nothing here needs more than a few thousand numbers.

Every function refuses an empty sequence, NaN and infinity with ``ValueError``: a number that is not a
time must never become a percentile that looks like one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mini_kv.core.records.benchmark import Series

# 1 / Phi^-1(3/4): makes the median absolute deviation estimate a normal distribution's sigma.
MAD_TO_SIGMA = 1.4826
# 2 * Phi^-1(3/4): the interquartile range of a standard normal distribution.
IQR_TO_SIGMA = 1.349
# Standard deviation of the rounding error of a clock with step 1: uniform over one step.
TICK_TO_SIGMA = 1.0 / math.sqrt(12.0)
# 11 days in microseconds. No sample is that long, and below it no sum of samples can overflow.
MAX_SAMPLE_US = 1e12


def _checked(values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise ValueError("statistics of no values are not defined")
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
    return values


def _percentile_of_sorted(ordered: Sequence[float], fraction: float) -> float:
    position = (len(ordered) - 1) * fraction
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Clamped: rounding of the interpolation must not leave the interval between its two neighbours.
    return min(max(low + (position - below) * (high - low), low), high)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the ``percent``-th percentile by linear interpolation (Hyndman and Fan 1996, type 7).

    With the n values in ascending order and h = (n - 1) * percent / 100, the result is
    ``x[floor(h)] + (h - floor(h)) * (x[floor(h) + 1] - x[floor(h)])``, counting from 0. Raises
    ``ValueError`` for no values, non-finite values, or a percent outside 0..100.
    """
    if not 0.0 <= percent <= 100.0:
        raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
    return _percentile_of_sorted(sorted(_checked(values)), percent / 100.0)


def median(values: Sequence[float]) -> float:
    """Return the 50th percentile (type 7: the mean of the two middle values of an even count)."""
    return percentile(values, 50.0)


def tick_median(values: Sequence[float], tick_us: float) -> float:
    """Return the median of a time whose readings are rounded to steps of ``tick_us``.

    The median of grouped data: with ``m`` the plain median, ``b`` readings below ``m - tick/2`` and ``w``
    within half a tick of ``m``, the result is ``m - tick/2 + tick * (n/2 - b) / w``. Two event stamps of a
    coarse clock differ by the one or the other neighbouring step, in the proportion in which the true
    time lies between them: the plain median jumps from step to step (32 ns is 1.6 % of 2 us), this one
    does not. With a tick of 0 it is the plain median.
    """
    center = median(values)
    if not (math.isfinite(tick_us) and tick_us >= 0.0):
        raise ValueError(f"a clock's tick is a time, not {tick_us} us")
    low, high = center - tick_us / 2.0, center + tick_us / 2.0
    within = sum(low <= value <= high for value in values)
    if tick_us == 0.0 or within == 0:
        return center
    below = sum(value < low for value in values)
    place = (len(values) / 2.0 - below) / within
    return low + tick_us * min(max(place, 0.0), 1.0)


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean, correctly summed; never outside the range of the values."""
    total = math.fsum(_checked(values))
    return min(max(total / len(values), min(values)), max(values))


def std(values: Sequence[float]) -> float:
    """Return the sample standard deviation (divisor n - 1); 0 for one value."""
    center = mean(values)
    if len(values) == 1:
        return 0.0
    squares = math.fsum((value - center) * (value - center) for value in values)
    return math.sqrt(squares / (len(values) - 1))


def median_absolute_deviation(values: Sequence[float]) -> float:
    """Return the median distance from the median, unscaled, in the values' own unit."""
    center = median(values)
    return median([abs(value - center) for value in values])


def interquartile_range(values: Sequence[float]) -> float:
    """Return the 75th less the 25th percentile (type 7)."""
    ordered = sorted(_checked(values))
    return _percentile_of_sorted(ordered, 0.75) - _percentile_of_sorted(ordered, 0.25)


def geometric_mean(values: Sequence[float]) -> float:
    """Return ``exp(mean(log(values)))``; raises ``ValueError`` for a value that is not positive."""
    for value in _checked(values):
        if not value > 0.0:
            raise ValueError(f"a geometric mean needs positive values, not {value}")
    center = math.exp(math.fsum(math.log(value) for value in values) / len(values))
    return min(max(center, min(values)), max(values))


def robust_cv(per_repeat_us: Sequence[float], tick_us: float) -> float:
    """Return the robust coefficient of variation of one figure per repeat (its P50, say), as a fraction.

    ``max(1.4826 * MAD, IQR / 1.349, tick / sqrt(12)) / median``. The MAD alone reads 0 when more than
    half of the repeats agree (three at one tick, two at the next), the IQR alone when three quarters do;
    the last term is what the clock itself leaves unknown, so the result is never 0. Raises
    ``ValueError`` where the median or the tick is not positive.
    """
    if not (math.isfinite(tick_us) and tick_us > 0.0):
        raise ValueError(f"a clock's tick is a positive time, not {tick_us} us")
    center = median(per_repeat_us)
    if not center > 0.0:
        raise ValueError(f"a relative spread needs a positive median, not {center} us")
    sigma = max(
        MAD_TO_SIGMA * median_absolute_deviation(per_repeat_us),
        interquartile_range(per_repeat_us) / IQR_TO_SIGMA,
        tick_us * TICK_TO_SIGMA,
    )
    return sigma / center


def _check_samples(
    samples_us: Sequence[Sequence[float]], calls_per_sample: int, launch_exposed: int, floor_us: float
) -> None:
    lengths = {len(repeat) for repeat in samples_us}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"repeats must hold one equal, positive number of samples, not {sorted(lengths)}")
    if calls_per_sample < 1:
        raise ValueError(f"a sample times at least one call, not {calls_per_sample}")
    count = len(samples_us) * len(samples_us[0])
    if not 0 <= launch_exposed <= count:
        raise ValueError(f"{launch_exposed} launch-exposed samples of {count} cannot be")
    if not (math.isfinite(floor_us) and floor_us >= 0.0):
        raise ValueError(f"the timer's floor is a time, not {floor_us} us")
    for repeat in samples_us:
        for sample in repeat:
            if not 0.0 <= sample <= MAX_SAMPLE_US:
                raise ValueError(f"{sample} us is not a time")


def summarize(
    samples_us: Sequence[Sequence[float]],
    *,
    calls_per_sample: int,
    launch_exposed: int,
    floor_us: float,
    tick_us: float,
) -> Series:
    """Return raw samples (repeats x iterations, in microseconds a call) with what follows from them.

    ``floor_us`` (the same process's empty call) and ``tick_us`` (the smallest step a sample can show) are
    per call too: the clock's own divided by ``calls_per_sample``. P50, P95, min, mean, std (n - 1) and cv
    are over all samples; ``mad_us`` and ``robust_cv`` over the repeats' P50s, ``robust_cv_p95`` over
    their P95s. ``net_p50_us`` may be negative: a call below the floor is a finding for others, not hidden
    here. Raises ``ValueError`` for anything that is not a finite, non-negative time, ragged or missing
    repeats, impossible counts, a tick of zero or a P50 of zero.
    """
    _check_samples(samples_us, calls_per_sample, launch_exposed, floor_us)
    ordered = sorted(sample for repeat in samples_us for sample in repeat)
    sorted_repeats = [sorted(repeat) for repeat in samples_us]
    repeat_p50_us = tuple(_percentile_of_sorted(repeat, 0.50) for repeat in sorted_repeats)
    repeat_p95_us = tuple(_percentile_of_sorted(repeat, 0.95) for repeat in sorted_repeats)
    p50_us = _percentile_of_sorted(ordered, 0.50)
    mean_us, std_us = mean(ordered), std(ordered)
    spread = robust_cv(repeat_p50_us, tick_us)
    if not p50_us > 0.0:
        raise ValueError("a P50 of 0 us is not a time")
    return Series(
        samples_us=tuple(tuple(float(sample) for sample in repeat) for repeat in samples_us),
        calls_per_sample=calls_per_sample,
        launch_exposed=launch_exposed,
        p50_us=p50_us,
        p95_us=_percentile_of_sorted(ordered, 0.95),
        min_us=ordered[0],
        mean_us=mean_us,
        std_us=std_us,
        cv=std_us / mean_us,
        floor_us=floor_us,
        tick_us=tick_us,
        net_p50_us=p50_us - floor_us,
        repeat_p50_us=repeat_p50_us,
        repeat_p95_us=repeat_p95_us,
        mad_us=median_absolute_deviation(repeat_p50_us),
        robust_cv=spread,
        robust_cv_p95=robust_cv(repeat_p95_us, tick_us),
    )


def follows_from_samples(series: Series) -> bool:
    """Say whether all figures of a series are those of its own samples."""
    try:
        again = summarize(
            series.samples_us,
            calls_per_sample=series.calls_per_sample,
            launch_exposed=series.launch_exposed,
            floor_us=series.floor_us,
            tick_us=series.tick_us,
        )
    except ValueError:
        return False
    return again == series
