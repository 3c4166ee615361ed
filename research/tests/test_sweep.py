"""The sweep over sizes: which sizes, and what is drawn."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from mini_kv.core import svg_plot
from research.sweep import __main__ as sweep
from research.sweep.picture import Point, Sweep, picture


def data() -> Sweep:
    points = [
        Point(
            operator=operator,
            dtype="float16",
            shape=sweep.shape_of(operator, 1 << exponent),
            elements=1 << exponent,
            bytes_moved=4 << exponent,
            candidate_us=2.0 + (4 << exponent) / 4.2e6,
            reference_us=20.0 + (4 << exponent) / 4.2e5,
        )
        for operator in sweep.BEST
        for exponent in sweep.EXPONENTS
    ]
    return Sweep(device="GPU <1>", torch="2", copy_gb_per_s=4200.0, calls=30, points=points)


def test_every_size_from_a_thousand_to_a_quarter_of_a_billion_is_held_exactly() -> None:
    assert [1 << exponent for exponent in sweep.EXPONENTS] == [2**k for k in range(10, 29)]
    for operator in sweep.BEST:
        for exponent in sweep.EXPONENTS:
            shape = sweep.shape_of(operator, 1 << exponent)
            assert math.prod(shape) == 1 << exponent
            assert operator == "vector_add" or shape[-1] <= 4096


def test_every_operator_has_a_panel_with_both_series_on_one_scale_of_time() -> None:
    drawn = picture(data())
    assert "GPU &lt;1&gt;" in drawn
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    sizes = len(sweep.EXPONENTS)
    assert len(dots) == 2 * sizes * len(sweep.BEST)
    heights: dict[int, list[list[float]]] = {}
    for start in range(0, len(dots), sizes):
        series = dots[start : start + sizes]
        panel, kind = divmod(start // sizes, 2)
        assert all(x // svg_plot.PANEL_WIDTH == panel for x, _ in series)
        assert [x for x, _ in series] == sorted({x for x, _ in series})
        assert [y for _, y in series] == sorted((y for _, y in series), reverse=True)
        heights.setdefault(kind, []).append([y for _, y in series])
    # The times above are the same for all operators, and so must their heights be.
    assert all(one == columns[0] for columns in heights.values() for one in columns)
    assert heights[0][0][0] < heights[1][0][0], "the reference is slower, so it lies higher"


def test_an_existing_sweep_is_drawn_again_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps(data()))
    assert sweep.main([str(tmp_path), "--plot-only"]) == 0
    assert (tmp_path / "sweep.svg").read_text() == picture(data())
