"""What a tensor is apart from its bytes, before and after a call: shape, storage, version, hooks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mini_kv.core import protocol as p

Forms = list[dict[p.Trait, object] | None]


def forms_of(values: Sequence[object]) -> Forms:
    """Return the traits of every tensor among the values; ``None`` for what is no tensor."""
    return [_form(value) if isinstance(value, torch.Tensor) else None for value in values]


def _form(tensor: torch.Tensor) -> dict[p.Trait, object]:
    return {
        "shape": tuple(tensor.shape),
        "strides": tuple(tensor.stride()),
        "storage_offset": int(tensor.storage_offset()),
        "dtype": tensor.dtype,
        "storage": (tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes()),
        # Counted up by whatever writes to it through torch, also by what is undone before the call returns.
        "version": tensor._version,
        "requires_grad": tensor.requires_grad,
        "grad": None if not tensor.is_leaf or tensor.grad is None else id(tensor.grad),
        "hooks": len(tensor._backward_hooks or ()),
    }


def altered_arguments(before: Forms, arguments: Sequence[object]) -> tuple[p.Altered, ...]:
    """Return the arguments that are other tensors than they were, and in what."""
    found: list[p.Altered] = []
    for position, (old, new) in enumerate(zip(before, forms_of(arguments), strict=True)):
        if old is not None and new is not None and old != new:
            traits = tuple(name for name, trait in old.items() if trait != new[name])
            found.append(p.Altered(argument=position, traits=traits))
    return tuple(found)


def require_plain_results(
    outputs: Sequence[torch.Tensor], arguments: Sequence[object], *, with_gradients: bool
) -> None:
    """Raise ``TypeError`` for a result that lacks memory, or that autograd would take for no result."""
    wanted = with_gradients and any(
        value.requires_grad for value in arguments if isinstance(value, torch.Tensor)
    )
    if any(output.requires_grad for output in outputs) and not wanted:
        raise TypeError("the operator returned a tensor that requires gradients, though no input does")
    if not all(map(_within_its_memory, outputs)):
        raise TypeError("the operator returned a tensor that reaches beyond its memory")
    if any(output.is_inference() for output in outputs):
        raise TypeError("the operator returned a tensor of the inference mode, which autograd refuses later")


def _within_its_memory(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return True
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return needed <= tensor.untyped_storage().nbytes()
