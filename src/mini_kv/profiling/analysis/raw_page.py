"""The raw page of a report as CSV: a row of names, a row of units, then one row a kernel launch."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence

from mini_kv.core.record import Record
from mini_kv.profiling.analysis.units import Dimension, convert, number

FIRST_COLUMN = "ID"
KERNEL_COLUMN = "Kernel Name"
MAX_ROWS = 10_000

_EXTENTS = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")


class MalformedPage(ValueError):
    """The text is not a raw page; the message is one sentence."""


class KernelRow(Record, frozen=True, kw_only=True):
    """One profiled launch: every cell of its row as printed, with the columns' units."""

    kernel: str
    cells: dict[str, str]
    units: dict[str, str]

    def quantity(self, names: Sequence[str], dimension: Dimension) -> float | None:
        """Return the first of these metrics that the row holds, converted; ``None`` without any."""
        for name in names:
            if name in self.cells:
                value = convert(self.cells[name], self.units.get(name, ""), dimension)
                if value is not None:
                    return value
        return None

    def extents(self, column: str, stem: str) -> tuple[int, int, int] | None:
        """Return a grid's or block's extents from its column, or from the metrics ``stem`` x, y and z."""
        found = _EXTENTS.fullmatch(self.cells.get(column, "").strip())
        if found is not None:
            x, y, z = (int(part) for part in found.groups())
            return (x, y, z) if min(x, y, z) >= 1 else None
        sizes = [number(self.cells.get(stem + axis, "")) for axis in "xyz"]
        if any(size is None or size < 1 or size != int(size) for size in sizes):
            return None
        x, y, z = (int(size) for size in sizes if size is not None)
        return x, y, z


def parse_raw_page(text: str) -> tuple[KernelRow, ...]:
    """Return the rows of a raw page; none when nothing was profiled.

    Lines that the tool says before the table (``==PROF==``, ``==WARNING==``) are passed over. Raises
    :class:`MalformedPage` for anything else that is not a whole, rectangular table.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if line.lstrip('"').startswith(FIRST_COLUMN)), None)
    before = lines if start is None else lines[:start]
    if any(line.strip() and not line.startswith("==") for line in before):
        raise MalformedPage("the page does not begin with its row of names.")
    if start is None:
        raise MalformedPage("the page holds no table.")
    try:
        table = [row for row in csv.reader(lines[start:], strict=True) if row]
    except csv.Error as error:
        raise MalformedPage(f"the page is not CSV: {error}.") from error
    return _rows(table)


def _rows(table: list[list[str]]) -> tuple[KernelRow, ...]:
    names = table[0]
    if not {FIRST_COLUMN, KERNEL_COLUMN} <= set(names) or len(set(names)) != len(names):
        raise MalformedPage("its row of names lacks one that every page has, or holds one twice.")
    for place, row in enumerate(table[1:], start=2):
        if len(row) != len(names):
            raise MalformedPage(f"row {place} has {len(row)} cells where {len(names)} are named.")
    if len(table) < 2 or any(table[1][names.index(name)] for name in (FIRST_COLUMN, KERNEL_COLUMN)):
        raise MalformedPage("the row of units is missing.")
    if len(table) - 2 > MAX_ROWS:
        raise MalformedPage(f"it holds more than {MAX_ROWS} rows.")
    units = {name: unit for name, unit in zip(names, table[1], strict=True) if unit}
    return tuple(_row(dict(zip(names, row, strict=True)), units) for row in table[2:])


def _row(cells: Mapping[str, str], units: dict[str, str]) -> KernelRow:
    if not cells[KERNEL_COLUMN]:
        raise MalformedPage("a row names no kernel.")
    return KernelRow(kernel=cells[KERNEL_COLUMN], cells=dict(cells), units=units)
