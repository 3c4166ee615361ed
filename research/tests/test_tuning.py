"""The tuning's own logic: which variants fit a shape, how events become times, and the table of a run."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from research.tuning.bench import MARKER, between_markers, fit, runs_of
from research.tuning.build import CANDIDATES, candidate_text, header_of, unit_text
from research.tuning.grids import GRIDS, key_of
from research.tuning.placement import placement_lines
from research.tuning.report import report
from research.tuning.variants import Variant, held


@pytest.mark.parametrize("name", GRIDS)
def test_every_shape_of_a_grid_has_variants_and_no_two_share_a_label(name: str) -> None:
    grid = GRIDS[name]
    variants = grid.variants()
    assert max(Counter((one.group, one.label) for one in variants).values()) == 1
    for shape in grid.shapes:
        assert any(one.group == shape[0] and fit(one, *shape[1:]) for one in variants), shape


def test_a_variant_fits_rows_that_its_threads_hold_exactly() -> None:
    whole = held("f16", 32, 16)
    assert fit(whole, 1024, 4096, "f16")
    assert not fit(whole, 1024, 4096, "f32")
    assert not fit(whole, 1024, 8192, "f16") and not fit(whole, 1024, 4097, "f16")
    cluster = Variant("rmsnorm", "cluster", "f16", "", {"c": 2, "t": 64, "k": 4})
    assert fit(cluster, 1, 2 * 64 * 4 * 8, "f16") and not fit(cluster, 1, 64 * 4 * 8, "f16")
    odd = Variant("bias_relu", "odd", "f16", "", {})
    assert fit(odd, 1024, 4097, "f16") and not fit(odd, 1, 7, "f16") and not fit(odd, 1 << 20, 1 << 11, "f16")


def test_what_runs_between_two_markers_is_one_call() -> None:
    events = [("x", 0, 9), (MARKER, 1, 1), ("a", 2, 1500), ("b", 4, 500), (MARKER, 5, 1), ("x", 6, 7)]
    events += [(MARKER, 8, 1), ("a", 9, 700), (MARKER, 10, 1)]
    assert between_markers(events) == [2.0, 0.7]
    assert between_markers(list(reversed(events))) == [2.0, 0.7]


def test_calls_of_one_kernel_come_in_runs_of_random_order() -> None:
    plan = runs_of(["a", "b"], 3, 2, random.Random(1))
    assert len(plan) == 12 and plan.count(("a", 0)) == plan.count(("b", 1)) == 3
    assert all(first[0] == second[0] for first, second in zip(plan[::2], plan[1::2], strict=True))
    assert [label for label, _ in plan] != sorted(label for label, _ in plan)


@pytest.mark.parametrize("name", GRIDS)
def test_the_table_ranks_the_fastest_of_every_shape(name: str) -> None:
    grid = GRIDS[name]
    processes = []
    for offset in (0.0, 0.5):
        found = {}
        for shape in grid.shapes:
            fitting = [one.label for one in grid.variants() if one.group == shape[0] and fit(one, *shape[1:])]
            times = {label: [10.0 + number + offset] for number, label in enumerate(fitting)}
            times["PEER eager"] = [99.0]
            first = {label: values[0] for label, values in times.items()}
            found[key_of(shape)] = {"first_us": first, "final_us": times, "elapsed_s": 1.0}
        processes.append(found)
    text = report(grid, processes)
    for shape in grid.shapes:
        lines = (
            text.partition(f"== {key_of(shape)}, 2 processes, 2.0 s\n")[2].partition("\n== ")[0].splitlines()
        )
        assert lines[0].startswith("   10.25 +- 0.50 ")
        assert sum(" +- " in line for line in lines) == grid.shown + 1
        assert "   99.00 +- 0.00 PEER eager" in lines


def test_the_place_that_explains_the_spread_is_named() -> None:
    points = [{"x": x, "out": out, "flush": 0, "us": 5.0 + x} for x in (0, 1) for out in (0, 1)]
    assert "x 100 % (5.00..6.00) out 0 %" in placement_lines(points)


def test_units_export_a_symbol_for_every_variant_and_dtype() -> None:
    one = held("f16", 32, 16)
    text = unit_text(header_of(one), [(7, one)])
    assert text.startswith('#include "rmsnorm.cuh"\n') and "variant_7(" in text and f"{one.call}(a, b" in text
    for name, _, folder, launch in CANDIDATES:
        unit = candidate_text(name, folder, launch)
        assert all(f"{name}_{dtype}(" in unit for dtype in ("f16", "bf16", "f32"))
