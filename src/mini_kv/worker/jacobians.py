"""Where a derivative is wrong: one element, by the backward and by central differences, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mini_kv.worker.gradients import carries_gradient
from mini_kv.worker.storage import as_outputs

Operator = Callable[..., object]

# What torch.autograd.gradcheck allows by default.
STEP, RTOL, ATOL = 1e-6, 1e-3, 1e-5
MAX_ELEMENTS = 4_000_000


def wrong_derivative(operator: Operator, inputs: Sequence[object]) -> str | None:
    """Return where the derivatives of float64 ``inputs`` that require gradients are furthest off.

    ``None`` where all of them are within gradcheck's limits, or are too many to be made. Raises what the
    operator or its backward raises.
    """
    wanted = {
        place: value
        for place, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and value.requires_grad
    }
    outputs = as_outputs(operator(*inputs))
    for number, output in enumerate(outputs):
        for place, value in wanted.items():
            if not 0 < output.numel() * value.numel() <= MAX_ELEMENTS or not carries_gradient(output):
                continue
            backward = _by_backward(output, value)
            differences = _by_differences(operator, inputs, place, number)
            off = (backward - differences).abs()
            wrong = ~(off <= ATOL + RTOL * differences.abs())  # NaN is wrong too
            if bool(wrong.any()):
                return _sentence(operator, (number, output), (place, value), backward, differences)
    return None


def _by_backward(output: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the Jacobian (elements of the output x elements of the input) row by row."""
    rows = torch.zeros(output.numel(), value.numel(), dtype=torch.float64)
    for row in range(output.numel()):
        one = torch.zeros(output.shape, dtype=output.dtype, device=output.device)
        one.reshape(-1)[row] = 1.0
        (found,) = torch.autograd.grad(output, value, one, retain_graph=True, allow_unused=True)
        if found is not None:
            rows[row] = found.detach().reshape(-1)
    return rows


def _by_differences(operator: Operator, inputs: Sequence[object], place: int, number: int) -> torch.Tensor:
    """Return the same Jacobian column by column."""
    centre = inputs[place]
    assert isinstance(centre, torch.Tensor)

    def moved(column: int, step: float) -> torch.Tensor:
        there = centre.detach().clone(memory_format=torch.contiguous_format)
        there.view(-1)[column] += step
        arguments = [there if at == place else value for at, value in enumerate(inputs)]
        with torch.no_grad():
            return as_outputs(operator(*arguments))[number].reshape(-1)

    columns = [
        (moved(column, STEP) - moved(column, -STEP)) / (2.0 * STEP) for column in range(centre.numel())
    ]
    return torch.stack(columns, dim=1).to("cpu")


def _sentence(
    operator: Operator,
    result: tuple[int, torch.Tensor],
    argument: tuple[int, torch.Tensor],
    backward: torch.Tensor,
    differences: torch.Tensor,
) -> str:
    (number, output), (place, value) = result, argument
    off = (backward - differences).abs()
    wrong = ~(off <= ATOL + RTOL * differences.abs())
    worst = int(torch.where(wrong, off.nan_to_num(nan=torch.inf), -1.0).argmax())
    row, column = divmod(worst, value.numel())
    largest = float(off[row, column])
    return (
        f"the derivative of result {number} with respect to input {place}{_name(operator, place)} is wrong "
        f"in {int(wrong.sum())} of {wrong.numel()} elements; the largest difference is {largest:.6g}, "
        f"at {_index(row, output)} of the result and {_index(column, value)} of the input: "
        f"{float(differences[row, column]):.6g} by central differences, "
        f"{float(backward[row, column]):.6g} by the backward"
    )


def _index(flat: int, tensor: torch.Tensor) -> str:
    index: list[int] = []
    for extent in reversed(tensor.shape):
        flat, here = divmod(flat, int(extent))
        index.append(here)
    return str(index[::-1])


def _name(operator: Operator, place: int) -> str:
    if isinstance(operator, torch._ops.OpOverload):
        return f" ({operator._schema.arguments[place].name})"
    return ""
