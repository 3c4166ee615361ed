"""How much of the GPU's memory a process of the study takes: all of a wave live at once."""

from __future__ import annotations

from collections.abc import Iterable

from mini_kv.benchmark.samples import ROTATING_SETS
from research.gate_study.records import Kernel

# Of the 139 GiB of an H200: the rest is left to the driver and to what the estimate does not know.
ROOM_BYTES = 100 << 30
# A CUDA context with torch's kernels, and the buffer that is overwritten before each sample.
CONTEXT_BYTES = 768 << 20
# As well as those that are kept: the warm-up's last output and a call's own, and two of a captured graph.
MORE_OUTPUTS = 4


def process_bytes(kernels: Iterable[Kernel], levels: int) -> int:
    """Return the GPU memory, bytes, of a process that has measured the kernels at that many levels.

    The operands of every batch stay, so that no later one takes their place; outputs of timed calls are kept
    until the batch ends, and their memory stays with the allocator. Kernels of one size share both.
    """
    sizes: dict[int, list[Kernel]] = {}
    for kernel in kernels:
        sizes.setdefault(kernel.kib << 10, []).append(kernel)
    total = CONTEXT_BYTES
    for size_bytes, alike in sizes.items():
        pairs = levels * max(kernel.batches for kernel in alike) * ROTATING_SETS
        outputs = max(kernel.iterations for kernel in alike) + MORE_OUTPUTS
        total += (2 * pairs + outputs) * size_bytes
    return total


def fitting_wave(wanted: int, kernels: Iterable[Kernel], levels: int) -> int:
    """Return how many processes may live at once: ``wanted``, or as many as there is room for, at least 1."""
    return max(1, min(wanted, ROOM_BYTES // process_bytes(kernels, levels)))
