"""Benchmark axes: what they generate, and what is refused with one sentence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attempt_factory as make
from card_files import VALID, make_project, problems_of, write
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.benchmark import BenchmarkCase
from mini_kv.core.records.card import CaseKind, PowersOfTwo, TaskCard
from mini_kv.core.rules.axes import (
    axis_values,
    curves,
    expand_axes,
    is_generated,
    point_id,
    powers_of_two,
    swept_value,
    with_value,
)
from mini_kv.core.rules.suite import suite_hash
from mini_kv.task_card import load_task_card

ROWS_OF = "name: rows, case: core_f32, param: rows, "
DTYPE_OF = "name: d, case: core_f32, param: dtype, "
ROWS = "  axes:\n    - {name: rows, case: core_f32, param: rows, values: [31, 8, 64]}\n"


def with_axes(axes: str) -> str:
    return VALID + axes


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def card_with(project: Path, axes: str) -> TaskCard:
    return load_task_card(write(project, with_axes(axes)), project).card


def first_problem(project: Path, axis: str) -> str:
    problems = problems_of(project, with_axes(f"  axes:\n    - {{{axis}}}\n"))
    assert len(problems) == 1, problems
    return problems[0].partition("benchmark.axes[0]")[2]


# ---------------------------------------------------------------------- what is generated


def test_an_axis_makes_one_benchmark_case_a_value_but_none_for_the_templates_own(project: Path) -> None:
    card = card_with(project, ROWS)
    made = [case for case in card.cases if case.kind is CaseKind.BENCHMARK]
    assert [case.id for case in made] == ["core_f32__rows_8", "core_f32__rows_64"]
    assert [case.params["rows"] for case in made] == [8, 64]
    assert all(case.params["hidden"] == 1025 and case.raises is None for case in made)
    assert card.benchmark.case_ids == ("core_f32", "core_f16", "core_f32__rows_8", "core_f32__rows_64")


def test_a_template_that_is_not_timed_itself_gets_a_case_for_its_own_value(project: Path) -> None:
    content = with_axes(ROWS).replace("case_ids: [core_f32, core_f16]", "case_ids: [core_f16]")
    card = load_task_card(write(project, content), project).card
    assert "core_f32__rows_31" in card.benchmark.case_ids


def test_a_position_of_a_list_is_replaced_and_the_rest_kept(project: Path) -> None:
    content = VALID.replace("params: {rows: 31, hidden: 1025,", "params: {shape: [31, 1025],", 1)
    place = "name: hidden, case: core_f32, param: shape, position: 1"
    axis = f"  axes: [{{{place}, powers_of_two: {{from: 256, to: 1024}}}}]\n"
    card = load_task_card(write(project, content + axis), project).card
    shapes = [case.params["shape"] for case in card.cases if case.kind is CaseKind.BENCHMARK]
    assert shapes == [(31, 256), (31, 512), (31, 1024)]


def test_a_whole_number_becomes_a_float_where_one_stood(project: Path) -> None:
    card = card_with(project, "  axes: [{name: eps, case: core_f32, param: eps, values: [1, 2.5e-6]}]\n")
    assert [(case.id, case.params["eps"]) for case in card.cases[-2:]] == [
        ("core_f32__eps_1", 1.0),
        ("core_f32__eps_2p5em06", 2.5e-06),
    ]
    assert isinstance(card.cases[-2].params["eps"], float)


def test_a_word_can_be_swept(project: Path) -> None:
    card = card_with(project, "  axes: [{name: dtype, case: core_f32, param: dtype, values: [float16]}]\n")
    assert card.cases[-1].params["dtype"] == "float16"


@given(low=st.integers(0, 40), high=st.integers(0, 40))
def test_powers_of_two_hold_both_ends_and_double(low: int, high: int) -> None:
    values = powers_of_two(PowersOfTwo(first=1 << low, last=1 << high))
    if low > high:
        assert values == ()
    else:
        assert values[0] == 1 << low and values[-1] == 1 << high
        assert all(after == 2 * before for before, after in itertools.pairwise(values))


def test_expanding_twice_changes_nothing_and_an_archived_card_means_the_same(project: Path) -> None:
    card = card_with(project, ROWS)
    assert expand_axes(card) == card
    again = load_task_card(write(project, to_json(card)), project).card
    assert again == card
    assert from_json(to_json(card), TaskCard) == card


def test_the_suite_covers_what_axes_generate(project: Path) -> None:
    plain = load_task_card(write(project, VALID), project).card
    one = card_with(project, ROWS)
    other = card_with(project, ROWS.replace("64", "65"))
    assert len({suite_hash(plain), suite_hash(one), suite_hash(other)}) == 3
    unexpanded = msgspec.structs.replace(
        plain, benchmark=msgspec.structs.replace(plain.benchmark, axes=one.benchmark.axes)
    )
    assert suite_hash(unexpanded) == suite_hash(one)


def test_a_card_without_axes_keeps_its_suite(project: Path) -> None:
    """The hash that this card had before there were axes: baselines of that time stay comparable."""
    before = "84e40471f93f5fc13ca031110f64a622c6364d239df06523ef528132f8cb753d"
    card = VALID.replace("scale_reference:", "mini_kv.references.scale:")  # as it read then
    assert suite_hash(load_task_card(write(project, card), project).card) == before


def test_a_case_knows_where_it_lies_on_the_axes(project: Path) -> None:
    card = card_with(project, ROWS)
    assert axis_values(card, "core_f32") == {"rows": 31}
    assert axis_values(card, "core_f32__rows_64") == {"rows": 64}
    assert axis_values(card, "core_f16") == {}


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("axis", "problem"),
    [
        ("name: n, case: core_f3, param: rows, values: [1]", ".case: found 'core_f3', which names no"),
        ("name: n, case: wrong_rank, param: shape, values: [1]", ".case: found 'wrong_rank', an illegal"),
        ("name: rows, case: core_f32, param: row, values: [1]", ".param: found 'row', which case 'core_f32'"),
        (ROWS_OF + "position: 0, values: [1]", ".position: found a position"),
        (ROWS_OF + "values: [1.5]", ".values[0]: found the number 1.5; allowed: a whole"),
        (ROWS_OF + "values: [a]", ".values[0]: found 'a'; allowed: a whole number"),
        (ROWS_OF + "values: [2, 2]", ".values[1]: found the number 2 again"),
        (ROWS_OF + "values: [true]", ".values[0]: found true"),
        (ROWS_OF + "values: [9007199254740993]", ".values[0]: found the number 9"),
        (ROWS_OF + "values: []", ".values: found a list of 0; allowed: a list of 1"),
        (ROWS_OF, ": found no values; required: exactly one of values"),
        (DTYPE_OF + "values: [float64]", ".values[0]: found 'float64', which has no tol"),
        (DTYPE_OF + "values: [float61]", ".values[0]: found 'float61'; allowed: one of"),
        (DTYPE_OF + "values: ['a b']", ".values[0]: found 'a b'; allowed: a word of"),
        ("name: Rows, case: core_f32, param: rows, values: [1]", ".name: found 'Rows'; allowed: 1 to 16"),
        (
            ROWS_OF + "powers_of_two: {from: 3, to: 8}",
            ".powers_of_two.from: found the number 3; allowed: a power of two, such as 2 or 4",
        ),
        (
            ROWS_OF + "powers_of_two: {from: 8, to: 2}",
            ".powers_of_two: found powers of two from 8 down to 2",
        ),
        (
            ROWS_OF + "values: [3], powers_of_two: {from: 1, to: 2}",
            ": found both 'values' and 'powers_of_two'",
        ),
        ("name: e, case: core_f32, param: eps, values: [a]", ".values[0]: found 'a'; allowed: a finite"),
    ],
)
def test_a_bad_axis_is_refused_with_one_sentence(project: Path, axis: str, problem: str) -> None:
    assert first_problem(project, axis).startswith(problem)


def test_a_list_needs_a_position_inside_it(project: Path) -> None:
    content = VALID.replace("params: {rows: 31, hidden: 1025,", "params: {shape: [31, 1025],", 1)
    for given_, said in (
        ("", "found no such key, but shape is a list of 2"),
        ("position: 2, ", "found the number 2"),
    ):
        axis = f"  axes: [{{name: h, case: core_f32, param: shape, {given_}values: [1]}}]\n"
        (problem,) = problems_of(project, content + axis)
        assert said in problem and "0 to 1" in problem


def test_a_generated_id_must_be_free_and_short(project: Path) -> None:
    taken = (
        with_axes(ROWS)
        .replace("id: core_f16", "id: core_f32__rows_8")
        .replace("core_f16]", "core_f32__rows_8]")
    )
    taken = taken.replace("primary_case_id: core_f16", "primary_case_id: core_f32")
    (problem,) = problems_of(project, taken)
    assert "whose case 'core_f32__rows_8' exists already" in problem
    long = "a" * 60
    (problem,) = problems_of(project, with_axes(ROWS.replace("core_f32", long)).replace("core_f32", long))[:1]
    assert "allowed: names of at most 64 characters" in problem


def test_there_are_bounds_on_axes_and_values(project: Path) -> None:
    many = "  axes:\n" + "".join(
        f"    - {{name: a{n}, case: core_f32, param: rows, values: [{n + 100}]}}\n" for n in range(9)
    )
    assert any(
        "benchmark.axes: found a list of 9" in problem for problem in problems_of(project, with_axes(many))
    )
    values = ", ".join(map(str, range(100, 165)))
    wide = f"  axes: [{{name: rows, case: core_f32, param: rows, values: [{values}]}}]\n"
    assert any("found a list of 65" in problem for problem in problems_of(project, with_axes(wide)))


KEYS = st.sampled_from(["name", "case", "param", "position", "values", "powers_of_two", "from", "to"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)


@given(
    axes=st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
        max_leaves=12,
    )
)
def test_no_shape_of_axes_makes_the_rules_raise(axes: Any) -> None:
    from mini_kv.task_card.axis_rules import axis_findings

    cases = [{"id": "a", "kind": "core", "params": {"rows": 3, "shape": [1, 2], "dtype": "float32"}}]
    for plan in (
        axes,
        [axes],
        [{"name": "n", "case": "a", "param": "shape", "position": axes, "values": axes}],
    ):
        list(axis_findings({"cases": cases, "benchmark": {"axes": plan}, "tolerances": axes}))


def test_ids_of_points_are_identifiers() -> None:
    assert point_id("a", "x", -1) == "a__x_m1"
    assert point_id("a", "x", 1e20) == "a__x_1e20"
    assert point_id("a", "x", "float16") == "a__x_float16"


def test_the_first_position_of_a_list_is_a_place_and_the_last_is_not_beyond_it() -> None:
    params: dict[str, Any] = {"shape": (3, 4), "rows": 5}
    assert [swept_value(params, "shape", at) for at in (0, 1, 2, -1, None)] == [3, 4, None, None, None]
    assert [swept_value(params, "rows", at) for at in (None, 0)] == [5, None]
    assert swept_value(params, "gone", None) is None


@pytest.mark.parametrize(
    ("old", "value", "new"), [(3, 4, 4), (3.0, 4, 4.0), (3.0, 4.5, 4.5), ("a", "b", "b")]
)
def test_a_value_has_the_type_of_the_one_that_it_replaces(old: Any, value: Any, new: Any) -> None:
    made = with_value({"x": old, "y": 1}, "x", None, value)
    assert (made, type(made["x"])) == ({"x": new, "y": 1}, type(new))
    assert with_value({"x": (1, old)}, "x", 1, value) == {"x": (1, new)}


def test_a_card_without_axes_stays_itself(project: Path) -> None:
    card = load_task_card(write(project, VALID), project).card
    assert expand_axes(card) is card


def test_axes_count_in_the_suite_next_to_the_cases_that_they_make(project: Path) -> None:
    card = card_with(project, ROWS)
    plain = msgspec.structs.replace(card, benchmark=msgspec.structs.replace(card.benchmark, axes=()))
    assert plain.cases == card.cases
    assert suite_hash(plain) != suite_hash(card)


def test_a_curve_has_numbers_in_their_order_and_words_behind_them() -> None:
    def case(case_id: str, **values: Any) -> BenchmarkCase:
        made = make.benchmark_case(case_id, make.series(10.0), make.series(20.0))
        return msgspec.structs.replace(made, axis_values=values)

    cases = [
        case("t__x_b", x="b"), case("t__x_10", x=10), case("t__x_a", x="a"), case("t", x=9, y=1), case("u")
    ]  # fmt: skip
    found = curves(cases)
    assert [(one.axis, one.template_case_id) for one in found] == [("x", "t"), ("y", "t")]
    assert [one.axis_values["x"] for one in found[0].cases] == [9, 10, "a", "b"]
    assert [is_generated(one) for one in cases] == [True, True, True, False, False]


def problem_of(params: dict[str, Any], *axes: dict[str, Any], **data: Any) -> list[str]:
    from mini_kv.task_card.axis_rules import axis_findings

    cases = [{"id": "t", "kind": "core", "params": params}]
    found = axis_findings({"cases": cases, "benchmark": {"axes": list(axes)}, **data})
    return [problem for _, problem in found]


def test_an_axis_over_a_case_without_parameters_says_so() -> None:
    axis = {"name": "n", "case": "t", "param": "rows", "values": [1]}
    (problem,) = problem_of({}, axis)
    assert problem.endswith("which case 't' does not have; allowed: a parameter of a case that has one")
    (problem,) = problem_of({"row": 1}, axis)
    assert problem.endswith("allowed: one of row (did you mean 'row'?)")


@pytest.mark.parametrize(
    ("value", "fits"),
    [(1 << 53, True), (-(1 << 53), True), ((1 << 53) + 1, False), (1.5, False), (True, False)],
)
def test_whole_numbers_up_to_what_a_float_holds_can_be_swept(value: Any, fits: bool) -> None:
    found = problem_of({"rows": 3}, {"name": "n", "case": "t", "param": "rows", "values": [value]})
    assert (found == []) is fits


def test_two_axes_may_not_make_different_cases_of_one_name() -> None:
    first = {"name": "n", "case": "t", "param": "rows", "values": [8]}
    same, other = dict(first), first | {"param": "columns"}
    params = {"rows": 3, "columns": 5}
    assert problem_of(params, first, same) == []
    (problem,) = problem_of(params, first, other)
    assert problem == "found the number 8, whose case 't__n_8' exists already; allowed: each id once"
