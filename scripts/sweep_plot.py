"""Draw a sweep as SVG: kernel time against bytes moved, both logarithmic, one panel an operator. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape
from typing import TypedDict

PANEL_WIDTH, PANEL_HEIGHT = 340, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 52, 44
SERIES = (
    ("reference_us", "PyTorch eager", "#888888"),
    ("candidate_us", "candidate", "#c2410c"),
)
LIMIT_COLOR, GRID_COLOR, TEXT_COLOR = "#1d4ed8", "#dddddd", "#333333"


class Point(TypedDict):
    """One operator at one size."""

    operator: str
    dtype: str
    shape: list[int]
    elements: int
    bytes_moved: int
    candidate_us: float
    reference_us: float


class Sweep(TypedDict):
    """What ``sweep.json`` holds."""

    device: str
    torch: str
    copy_gb_per_s: float
    calls: int
    points: list[Point]


class Scale:
    """A logarithmic axis from whole decade to whole decade, ``start`` to ``end`` in picture units."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        """Cover all ``values``, which are positive."""
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        """Return where a value lies."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the decades."""
        return [10.0**exponent for exponent in range(self.low, self.high + 1)]


def svg(data: Sweep) -> str:
    """Return the picture of all operators of a sweep; the time axis is the same for all."""
    operators = list(dict.fromkeys(point["operator"] for point in data["points"]))
    times = [us for p in data["points"] for us in (p["candidate_us"], p["reference_us"])]
    width, height = PANEL_WIDTH * len(operators), PANEL_HEIGHT
    font = f'font-family="sans-serif" font-size="11" fill="{TEXT_COLOR}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 16, f"{data['device']}: kernel time (CUPTI, cold L2) against bytes moved"),
    ]
    for number, operator in enumerate(operators):
        points = [point for point in data["points"] if point["operator"] == operator]
        parts += _panel(operator, points, times, number * PANEL_WIDTH, data["copy_gb_per_s"])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    operator: str, points: Sequence[Point], times: Sequence[float], left: int, copy_gb_per_s: float
) -> list[str]:
    sizes = [float(point["bytes_moved"]) for point in points]
    across = Scale(sizes, left + LEFT, left + PANEL_WIDTH - RIGHT)
    up = Scale(times, PANEL_HEIGHT - BOTTOM, TOP)
    parts = [_text(left + LEFT, TOP - 8, f"{operator}, {points[0]['dtype']}")]
    parts += _grid(across, up)
    parts.append(_text(left + LEFT, PANEL_HEIGHT - 8, "bytes moved"))
    parts.append(_text(left + 4, TOP - 8, "us"))
    # The limit is drawn where it lies inside the panel.
    floor_us = 10.0**up.low
    limit = [(size, size / copy_gb_per_s / 1e3) for size in (floor_us * copy_gb_per_s * 1e3, max(sizes))]
    parts.append(_line([(across(x), up(y)) for x, y in limit], LIMIT_COLOR, dashed=True))
    for key, _, color in SERIES:
        places = [(across(p["bytes_moved"]), up(p[key])) for p in points]  # type: ignore[literal-required]
        parts.append(_line(places, color))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{color}"/>' for x, y in places]
    names = [(name, color) for _, name, color in SERIES] + [("copy bandwidth", LIMIT_COLOR)]
    for row, (name, color) in enumerate(names):
        parts.append(_text(left + LEFT + 8, TOP + 16 + 14 * row, name, color))
    return parts


def _grid(across: Scale, up: Scale) -> list[str]:
    parts = []
    for tick in across.ticks():
        x = across(tick)
        parts.append(_line([(x, up.start), (x, up.end)], GRID_COLOR))
        parts.append(_text(x - 10, up.start + 14, f"1e{round(math.log10(tick))}"))
    for tick in up.ticks():
        y = up(tick)
        parts.append(_line([(across.start, y), (across.end, y)], GRID_COLOR))
        parts.append(_text(across.start - 34, y + 4, f"{tick:g}"))
    return parts


def _line(places: Sequence[tuple[float, float]], color: str, *, dashed: bool = False) -> str:
    text = " ".join(f"{value:.1f}" for value in itertools.chain.from_iterable(places))
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="1.2"{dash}/>'


def _text(x: float, y: float, words: str, color: str = TEXT_COLOR) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}">{escape(words)}</text>'


__all__ = ["Point", "Sweep", "svg"]
