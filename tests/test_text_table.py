"""Tables as text: columns that line up, and Markdown that nobody's cell can break."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_kv.core.text_table import Column, as_markdown, figure, fitted, head_row, markdown_table, text_row

COLUMNS = (Column(head="case", width=6, left=True), Column(head="us", width=5))


def test_words_lie_left_and_numbers_right() -> None:
    assert head_row(COLUMNS) == "case      us"
    assert text_row(("a", "1.25"), COLUMNS) == "a       1.25"
    assert text_row(("a", "1.25"), COLUMNS, gap=" | ") == "a      |  1.25"


def test_a_long_cell_is_not_cut() -> None:
    assert text_row(("a_long_name", "1"), COLUMNS) == "a_long_name     1"


@given(st.lists(st.tuples(st.text("ab", max_size=9), st.text("12", max_size=9)), min_size=1))
def test_fitted_columns_line_up_whatever_stands_in_them(rows: list[tuple[str, str]]) -> None:
    columns = fitted(COLUMNS, rows)
    lines = [head_row(columns), *(text_row(row, columns) for row in rows)]
    assert len({len(line) for line in lines}) == 1
    assert all(new.width >= old.width for new, old in zip(columns, COLUMNS, strict=True))


def test_no_rows_need_no_more_than_the_heads() -> None:
    assert fitted([Column(head="head")], []) == (Column(head="head", width=4),)


@pytest.mark.parametrize("cells", [("a",), ("a", "1", "2")])
def test_a_row_of_another_length_is_refused(cells: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="zip"):
        text_row(cells, COLUMNS)
    with pytest.raises(ValueError, match="2 cells"):
        markdown_table(("case", "us"), [cells])


def test_what_is_not_known_is_a_dash() -> None:
    assert (figure(None, 2), figure(1.005, 1), figure(2.0, 0)) == ("-", "1.0", "2")


def test_markdown_says_on_which_side_numbers_lie() -> None:
    lines = markdown_table(("case", "us"), [("a", "1")], right_aligned={"us"})
    assert lines == ["| case | us |", "|---|---:|", "| a | 1 |"]


@given(st.lists(st.lists(st.text(max_size=12), min_size=2, max_size=2), max_size=3))
def test_no_cell_ends_a_cell_or_a_line(rows: list[list[str]]) -> None:
    lines = markdown_table(("one", "two"), rows)
    assert len(lines) == 2 + len(rows)
    assert all(len(line.splitlines()) == 1 for line in lines)
    # A backslash takes the character behind it along: what is left are the bars of the table.
    assert {re.sub(r"\\.", "", line).count("|") for line in lines} == {3}


def test_markdown_of_our_own_stays_markdown() -> None:
    assert markdown_table(("a",), [("`x` |  [y](z)\n",)], cell=as_markdown)[2] == "| `x` \\| [y](z) |"
    assert markdown_table(("a",), [("`x` | [y](z)",)])[2] == "| \\`x\\` \\| \\[y\\](z) |"
