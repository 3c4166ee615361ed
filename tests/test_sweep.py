"""The sweep over sizes: which sizes, what is drawn, and that a committed picture is that of its data."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def sweep_script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import sweep
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return sweep


def data_of(script: ModuleType) -> dict[str, Any]:
    points = [
        {
            "operator": operator,
            "dtype": "float16",
            "shape": script.shape_of(operator, 1 << exponent),
            "elements": 1 << exponent,
            "bytes_moved": 4 << exponent,
            "candidate_us": 2.0 + (4 << exponent) / 4.2e6,
            "reference_us": 20.0 + (4 << exponent) / 4.2e5,
        }
        for operator in script.BEST
        for exponent in script.EXPONENTS
    ]
    return {"device": "GPU <1>", "torch": "2", "copy_gb_per_s": 4200.0, "calls": 30, "points": points}


def test_every_size_from_a_thousand_to_a_quarter_of_a_billion_is_held_exactly(
    sweep_script: ModuleType,
) -> None:
    assert [1 << exponent for exponent in sweep_script.EXPONENTS] == [2**k for k in range(10, 29)]
    for operator in sweep_script.BEST:
        for exponent in sweep_script.EXPONENTS:
            shape = sweep_script.shape_of(operator, 1 << exponent)
            product = 1
            for extent in shape:
                product *= extent
            assert product == 1 << exponent and shape[-1] <= max(4096, product * (len(shape) == 1))


def test_every_point_lies_inside_its_panel_and_more_bytes_lie_further_right(
    sweep_script: ModuleType,
) -> None:
    picture = sweep_script.svg(data_of(sweep_script))
    assert "GPU &lt;1&gt;" in picture
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture)]
    sizes = len(sweep_script.EXPONENTS)
    assert len(dots) == 2 * sizes * len(sweep_script.BEST)
    for start in range(0, len(dots), sizes):
        series = dots[start : start + sizes]
        panel = start // (2 * sizes)
        assert all(panel * 340 + 52 <= x <= (panel + 1) * 340 - 12 and 52 <= y <= 256 for x, y in series)
        assert [x for x, _ in series] == sorted({x for x, _ in series})
        assert [y for _, y in series] == sorted((y for _, y in series), reverse=True)


def test_an_existing_sweep_is_drawn_again_without_a_gpu(sweep_script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps(data_of(sweep_script)))
    assert sweep_script.main([str(tmp_path), "--plot-only"]) == 0
    assert (tmp_path / "sweep.svg").read_text() == sweep_script.svg(data_of(sweep_script))


def test_a_committed_picture_is_that_of_its_data(sweep_script: ModuleType) -> None:
    for path in (ROOT / "evidence").glob("**/sweep.json"):
        assert path.with_suffix(".svg").read_text() == sweep_script.svg(json.loads(path.read_text()))
