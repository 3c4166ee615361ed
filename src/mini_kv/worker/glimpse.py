"""A few elements of a timed call's result, read right at its return.

The result itself is copied out only after the batch: to copy it at once would push the inputs out of the
caches between two samples. Until then a thread of the candidate's could have filled it. So what was read at
return replaces what stands in those places later, and is what the oracle judges.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

PLACES = 64


@dataclass(frozen=True, kw_only=True)
class Glimpse:
    """Elements of one tensor by their position in C order, as raw bytes one after the other."""

    places: tuple[int, ...]
    raw: bytes


class Looker:
    """Draws, once a batch, where to look; the candidate cannot know it before it returns."""

    def __init__(self) -> None:
        chance = random.SystemRandom()  # the process's own generators are the candidate's to read
        self._fractions = sorted(chance.random() for _ in range(PLACES))
        self._indices: dict[int, torch.Tensor] = {}

    def look(self, result: object) -> tuple[Glimpse | None, ...]:
        """Return a glimpse of every tensor of a result; ``None`` where there is nothing to see."""
        values = result if isinstance(result, tuple | list) else (result,)
        return tuple(self._one(value) for value in values)

    def _one(self, value: object) -> Glimpse | None:
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.numel() == 0:
            return None
        count = value.numel()
        index = self._indices.get(count)
        if index is None:
            index = torch.tensor([int(fraction * count) for fraction in self._fractions])
            self._indices[count] = index
        seen = value.detach().reshape(-1)[index]
        return Glimpse(places=tuple(index.tolist()), raw=bytes(seen.view(torch.uint8).tolist()))


def overlay(payload: bytes, glimpse: Glimpse | None) -> bytes:
    """Return a tensor's bytes with what was seen at return in its places."""
    if glimpse is None:
        return payload
    size = len(glimpse.raw) // len(glimpse.places)
    laid = bytearray(payload)
    for number, place in enumerate(glimpse.places):
        laid[place * size : (place + 1) * size] = glimpse.raw[number * size : (number + 1) * size]
    return bytes(laid)


def overlay_all(payloads: Sequence[bytes], glimpses: Sequence[Glimpse | None]) -> list[bytes]:
    """Do so for every output of a call."""
    return [overlay(raw, one) for raw, one in zip(payloads, glimpses, strict=True)]
