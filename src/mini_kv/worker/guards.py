"""Guard zones: each input storage lies between two patterned zones of one larger allocation.

The operator sees a storage of exactly the size that the plan states, at an aligned address; what it
writes next to it stands in the zones afterwards, and what it reads there differs between two rounds, so
that a result which depends on it does not repeat.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mini_kv.core.tensors import GUARD_BYTES, Argument, TensorSpec
from mini_kv.worker.channel import Payload
from mini_kv.worker.storage import import_arguments, tensor_bytes

# Not less than any allocator of torch gives: 64 bytes on the CPU, 512 on CUDA.
ALIGNMENT_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """One storage between its zones; ``whole`` keeps the allocation and sees all of it."""

    storage: torch.Tensor
    whole: torch.Tensor
    first: int
    size_bytes: int

    def refill(self, payload: Payload, pattern: int) -> None:
        """Put other bytes, as many, in the place of those that are there, and ``pattern`` into the zones."""
        self.whole.fill_(pattern)
        self.whole[self.first : self.first + self.size_bytes].copy_(
            torch.frombuffer(payload, dtype=torch.uint8)
        )

    def zones(self) -> bytes:
        """Return both zones as they are now: ``GUARD_BYTES`` before the storage, as many behind it."""
        behind = self.first + self.size_bytes
        return tensor_bytes(self.whole[self.first - GUARD_BYTES : self.first]) + tensor_bytes(
            self.whole[behind : behind + GUARD_BYTES]
        )


@dataclass(frozen=True, kw_only=True)
class GuardedArguments:
    """Call arguments and the guarded storages behind them, by the number of their payload."""

    arguments: Sequence[Argument]
    values: list[object]
    guarded: dict[int, Guarded]

    def zones(self, payloads: int) -> list[bytes]:
        """Return the zones of every payload, in order; nothing for a storage without bytes."""
        return [self.guarded[blob].zones() if blob in self.guarded else b"" for blob in range(payloads)]


def import_guarded(
    arguments: Sequence[Argument],
    payloads: Sequence[Payload],
    pattern: int,
    earlier: GuardedArguments | None = None,
    version: int = 0,
) -> GuardedArguments:
    """Rebuild call arguments in guarded memory; zones are filled with the byte ``pattern``.

    Memory is fresh, and counts as written to ``version`` times, unless ``earlier`` arguments have the same
    forms: then their tensors get the new values.
    """
    if earlier is not None and _forms(earlier.arguments) == _forms(arguments):
        return _refilled(earlier, arguments, payloads, pattern)
    guarded: dict[int, Guarded] = {}
    for argument in arguments:
        if isinstance(argument, TensorSpec) and argument.device != "meta" and argument.blob not in guarded:
            payload = payloads[argument.blob]
            if memoryview(payload).nbytes:
                guarded[argument.blob] = guard(payload, argument.device, pattern)
    storages = {blob: made.storage for blob, made in guarded.items()}
    values = import_arguments(arguments, payloads, storages)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    for _ in range(version):
        torch.autograd.graph.increment_version(tensors)
    return GuardedArguments(arguments=arguments, values=values, guarded=guarded)


def _forms(arguments: Sequence[Argument]) -> list[TensorSpec | None]:
    return [argument if isinstance(argument, TensorSpec) else None for argument in arguments]


def _refilled(
    earlier: GuardedArguments, arguments: Sequence[Argument], payloads: Sequence[Payload], pattern: int
) -> GuardedArguments:
    for blob, made in earlier.guarded.items():
        made.refill(payloads[blob], pattern)
    tensors = [value for value in earlier.values if isinstance(value, torch.Tensor)]
    # What asks for a tensor's version may rely on it: only a memory of addresses is deceived.
    torch.autograd.graph.increment_version(tensors)
    scalars = import_arguments([one for one in arguments if not isinstance(one, TensorSpec)], payloads)
    kept, new = iter(tensors), iter(scalars)
    values = [next(kept) if isinstance(one, TensorSpec) else next(new) for one in arguments]
    return GuardedArguments(arguments=arguments, values=values, guarded=earlier.guarded)


def guard(payload: Payload, device: str, pattern: int) -> Guarded:
    """Copy a payload (at least one byte) between two zones on ``device``."""
    size = memoryview(payload).nbytes
    total = size + 2 * GUARD_BYTES + ALIGNMENT_BYTES
    if device == "cpu":
        # The storage that torch makes over this memory keeps it alive, wherever the operator keeps it.
        memory = (ctypes.c_char * total)()
        view = memoryview(memory).cast("B")
        first = _first(ctypes.addressof(memory))
        view[:first] = bytes([pattern]) * first
        view[first : first + size] = payload
        view[first + size :] = bytes([pattern]) * (total - first - size)
        whole = torch.frombuffer(view, dtype=torch.uint8)
        storage = torch.frombuffer(view[first : first + size], dtype=torch.uint8)
        return Guarded(storage=storage, whole=whole, first=first, size_bytes=size)
    whole = torch.full((total,), pattern, dtype=torch.uint8, device=device)
    first = _first(whole.data_ptr())
    whole[first : first + size].copy_(torch.frombuffer(payload, dtype=torch.uint8))
    return Guarded(storage=_interior(whole, first, size), whole=whole, first=first, size_bytes=size)


def _first(address: int) -> int:
    # The first aligned place that leaves room for a zone before it.
    return GUARD_BYTES + -(address + GUARD_BYTES) % ALIGNMENT_BYTES


def _interior(whole: torch.Tensor, first: int, size: int) -> torch.Tensor:
    # A storage of its own that begins inside the allocation and does not own it: whole must be kept.
    make = torch._C._construct_storage_from_data_pointer
    storage = make(whole.data_ptr() + first, whole.device, size)
    return torch.empty(0, dtype=torch.uint8, device=whole.device).set_(storage)
