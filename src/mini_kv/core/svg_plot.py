"""Pictures of measurements as SVG: panels of points and lines. Pure: the same data give the same bytes.

Why SVG of our own and no plotting library: docs/adr/0014-pictures-are-svg-of-our-own.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from mini_kv.core.printable import printable

PANEL_WIDTH, PANEL_HEIGHT = 360, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 40, 44
TITLE_HEIGHT = 24
MAX_TICKS = 8
COLORS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#444444")
_TEXT_COLOR, _GRID_COLOR, _FRAME_COLOR = "#333333", "#dddddd", "#888888"
_BASES = {"log2": 2.0, "log10": 10.0}

Value = float | str
Scale = Literal["linear", "log2", "log10", "words"]


@dataclass(frozen=True, kw_only=True)
class PlotAxis:
    """One axis. It reaches over all points of its panel, and over ``covers``: so panels may share a range.

    ``words`` places names next to each other, in the order in which they come.
    """

    title: str
    scale: Scale = "linear"
    covers: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlotSeries:
    """Points (across, up) of one colour; in the legend where it has a name.

    What cannot be placed is left out: a number that is not finite, or not positive on a logarithmic axis.
    A series without a mark is a guide: it stretches no axis and is cut off at the panel's edge.
    """

    points: tuple[tuple[Value, float], ...]
    color: str
    name: str = ""
    mark: Literal["dot", "cross", "none"] = "dot"
    line: Literal["none", "solid", "dashed"] = "none"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One diagram; ``level`` is a height at which a line goes across, inside what the upward axis covers."""

    title: str
    across: PlotAxis
    up: PlotAxis
    series: tuple[PlotSeries, ...]
    level: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Range:
    """An axis that is laid out: where a value lies, and its ticks with their labels."""

    place: Callable[[Value], float]
    ticks: tuple[tuple[float, str], ...]


def svg(title: str, panels: Sequence[Panel], *, columns: int) -> str:
    """Return a picture of panels, at most ``columns`` of them in a row; ``ValueError`` without a panel."""
    if not panels:
        raise ValueError("a picture needs a panel")
    across = min(columns, len(panels))
    width, height = PANEL_WIDTH * across, TITLE_HEIGHT + PANEL_HEIGHT * -(-len(panels) // across)
    font = f'font-family="sans-serif" font-size="11" fill="{_TEXT_COLOR}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 16, title),
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, across)
        parts += _panel(panel, number, column * PANEL_WIDTH, TITLE_HEIGHT + row * PANEL_HEIGHT)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, number: int, left: int, top: int) -> Iterator[str]:
    start, end = left + LEFT, left + PANEL_WIDTH - RIGHT
    ceiling, floor = top + TOP, top + PANEL_HEIGHT - BOTTOM
    yield _text(start, ceiling - 20, panel.title)
    yield _text(start, floor + 32, panel.across.title)
    yield _text(left + 4, ceiling - 8, panel.up.title)
    shown = [[point for point in one.points if _has_place(point, panel)] for one in panel.series]
    marked = [
        point
        for one, points in zip(panel.series, shown, strict=True)
        if one.mark != "none"
        for point in points
    ]
    if not marked:
        yield _frame(start, end, ceiling, floor)
        yield _text(start + 8, ceiling + 16, "no points")
        return
    level = [] if panel.level is None else [panel.level]
    # A guide stretches no axis, but a word has no place without one.
    seen = [point for points in shown for point in points] if panel.across.scale == "words" else marked
    across = _laid_out(panel.across, [x for x, _ in seen], start, end)
    up = _laid_out(panel.up, [*(y for _, y in marked), *level], floor, ceiling)
    for x, label in across.ticks:
        yield _line([(x, floor), (x, ceiling)], _GRID_COLOR)
        yield _text(x, floor + 14, label, anchor="middle")
    for y, label in up.ticks:
        yield _line([(start, y), (end, y)], _GRID_COLOR)
        yield _text(start - 4, y + 4, label, anchor="end")
    yield _frame(start, end, ceiling, floor)
    for height in level:
        yield _line([(start, up.place(height)), (end, up.place(height))], "#000000")
    edge = f'<rect x="{start}" y="{ceiling}" width="{end - start}" height="{floor - ceiling}"/>'
    yield f'<clipPath id="panel{number}">{edge}</clipPath>'
    for one, points in zip(panel.series, shown, strict=True):
        places = [(across.place(x), up.place(y)) for x, y in points]
        if one.line != "none" and len(places) > 1:
            dashed = one.line == "dashed"
            yield _line(places, one.color, clip=f"panel{number}", dashed=dashed)
        yield from (_mark(one, x, y) for x, y in places if one.mark != "none")
    named = [one for one in panel.series if one.name]
    for row, one in enumerate(named, start=1):
        yield _text(start + 8, ceiling + 2 + 14 * row, one.name, color=one.color)


def _has_place(point: tuple[Value, float], panel: Panel) -> bool:
    return all(
        isinstance(value, str)
        if axis.scale == "words"
        else not isinstance(value, str) and math.isfinite(value) and (value > 0.0 or axis.scale not in _BASES)
        for value, axis in zip(point, (panel.across, panel.up), strict=True)
    )


# --------------------------------------------------------------------------- axes


def _laid_out(axis: PlotAxis, values: Sequence[Value], start: float, end: float) -> _Range:
    if axis.scale == "words":
        return _words(list(dict.fromkeys(map(str, values))), start, end)
    numbers = [*(float(value) for value in values), *axis.covers]
    base = _BASES.get(axis.scale)
    low, high, ticks = _linear(numbers) if base is None else _decades(numbers, base)

    def place(value: Value) -> float:
        number = float(value) if base is None else math.log(float(value), base)
        return start + (number - low) / (high - low) * (end - start)

    return _Range(place=place, ticks=tuple((place(tick), label) for tick, label in ticks))


def _words(words: Sequence[str], start: float, end: float) -> _Range:
    step = (end - start) / len(words)
    places = {word: start + step * (number + 0.5) for number, word in enumerate(words)}
    return _Range(
        place=lambda word: places[str(word)], ticks=tuple((at, word) for word, at in places.items())
    )


def _linear(numbers: Sequence[float]) -> tuple[float, float, list[tuple[float, str]]]:
    least, most = min(numbers), max(numbers)
    room = 0.05 * (most - least) or 0.05 * abs(most) or 1.0
    low, high = least - room, most + room
    step = _round_step((high - low) / MAX_TICKS)
    first, last = math.ceil(low / step), math.floor(high / step)
    digits = max(0, -math.floor(math.log10(step)))
    return low, high, [(number * step, f"{number * step:.{digits}f}") for number in range(first, last + 1)]


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... times a power of ten that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0, 20.0) if factor * power >= least)


def _decades(numbers: Sequence[float], base: float) -> tuple[float, float, list[tuple[float, str]]]:
    """Return whole powers of the base around the numbers, as exponents."""
    low = math.floor(math.log(min(numbers), base) + 1e-9)
    high = max(math.ceil(math.log(max(numbers), base) - 1e-9), low + 1)
    every = -(-(high - low + 1) // (MAX_TICKS + 1))
    return low, high, [(base**power, _power(base, power)) for power in range(low, high + 1, every)]


def _power(base: float, power: int) -> str:
    if base == 2.0:
        return f"{2**power}" if 0 <= power <= 16 else f"2^{power}"
    return f"{10.0**power:g}" if -4 <= power <= 4 else f"1e{power}"


# --------------------------------------------------------------------------- elements


def _frame(start: float, end: float, ceiling: float, floor: float) -> str:
    corners = [(start, ceiling), (end, ceiling), (end, floor), (start, floor), (start, ceiling)]
    return _line(corners, _FRAME_COLOR)


def _mark(series: PlotSeries, x: float, y: float) -> str:
    if series.mark == "dot":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{series.color}"/>'
    arms = f"M {x - 2.5:.1f} {y - 2.5:.1f} l 5 5 m -5 0 l 5 -5"
    return f'<path d="{arms}" fill="none" stroke="{series.color}"/>'


def _line(
    places: Sequence[tuple[float, float]], color: str, *, clip: str | None = None, dashed: bool = False
) -> str:
    text = " ".join(f"{value:.1f}" for value in itertools.chain.from_iterable(places))
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    cut = f' clip-path="url(#{clip})"' if clip else ""
    return f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="1.2"{dash}{cut}/>'


def _text(x: float, y: float, words: str, *, color: str = _TEXT_COLOR, anchor: str = "start") -> str:
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}"{side}>{escape(printable(words))}</text>'
