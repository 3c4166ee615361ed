"""The grids that can be run: which variants on which shapes, compared with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from research.tuning.build import ALL_SHIPPED
from research.tuning.focus_grid import focused
from research.tuning.variants import Variant
from research.tuning.wide_grid import SHAPES as WIDE_SHAPES
from research.tuning.wide_grid import wide

Shape = tuple[str, int, int, str]  # group, rows, hidden, dtype


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One run's plan."""

    variants: Callable[[], list[Variant]]
    shapes: Sequence[Shape]
    compiled: Sequence[Shape]  # timed through torch.compile too
    shipped: Sequence[str]  # candidates timed with them
    places: int  # of each operand: together more than twice the L2
    shown: int
    triton: bool = False  # a plain Triton kernel too, which takes seconds to compile
    studies: bool = False  # of places and of kept cache lines, on the first shape


_FOCUS_SHAPES = tuple(
    (group, rows, hidden, "f16")
    for group, rows, hidden in (
        ("rmsnorm", 1024, 4096), ("bias_relu", 1024, 4096), ("vector_add", 1, 1 << 20), ("copy", 1024, 4096),
        ("rmsnorm", 65536, 4096), ("bias_relu", 65536, 4096), ("vector_add", 1, 1 << 28),
    )
)  # fmt: skip
GRIDS = {
    "focus": Grid(
        variants=focused,
        shapes=_FOCUS_SHAPES,
        compiled=tuple(shape for shape in _FOCUS_SHAPES if shape[0] in ("rmsnorm", "bias_relu")),
        shipped=ALL_SHIPPED,
        places=12,
        shown=7,
        triton=True,
        studies=True,
    ),
    "wide": Grid(
        variants=wide,
        shapes=WIDE_SHAPES,
        compiled=WIDE_SHAPES,
        shipped=("rmsnorm_v2", "bias_v1", "add_v1"),
        places=16,
        shown=10,
    ),
}


def key_of(shape: Shape) -> str:
    """Return what results of a shape are filed under."""
    group, rows, hidden, dtype = shape
    return f"{group} {rows}x{hidden} {dtype}"
