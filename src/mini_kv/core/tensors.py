"""Tensors as facts and bytes: how arguments and results cross a process boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.record import Record

# Each input's storage lies between two zones of this size: room for a stray row or vector.
GUARD_BYTES = 16 << 10

NonNegative = Annotated[int, Meta(ge=0)]


class TensorSpec(Record, frozen=True, kw_only=True, tag="tensor"):
    """A strided view into one storage. ``storage_offset`` and ``strides`` count elements.

    ``storage_bytes`` is the length of the storage's payload, ``blob`` its index among the payloads of
    the message (storages are sent whole: the gaps between a strided tensor's elements too).
    """

    shape: tuple[NonNegative, ...]
    strides: tuple[NonNegative, ...]
    storage_offset: NonNegative
    dtype: str
    device: str
    storage_bytes: NonNegative
    blob: NonNegative


class ScalarArg(Record, frozen=True, kw_only=True, tag="scalar"):
    """A non-tensor argument. Non-finite floats travel as text in ``special``."""

    value: bool | int | float | str | None = None
    special: str | None = None


class AbsentArg(Record, frozen=True, kw_only=True, tag="absent"):
    """An optional argument that is ``None``."""


Argument = TensorSpec | ScalarArg | AbsentArg


class OutputSpec(Record, frozen=True, kw_only=True):
    """What a call returned, as the candidate's process tells it; the judge checks it against the plan.

    ``held`` says that something other than the caller holds the result's memory.
    """

    shape: tuple[NonNegative, ...]
    strides: tuple[int, ...]
    storage_offset: NonNegative
    dtype: str
    device: str
    aliases_input: int | None
    blob: NonNegative | None
    held: bool = False


def element_count(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape (1 for a 0-dimensional tensor)."""
    count = 1
    for extent in shape:
        count *= extent
    return count


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return PyTorch's row-major strides: extents of 0 count as 1."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def input_bytes(arguments: Sequence[Argument]) -> int:
    """Return the elements' bytes of all tensor arguments: the size by which inputs are ordered."""
    return sum(
        element_count(argument.shape) * ITEM_SIZE_BYTES.get(argument.dtype, 8)
        for argument in arguments
        if isinstance(argument, TensorSpec)
    )
