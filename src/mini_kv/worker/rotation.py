"""Copies of argument sets, enough of them that no cache can hold on to one until its turn comes again.

Overwriting a buffer of twice the L2 evicts ordinary lines only: what a kernel loads with the hint
``evict_last`` outlives that, and the next call on the same set would find it. Sets that together are larger
than the L2 push each other out. They also lie at as many places, and a memory-bound kernel's time depends
on its buffers' places.

Part of the timer plan: see ``benchmark.plan.TIMER_PLAN`` before changing how sets rotate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

ArgumentSet = Sequence[object]

# Sets of next to no bytes would need thousands of copies; what they leave in a cache saves next to nothing.
MAX_COPIES = 24


def rotation(sets: Sequence[ArgumentSet], room_bytes: int) -> list[ArgumentSet]:
    """Return the sets followed by copies of them all, until they hold more than ``room_bytes``.

    Position ``i`` of the result holds a copy of set ``i % len(sets)``, in memory of its own.
    """
    rotating = list(sets)
    size_bytes = sum(map(storage_bytes, sets))
    copies = math.ceil(room_bytes / size_bytes) if size_bytes else 1
    for _ in range(1, min(max(copies, 1), MAX_COPIES)):
        rotating += [copied(arguments) for arguments in sets]
    return rotating


def storage_bytes(arguments: ArgumentSet) -> int:
    """Return the bytes of all storages of one set; tensors that share one count it once."""
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in arguments
        if isinstance(value, torch.Tensor) and value.device.type != "meta"
    }
    return sum(storages.values())


def copied(arguments: ArgumentSet) -> ArgumentSet:
    """Return the arguments with every storage, gaps included, copied on its device; sharing is kept."""
    storages: dict[int, torch.Tensor] = {}

    def one(value: object) -> object:
        if not isinstance(value, torch.Tensor) or value.device.type == "meta":
            return value
        storage = value.untyped_storage()
        flat = storages.get(storage.data_ptr())
        if flat is None:
            flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage).clone()
            storages[storage.data_ptr()] = flat
        return torch.empty(0, dtype=value.dtype, device=value.device).set_(
            flat.untyped_storage(), value.storage_offset(), value.size(), value.stride()
        )

    return [one(value) for value in arguments]
