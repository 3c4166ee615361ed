"""A wrong derivative is told with its place and its two values, not with two matrices cut in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mini_kv.worker.contract_checks import gradcheck
from mini_kv.worker.jacobians import wrong_derivative


def product(spoil: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[..., object]:
    """Return ``(x + y, x * y)``; ``spoil`` changes the gradients of the second."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            x, y = ctx.saved_tensors
            first, second = grad * y, grad * x
            spoil(first, second)
            return first, second

    return lambda x, y: (x + y, Product.apply(x, y))


def inputs() -> list[Any]:
    return [torch.arange(1.0, 301.0).reshape(20, 15), torch.full((20, 15), 3.0)]


def test_a_jacobian_was_cut_off_before_the_element_that_differs() -> None:
    def spoil(first: torch.Tensor, second: torch.Tensor) -> None:
        second[17, 3] *= 1.5  # x[17, 3] = 259

    told = gradcheck(product(spoil), [inputs()], True)["gradcheck"]
    assert told == (
        "the derivative of result 1 with respect to input 1 is wrong in 1 of 90000 elements; the largest "
        "difference is 129.5, at [17, 3] of the result and [17, 3] of the input: 259 by central differences, "
        "388.5 by the backward"
    )


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_derivative_that_is_no_number_is_the_largest_difference(wrong: float) -> None:
    def spoil(first: torch.Tensor, second: torch.Tensor) -> None:
        first += 1000.0
        first[0, 2] = wrong

    told = gradcheck(product(spoil), [inputs()], True)["gradcheck"]
    assert told is not None and told.endswith(f"by central differences, {wrong} by the backward")
    assert "and [0, 2] of the input" in told


def test_right_derivatives_are_none_that_differ_and_neither_are_those_of_no_elements() -> None:
    def whole(*values: torch.Tensor) -> list[torch.Tensor]:
        return [value.double().requires_grad_(True) for value in values]

    assert wrong_derivative(product(lambda *_: None), whole(*inputs())) is None
    assert wrong_derivative(product(lambda *_: None), whole(torch.ones(0), torch.ones(0))) is None
