"""A few elements of a timed call's result, read right at its return.

The result itself is copied out only after the batch: to copy it at once would push the inputs out of the
caches between two samples. Until then a thread of the candidate's could have filled it. So what was read at
return replaces what stands in those places later, and is what the oracle judges.

It is the kernel that reads: pages that the candidate has left unreadable, to fill them in the handler of the
fault, are an error there and call no handler.

What is looked at within a CPU's sample is part of the timer plan: ``benchmark.plan.TIMER_PLAN``.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mini_kv.worker.storage import plain, values_of

PLACES = 64


@dataclass(frozen=True, kw_only=True)
class Glimpse:
    """Elements of one tensor by their position in C order, as raw bytes one after the other."""

    places: tuple[int, ...]
    raw: bytes


class Looker:
    """Draws where to look when it looks: what was drawn before a call could be read, and worked on alone."""

    def __init__(self, places: int = PLACES) -> None:
        self._places = places

    def look(self, result: object) -> tuple[Glimpse | None, ...]:
        """Return a glimpse of every tensor of a result; ``None`` where there is nothing to see.

        Raises ``TypeError`` for a tensor that is not plain, ``ValueError`` for memory that nobody can read.
        """
        return tuple(self._one(value) for value in values_of(result))

    def _one(self, value: object) -> Glimpse | None:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.numel() == 0:
            return None
        plain(value)
        places, size = _drawn(self._places, value.numel()), value.element_size()
        if value.is_contiguous():
            offsets = [place * size for place in places]
        else:
            offsets = [_offset_bytes(value, place) for place in places]
        return Glimpse(places=places, raw=_read_by_kernel(value.data_ptr(), offsets, size))


def _drawn(count: int, elements: int) -> tuple[int, ...]:
    # The process's own generators are the candidate's to read; one request to the kernel takes a microsecond.
    raw = os.urandom(8 * count)
    return tuple(sorted(number * elements >> 64 for (number,) in struct.iter_unpack("=Q", raw)))


def _offset_bytes(value: torch.Tensor, place: int) -> int:
    elements = 0
    for extent, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        elements += place % extent * stride
        place //= extent
    return elements * value.element_size()


def _read_by_kernel(address: int, offsets: Sequence[int], size: int) -> bytes:
    # A few hundred bytes: less than any pipe holds.
    views = [(ctypes.c_char * size).from_address(address + offset) for offset in offsets]
    reader, writer = os.pipe()
    try:
        written = os.writev(writer, views)
        raw = os.read(reader, written) if written else b""
    except OSError as error:
        raise ValueError(f"the memory of a result could not be read when it was returned: {error}") from error
    finally:
        os.close(reader)
        os.close(writer)
    if len(raw) != size * len(offsets):
        raise ValueError("the memory of a result could be read in part only when it was returned")
    return raw


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
