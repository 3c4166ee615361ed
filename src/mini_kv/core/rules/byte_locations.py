"""Where a byte of an input lies, in words: the argument by number and name, the element by index. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.tensors import Argument, TensorSpec


@dataclass(frozen=True, kw_only=True)
class Places:
    """The arguments of a call and their names, for sentences about them; either may be unknown."""

    arguments: tuple[Argument, ...] = ()
    names: tuple[str, ...] = ()

    def argument(self, position: int) -> str:
        """Return ``argument 1 ('weight')``."""
        name = f" ('{self.names[position]}')" if position < len(self.names) else ""
        return f"argument {position}{name}"

    def storage(self, blob: int) -> str:
        """Return the argument, or the arguments, whose storage travels as that payload."""
        owners = [
            self.argument(position)
            for position, argument in enumerate(self.arguments)
            if isinstance(argument, TensorSpec) and argument.blob == blob
        ]
        return " and ".join(owners) or f"input payload {blob}"

    def byte(self, blob: int, position: int) -> str:
        """Return where in that storage a byte is: ``element [0, 32]``, or ``byte 128 of its storage``."""
        for argument in self.arguments:
            if isinstance(argument, TensorSpec) and argument.blob == blob:
                index = element_at(argument, position)
                if index is not None:
                    return f"element {list(index)}"
        return f"byte {position} of its storage" if self.arguments else f"byte {position}"

    def tensors(self, dtypes: Sequence[str]) -> list[int]:
        """Return the positions of the tensors of these dtypes."""
        return [
            position
            for position, argument in enumerate(self.arguments)
            if isinstance(argument, TensorSpec) and argument.dtype in dtypes
        ]


def element_at(tensor: TensorSpec, position: int) -> tuple[int, ...] | None:
    """Return the index of the element that holds a byte of the storage; ``None`` for a gap.

    Of an expanded tensor, whose elements share memory, the first index.
    """
    left = position // ITEM_SIZE_BYTES.get(tensor.dtype, 1) - tensor.storage_offset
    if left < 0 or 0 in tensor.shape:
        return None
    index = [0] * len(tensor.shape)
    for dimension in sorted(range(len(index)), key=lambda one: tensor.strides[one], reverse=True):
        stride = tensor.strides[dimension]
        if stride:
            index[dimension] = min(left // stride, tensor.shape[dimension] - 1)
            left -= index[dimension] * stride
    return tuple(index) if left == 0 else None
