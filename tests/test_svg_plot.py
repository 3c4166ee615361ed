"""Pictures of measurements: every point in its place, and nothing in a name that could be markup."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_kv.core import svg_plot
from mini_kv.core.svg_plot import Panel, PlotAxis, PlotSeries, Scale, svg

LEFT, RIGHT = svg_plot.LEFT, svg_plot.PANEL_WIDTH - svg_plot.RIGHT
CEILING = svg_plot.TITLE_HEIGHT + svg_plot.TOP
FLOOR = svg_plot.TITLE_HEIGHT + svg_plot.PANEL_HEIGHT - svg_plot.BOTTOM

Points = list[tuple[svg_plot.Value, float]]


def panel(points: Points, across: Scale = "linear", up: Scale = "linear", *more: PlotSeries) -> Panel:
    made = PlotSeries(points=tuple(points), color="#123456", name="mine", line="solid")
    return Panel(
        title="panel",
        across=PlotAxis(title="x", scale=across),
        up=PlotAxis(title="y", scale=up),
        series=(made, *more),
    )


def dots(picture: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', picture)]


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter() if element.tag.endswith("text")]


FINITE = st.floats(-1e9, 1e9, allow_nan=False)
POSITIVE = st.floats(1e-9, 1e9)


@pytest.mark.parametrize("scale", ["linear", "log2", "log10"])
@given(data=st.data())
def test_every_point_lies_inside_and_larger_ones_further_right_and_higher(
    scale: Scale, data: st.DataObject
) -> None:
    number = FINITE if scale == "linear" else POSITIVE
    points = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=20))
    picture = svg("title", [panel(list(points), scale, scale)], columns=1)
    places = dots(picture)
    assert len(places) == len(points)
    assert all(LEFT <= x <= RIGHT and CEILING <= y <= FLOOR for x, y in places)
    for axis, sign in ((0, 1.0), (1, -1.0)):
        found = sorted((point[axis], sign * place[axis]) for point, place in zip(points, places, strict=True))
        assert [place for _, place in found] == sorted(place for _, place in found)


def test_decades_lie_equally_far_apart() -> None:
    points: Points = [(1.0, 1.0), (10.0, 1000.0), (100.0, 1e6)]
    one, two, three = dots(svg("t", [panel(points, "log10", "log10")], columns=1))
    assert one == pytest.approx((LEFT, FLOOR))
    assert two == pytest.approx(((LEFT + RIGHT) / 2, (CEILING + FLOOR) / 2))
    assert three == pytest.approx((RIGHT, CEILING))


def test_what_has_no_place_is_left_out_and_spoils_nothing() -> None:
    points: Points = [(1.0, 1.0), (10.0, 0.0), (100.0, -3.0), (math.nan, 2.0), (5.0, math.inf), (8.0, 4.0)]
    assert len(dots(svg("t", [panel(points, "log10", "log10")], columns=1))) == 2
    assert len(dots(svg("t", [panel(points)], columns=1))) == 4
    nothing = svg("t", [panel([(math.nan, 1.0)])], columns=1)
    assert dots(nothing) == [] and "no points" in texts(nothing)


def test_a_guide_stretches_no_axis_and_is_cut_off_at_the_edge() -> None:
    points: Points = [(1.0, 1.0), (9.0, 9.0)]
    guide = PlotSeries(points=((-100.0, -100.0), (100.0, 100.0)), color="#000000", mark="none", line="dashed")
    with_guide = svg("t", [panel(points, "linear", "linear", guide)], columns=1)
    assert dots(with_guide) == dots(svg("t", [panel(points)], columns=1))
    lines = re.findall(r'<polyline points="([^"]+)"[^>]* stroke-dasharray="4 3" clip-path="url\(#panel0\)"',
                       with_guide)  # fmt: skip
    assert len(lines) == 1 and min(map(float, lines[0].split())) < 0.0
    assert f'<clipPath id="panel0"><rect x="{LEFT}" y="{CEILING}"' in with_guide


def test_panels_that_cover_the_same_values_share_their_scale() -> None:
    low = panel([(1.0, 1.0)])
    shared = Panel(
        title="p",
        across=low.across,
        up=PlotAxis(title="y", covers=(1.0, 1000.0)),
        series=low.series,
        level=500.0,
    )
    one, two = dots(svg("t", [shared, shared], columns=2))
    assert two == (one[0] + svg_plot.PANEL_WIDTH, one[1])
    below = dots(svg("t", [shared, shared], columns=1))[1]
    assert below == (one[0], one[1] + svg_plot.PANEL_HEIGHT)
    assert one[1] > FLOOR - 30.0


def test_words_stand_in_the_order_in_which_they_come() -> None:
    points: Points = [("float16", 1.0), ("bfloat16", 2.0), ("float16", 3.0)]
    picture = svg("t", [panel(points, "words")], columns=1)
    first, second, again = (x for x, _ in dots(picture))
    assert LEFT < first == again < second < RIGHT
    assert texts(picture).index("float16") < texts(picture).index("bfloat16")


def test_a_level_is_part_of_what_the_axis_covers() -> None:
    far = panel([(1.0, 1.0), (2.0, 2.0)])
    far = Panel(title=far.title, across=far.across, up=far.up, series=far.series, level=50.0)
    assert min(y for _, y in dots(svg("t", [far], columns=1))) > FLOOR - 20.0


def test_names_are_text_whatever_they_hold() -> None:
    name = '</text><script>alert("1")</script>\x00\x1b&\ud800'
    picture = svg(name, [panel([(1.0, 1.0)])], columns=1)
    shown = texts(picture)[0]
    assert "<script>" not in picture and shown.startswith("</text><script>") and "\\x1b&" in shown


def test_ticks_are_round_numbers_and_few() -> None:
    picture = svg("t", [panel([(1.0, 0.123), (1e12, 0.456)], "log2")], columns=1)
    labels = texts(picture)
    ticks = [label for label in labels if re.fullmatch(r"2\^\d+|\d+", label)]
    assert 2 <= len(ticks) <= svg_plot.MAX_TICKS + 1 and ticks[0] == "1"
    assert [label for label in labels if re.fullmatch(r"0\.\d+", label)] == [
        "0.15", "0.20", "0.25", "0.30", "0.35", "0.40", "0.45"
    ]  # fmt: skip


def test_a_picture_of_nothing_is_refused_and_the_same_data_give_the_same_bytes() -> None:
    with pytest.raises(ValueError, match="needs a panel"):
        svg("t", [], columns=1)
    points: Points = [(1.0, 2.0), (3.0, 4.0)]
    assert svg("t", [panel(points)], columns=3) == svg("t", [panel(points)], columns=3)
