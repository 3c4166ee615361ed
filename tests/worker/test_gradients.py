"""Gradients are compared with the reference's by the oracle, in the dtype of the case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.core.records.card import CaseKind, Contract, Tolerance
from mini_kv.correctness.rounds import wants_gradients
from mini_kv.worker.contract_checks import gradcheck
from mini_kv.worker.gradients import GradientFault, gradients_of
from mini_kv.worker.numerics import GRADIENT_FACTOR, compare, expect_gradient, reference_within_tolerance
from mini_kv.worker.oracle import Oracle
from probe import probe_card, probe_case, probe_subject

TOLERANCES = {"float32": Tolerance(rtol=1e-5, atol=1e-6)}
SEED = "00" * 8


def test_every_floating_input_has_a_gradient_and_one_that_does_not_count_has_zeros() -> None:
    x, unused, index = torch.arange(7.0), torch.ones(2), torch.tensor([1])
    found = gradients_of(lambda x, unused, index, factor: factor * x, [x, unused, index, 2.0], SEED)
    (again,) = gradients_of(lambda x: 2.0 * x, [x], SEED)
    together, alone = found[:2], found[2:]
    for first, second in (together, alone):
        assert torch.equal(first, again)
        assert second.tolist() == [0.0, 0.0]
    assert not x.requires_grad


def test_a_result_without_a_gradient_is_no_gradient() -> None:
    with pytest.raises(ValueError, match="no output carries a gradient"):
        gradients_of(lambda x: x.detach() * 2.0, [torch.ones(3)], SEED)


def test_a_gradient_is_held_against_its_largest_element() -> None:
    """A sum of terms that cancel is as uncertain as the terms are large."""
    exact = torch.tensor([1000.0, 0.0], dtype=torch.float64)
    want = expect_gradient(exact.float(), exact, TOLERANCES)
    assert reference_within_tolerance([want])
    allowed = GRADIENT_FACTOR * (1e-6 + 1e-5 * 1000.0)
    near, far = torch.tensor([1000.0, 0.9 * allowed]), torch.tensor([1000.0, 1.1 * allowed])
    assert compare([near], [want]).mismatch_count == 0
    assert compare([far], [want]).mismatch_count == 1
    assert compare([torch.tensor([1000.0, float("nan")])], [want]).mismatch_count == 1


def test_gradients_of_layouts_and_boundaries_are_compared_too() -> None:
    """A formula that ignores the strides of what it saved was right in every core case."""
    contract = Contract(functional=True, gradcheck=True)
    kinds = {
        kind
        for kind in CaseKind
        if wants_gradients(
            probe_card(probe_case("a", 0), contract=contract),
            msgspec.structs.replace(probe_subject(probe_card(probe_case("a", 0))).manifest, autograd=True),
            probe_case("a", 0, kind),
        )
    }
    assert kinds == {CaseKind.CORE, CaseKind.LAYOUT, CaseKind.BOUNDARY}


def test_a_reference_that_is_nearly_outside_itself_judges_no_gradient() -> None:
    """Where all terms cancel, a right formula that rounds elsewhere would be held against chance."""
    exact = torch.tensor([1.0, 0.0], dtype=torch.float64)
    allowed = GRADIENT_FACTOR * (1e-6 + 1e-5)
    for error, judges in ((0.2, True), (0.5, False)):
        own = (exact + error * allowed * torch.tensor([0.0, 1.0])).float()
        assert reference_within_tolerance([expect_gradient(own, exact, TOLERANCES)]) is judges


def test_the_oracle_keeps_and_forgets_the_gradients_of_a_case() -> None:
    oracle = Oracle()
    oracle.answer(p.Hello(device="cpu", threads=1), ())
    module = "mini_kv.references.rmsnorm"
    oracle.answer(
        p.LoadReference(
            reference=f"{module}:reference", input_factory=f"{module}:make_inputs", tolerances=TOLERANCES
        ),
        (),
    )
    made, _ = oracle.answer(
        p.MakeCase(
            key="a", params={"shape": (3, 5)}, seed="00" * 8, expect_values=True, expect_gradients=True
        ),
        (),
    )
    assert isinstance(made, p.CaseMade)
    assert [want.shape for want in made.gradients] == [(3, 5), (5,)] * 2
    plain, _ = oracle.answer(
        p.MakeCase(key="b", params={"shape": (3, 5)}, seed="00" * 8, expect_values=True), ()
    )
    assert isinstance(plain, p.CaseMade) and plain.gradients == ()
    oracle.answer(p.Forget(key="a"), ())
    with pytest.raises(KeyError):
        oracle.answer(p.Compare(key=p.gradients_key("a"), outputs=()), ())


def _formula(backward: Callable[[Any, torch.Tensor], object]) -> Callable[..., object]:
    """Return ``x * y`` with a formula for its gradients."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x * y

    Product.backward = staticmethod(backward)  # type: ignore[assignment, method-assign]
    return Product.apply  # type: ignore[no-any-return]


def _right(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = ctx.saved_tensors
    return grad * y, grad * x


def _inputs() -> list[object]:
    return [torch.arange(1.0, 13.0).reshape(3, 4), torch.arange(2.0, 14.0).reshape(3, 4)]


def _wrong_in(function: Callable[..., object]) -> list[int]:
    """Return which gradients of ``x * y`` are wrong: 0 and 1 asked for together, 2 and 3 each alone."""
    found = gradients_of(function, _inputs(), SEED, strained=True)
    wanted = gradients_of(lambda x, y: x * y, _inputs(), SEED)
    pairs = zip(found, wanted, strict=True)
    return [position for position, (got, want) in enumerate(pairs) if not torch.equal(got, want)]


def test_a_right_formula_is_right_under_strain() -> None:
    assert _wrong_in(_formula(_right)) == []


def test_weights_of_gradients_are_secret() -> None:
    """A formula that ignores what it is given was right where that was always the same."""
    product = _formula(_right)
    first = gradients_of(product, _inputs(), SEED)
    second = gradients_of(product, _inputs(), "11" * 8)
    assert not torch.equal(first[0], second[0])


def test_a_formula_that_ignores_the_strides_of_a_gradient_is_wrong() -> None:
    """``y.sum().backward()`` gives an expanded one, a slice of the result one with gaps."""

    def backward(ctx: Any, grad: torch.Tensor) -> object:
        flat = grad.as_strided((grad.numel(),), (1,), grad.storage_offset())
        return _right(ctx, flat.reshape(grad.shape))

    assert _wrong_in(_formula(backward)) == [0, 1, 2, 3]


def test_a_formula_that_leaves_out_more_than_is_not_wanted_is_wrong() -> None:
    def backward(ctx: Any, grad: torch.Tensor) -> object:
        first, second = _right(ctx, grad)
        return (first, second) if all(ctx.needs_input_grad) else (0 * first, second)

    assert _wrong_in(_formula(backward)) == [2]


def test_a_formula_that_keeps_the_last_call_only_is_wrong() -> None:
    """Two calls and then the backward of the first: every network with two layers does it."""
    last: list[torch.Tensor] = []

    def product(x: torch.Tensor, y: torch.Tensor) -> object:
        last[:] = [x.detach(), y.detach()]
        return _formula(lambda ctx, grad: (grad * last[1], grad * last[0]))(x, y)

    assert _wrong_in(product) == [0, 1]


def test_a_formula_that_writes_to_the_gradient_it_is_given_is_a_fault() -> None:
    def backward(ctx: Any, grad: torch.Tensor) -> object:
        return _right(ctx, grad.mul_(2.0))

    with pytest.raises(GradientFault, match="wrote to the gradient"):
        _wrong_in(_formula(backward))


def test_a_gradient_that_is_written_to_with_its_own_values_was_an_obscure_message_of_opcheck() -> None:
    """``mul_(1.0)`` changes no byte, and raises where the gradient is an expanded one."""
    product = _formula(lambda ctx, grad: _right(ctx, grad.mul_(1.0)))
    with pytest.raises(GradientFault, match=r"wrote to the gradient.*grad\.clone\(\)"):
        _wrong_in(product)
    assert _wrong_in(_formula(lambda ctx, grad: _right(ctx, grad.clone().mul_(1.0)))) == []


def test_a_backward_that_returns_too_few_gradients_was_told_as_the_calls_fault() -> None:
    with pytest.raises(GradientFault, match=r"^the backward raised RuntimeError: .*expected 2, got 1"):
        _wrong_in(_formula(lambda ctx, grad: (grad,)))


def test_an_operator_without_a_derivative_was_told_by_its_zeros() -> None:
    library = torch.library.Library("fixture_no_derivative", "DEF")
    library.define("product(Tensor x, Tensor y) -> Tensor")
    library.impl("product", lambda x, y: x.detach() * y.detach(), "CPU")
    operator = torch.ops.fixture_no_derivative.product.default
    with pytest.raises(GradientFault, match=r"^no derivative is registered for 'fixture_no_deriv"):
        gradients_of(operator, _inputs(), SEED, strained=True)
    told = gradcheck(operator, [_inputs()], True)["gradcheck"]
    assert told is not None and "torch.library.register_autograd" in told and len(told) < 240
    torch.library.register_autograd(
        "fixture_no_derivative::product",
        _right,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    assert gradcheck(operator, [_inputs()], True)["gradcheck"] is None


def test_gradients_that_a_later_backward_overwrites_are_a_fault() -> None:
    kept: list[torch.Tensor] = []

    def backward(ctx: Any, grad: torch.Tensor) -> object:
        found = _right(ctx, grad)
        kept[:] = kept or [torch.empty_like(one) for one in found]
        for place, one in zip(kept, found, strict=True):
            place.copy_(one)
        return tuple(kept)

    with pytest.raises(GradientFault, match="overwrote gradients"):
        _wrong_in(_formula(backward))


def test_values_that_the_operator_refuses_are_no_strain() -> None:
    """Only the values of the case are legal for sure."""

    def ascending(x: torch.Tensor) -> object:
        if not bool((x[1:] >= x[:-1]).all()):
            raise RuntimeError("values must ascend")
        return x * x

    (found,) = gradients_of(ascending, [torch.arange(5.0)], SEED, strained=True)
    (wanted,) = gradients_of(lambda x: x * x, [torch.arange(5.0)], SEED)
    assert torch.equal(found, wanted)
