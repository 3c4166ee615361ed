"""A sweep as a picture: kernel time against bytes moved, both logarithmic, one panel an operator. Pure."""

from __future__ import annotations

from typing import TypedDict

from mini_kv.core.svg_plot import Panel, PlotAxis, PlotSeries, svg

CANDIDATE_COLOR, REFERENCE_COLOR, LIMIT_COLOR = "#c2410c", "#888888", "#1d4ed8"


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


def picture(data: Sweep) -> str:
    """Return the SVG of all operators of a sweep; the time axis is the same for all."""
    operators = list(dict.fromkeys(point["operator"] for point in data["points"]))
    times = tuple(us for p in data["points"] for us in (p["candidate_us"], p["reference_us"]))
    title = f"{data['device']}: kernel time (CUPTI, cold L2) against bytes moved"
    panels = [
        _panel(operator, data, PlotAxis(title="us", scale="log10", covers=times)) for operator in operators
    ]
    return svg(title, panels, columns=len(panels))


def _panel(operator: str, data: Sweep, up: PlotAxis) -> Panel:
    points = [point for point in data["points"] if point["operator"] == operator]
    sizes = [point["bytes_moved"] for point in points]
    limit = [(size, size / data["copy_gb_per_s"] / 1e3) for size in (min(sizes), max(sizes))]
    return Panel(
        title=f"{operator}, {points[0]['dtype']}",
        across=PlotAxis(title="bytes moved", scale="log10"),
        up=up,
        series=(
            PlotSeries(
                points=tuple((point["bytes_moved"], point["reference_us"]) for point in points),
                color=REFERENCE_COLOR,
                name="PyTorch eager",
                line="solid",
            ),
            PlotSeries(
                points=tuple((point["bytes_moved"], point["candidate_us"]) for point in points),
                color=CANDIDATE_COLOR,
                name="candidate",
                line="solid",
            ),
            PlotSeries(
                points=tuple(limit), color=LIMIT_COLOR, name="copy bandwidth", mark="none", line="dashed"
            ),
        ),
    )
