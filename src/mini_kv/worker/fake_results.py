"""What a fake call promises of its results, held against what a real call returns.

``opcheck`` compares strides on CUDA only in torch 2.11, and sees the sizes of a few cases. A compiler lays
memory out by what is promised, and promises are made of numbers here and of symbols there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mini_kv.worker.storage import tensors_of


def unlike_promised(
    operator: Callable[..., object], arguments: Sequence[object], *, symbols: bool
) -> str | None:
    """Return what a fake call promises wrongly, with sizes as numbers and, if asked for, as symbols."""
    # Both import sympy, which takes a while: only where the check is asked for.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    returned = [_form(one) for one in tensors_of(operator(*arguments))]
    for sizes in ("numbers", "symbols") if symbols else ("numbers",):
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            fakes = [
                mode.from_tensor(value, static_shapes=sizes == "numbers")
                if isinstance(value, torch.Tensor)
                else value
                for value in arguments
            ]
            promised = [_form(one) for one in tensors_of(operator(*fakes))]
        if len(promised) != len(returned):
            return f"with sizes as {sizes}, a fake call promises {len(promised)} tensors, not {len(returned)}"
        for position, (fake, real) in enumerate(zip(promised, returned, strict=True)):
            wrong = [f"{name} {fake[name]}, not {real[name]}" for name in real if fake[name] != real[name]]
            if wrong:
                return f"with sizes as {sizes}, a fake call promises of result {position} {'; '.join(wrong)}"
    return None


def symbolic_form(arguments: Sequence[object]) -> tuple[object, ...]:
    """Return what a call with symbols for sizes depends on: arguments of equal forms need one such call."""
    return tuple(
        (value.dtype, value.is_contiguous(), tuple(min(extent, 2) for extent in value.shape))
        for value in arguments
        if isinstance(value, torch.Tensor)
    )


def _form(tensor: torch.Tensor) -> dict[str, object]:
    shape = tuple(int(extent) for extent in tensor.shape)
    # The stride of one element, or of none, leads nowhere.
    strides = tuple(
        int(stride) if extent > 1 and tensor.numel() else None
        for extent, stride in zip(shape, tensor.stride(), strict=True)
    )
    return {
        "shape": shape,
        "dtype": tensor.dtype,
        "device": tensor.device,
        "strides": strides,
        "storage offset": int(tensor.storage_offset()),
    }
