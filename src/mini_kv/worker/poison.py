"""What new memory holds before a call, and what lies next to it: never what would be right by chance.

The allocators hand out freed blocks as they are. So blocks of an output's size are filled with a pattern and
freed before the call: an output that is never written shows the pattern. Others stay allocated next to those:
one that is written beyond its end hits them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from mini_kv.worker.heap import mallopt

# Every other block is freed again before the call.
BLOCKS = 7
# On the CPU the heap has holes, each next to a stranger. These fill them and stay, while they are no more
# than so many bytes: what comes after them lies in a row.
PLUGS, PLUG_BYTES = 96, 16 << 20
# An aligned block is cut out of a longer one, so it does not fit where one of its own length was freed.
CUTTING_BYTES = {"cpu": 192, "cuda": 0}
# glibc's mallopt, for what the blocks miss: it fills whatever is allocated with its value's complement.
_M_PERTURB = -6
# Any bit above the byte keeps 0 from meaning "off".
_PERTURB_ON = 0x100


@dataclass(frozen=True, kw_only=True)
class NeighbourBlocks:
    """Blocks that stay allocated next to those that were freed for the outputs."""

    blocks: tuple[torch.Tensor, ...]
    pattern: int

    def stray_writes(self) -> int:
        """Return how many of them were written to."""
        return sum(bool((block != self.pattern).any()) for block in self.blocks)


def poison(size_bytes: int, pattern: int, device: torch.device) -> NeighbourBlocks:
    """Fill blocks of ``size_bytes`` with ``pattern``, free some for the outputs, keep their neighbours."""
    if size_bytes == 0:
        return NeighbourBlocks(blocks=(), pattern=pattern)

    def filled(count: int, more_bytes: int = 0) -> list[torch.Tensor]:
        length = size_bytes + more_bytes
        return [torch.full((length,), pattern, dtype=torch.uint8, device=device) for _ in range(count)]

    plugs = filled(min(PLUGS, PLUG_BYTES // size_bytes)) if device.type == "cpu" else []
    blocks = [filled(1, position % 2 * CUTTING_BYTES[device.type])[0] for position in range(BLOCKS)]
    return NeighbourBlocks(blocks=(*plugs, *blocks[::2]), pattern=pattern)


@contextmanager
def perturbed(pattern: int, device: torch.device) -> Iterator[None]:
    """Have the C library fill what is allocated in the block with ``pattern``; nothing where it cannot."""
    tune = mallopt() if device.type == "cpu" else None
    if tune is None:
        yield
        return
    tune(_M_PERTURB, _PERTURB_ON | (pattern ^ 0xFF))
    try:
        yield
    finally:
        tune(_M_PERTURB, 0)
