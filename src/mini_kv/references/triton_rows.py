"""A peer in Triton: rmsnorm with one program a row, as a Triton user writes it first.

A module of its own, since PyTorch without CUDA brings no Triton: only a card that names it imports it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from mini_kv.references import rmsnorm as formula

# Elements a thread holds at most before a program gets more warps, and how many of those there are.
ELEMENTS_A_WARP = 512
MAX_WARPS = 16


@triton.jit  # type: ignore[untyped-decorator]
def _row(x: Any, weight: Any, out: Any, hidden: Any, eps: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    v = tl.load(x + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / hidden + eps)
    tl.store(out + row * hidden + columns, (v * scale * w).to(out.dtype.element_ty), mask=inside)


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return what ``rmsnorm.reference`` does; off the GPU, and in FP64, it is that."""
    if x.dtype == torch.float64 or x.device.type != "cuda":
        return formula.reference(x, weight, eps)
    dense = x.contiguous()
    out = torch.empty_like(dense)
    hidden = weight.numel()
    if out.numel():
        _row[(out.numel() // hidden,)](dense, weight.contiguous(), out, hidden, eps, **launch_form(hidden))
    return out


def launch_form(hidden: int) -> dict[str, int]:
    """Return the block of columns (a power of two) and the warps of a program."""
    block = triton.next_power_of_2(hidden)
    return {"BLOCK": block, "num_warps": min(max(block // ELEMENTS_A_WARP, 1), MAX_WARPS)}
