"""Tables as text, for every page and command: aligned for a terminal, or in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from mini_kv.core.printable import markdown_cell

NO_FIGURE = "-"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column for a terminal: its head, its least width in characters, and the side its cells lie on."""

    head: str
    width: int = 0
    left: bool = False


def figure(value: float | None, digits: int) -> str:
    """Return a number with so many digits behind the point, or a dash for none."""
    return NO_FIGURE if value is None else f"{value:.{digits}f}"


def text_row(cells: Sequence[str], columns: Sequence[Column], *, gap: str = " ") -> str:
    """Return one line. A cell that is longer than its column pushes the rest to the right, and is never cut.

    Raises ``ValueError`` where there are not as many cells as columns.
    """
    return gap.join(
        cell.ljust(column.width) if column.left else cell.rjust(column.width)
        for cell, column in zip(cells, columns, strict=True)
    )


def head_row(columns: Sequence[Column], *, gap: str = " ") -> str:
    """Return the line of the heads, which :func:`text_row` with the same columns continues."""
    return text_row([column.head for column in columns], columns, gap=gap)


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    """Return the columns, each wide enough for its head and every cell of ``rows``."""
    widths = [
        max(column.width, len(column.head), *(len(row[place]) for row in rows))
        for place, column in enumerate(columns)
    ]
    return tuple(replace(column, width=width) for column, width in zip(columns, widths, strict=True))


def markdown_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right_aligned: Set[str] = frozenset(),
    cell: Callable[[str], str] = markdown_cell,
) -> list[str]:
    """Return the lines of a table in GitHub's Markdown; heads named in ``right_aligned`` have numbers below.

    Every head and cell goes through ``cell``, which unless told otherwise shows any text as it is;
    :func:`as_markdown` is for cells that are Markdown themselves. Raises ``ValueError`` for a row that has
    fewer or more cells than there are heads.
    """
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"a row has not the {len(head)} cells of the table's head")
    rule = "|".join("---:" if name in right_aligned else "---" for name in head)
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in (head, *rows)]
    return [lines[0], f"|{rule}|", *lines[1:]]


def as_markdown(text: str) -> str:
    """Return Markdown that we wrote ourselves as one cell: on one line, its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")
