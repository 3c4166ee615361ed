"""Gradients of an operator or a reference, in the same way in both processes, for the oracle to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mini_kv.worker.storage import as_outputs


def gradients_of(function: Callable[..., object], arguments: Sequence[object]) -> list[torch.Tensor]:
    """Return the gradient for every floating-point tensor among the arguments, in order, in fresh memory.

    The results are weighted with values of both signs that every dtype holds exactly. An input that does not
    count has zeros. Raises ``ValueError`` where no result carries a gradient, and what autograd raises.
    """
    inputs = [
        value.detach().requires_grad_(True)
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
        else value
        for value in arguments
    ]
    wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    with torch.enable_grad():
        outputs = [output for output in as_outputs(function(*inputs)) if output.requires_grad]
        if not outputs:
            raise ValueError("no output carries a gradient although inputs require one")
        weights = [_weights(output) for output in outputs]
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            outputs, wanted, grad_outputs=weights, allow_unused=True
        )
    return [
        torch.zeros_like(value, memory_format=torch.contiguous_format)
        if gradient is None
        else gradient.detach().clone(memory_format=torch.contiguous_format)
        for value, gradient in zip(wanted, found, strict=True)
    ]


def _weights(output: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(output.numel(), device=output.device) % 7 - 3
    return (steps.to(output.dtype) / 4.0).reshape(output.shape)
