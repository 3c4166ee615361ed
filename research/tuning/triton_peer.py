"""A plain Triton rmsnorm, one program a row: what a Triton user would write first."""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit  # type: ignore[untyped-decorator]
def _row(x, w, out, hidden, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    v = tl.load(x + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / hidden + eps)
    tl.store(out + row * hidden + columns, (v * scale * weight).to(out.dtype.element_ty), mask=inside)


def launch(x: Any, w: Any, out: Any, eps: float, warps: int) -> None:
    """Normalise the rows of ``x`` ([rows, hidden]) into ``out`` with ``warps`` warps a program."""
    rows, hidden = x.shape
    _row[(rows,)](x, w, out, hidden, eps, BLOCK=triton.next_power_of_2(hidden), num_warps=warps)
