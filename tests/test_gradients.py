"""Gradients are compared with the reference's by the oracle, in the dtype of the case."""

from __future__ import annotations

import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.core.card import Tolerance
from mini_kv.worker.compare import GRADIENT_FACTOR, compare, expect_gradient, reference_within_tolerance
from mini_kv.worker.gradients import gradients_of
from mini_kv.worker.oracle import Oracle

TOLERANCES = {"float32": Tolerance(rtol=1e-5, atol=1e-6)}


def test_every_floating_input_has_a_gradient_and_one_that_does_not_count_has_zeros() -> None:
    x, unused, index = torch.arange(7.0), torch.ones(2), torch.tensor([1])
    first, second = gradients_of(lambda x, unused, index, factor: factor * x, [x, unused, index, 2.0])
    assert first.tolist() == [2.0 * (position % 7 - 3) / 4.0 for position in range(7)]
    assert second.tolist() == [0.0, 0.0]
    assert not x.requires_grad


def test_a_result_without_a_gradient_is_no_gradient() -> None:
    with pytest.raises(ValueError, match="no output carries a gradient"):
        gradients_of(lambda x: x.detach() * 2.0, [torch.ones(3)])


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
    assert [want.shape for want in made.gradients] == [(3, 5), (5,)]
    plain, _ = oracle.answer(
        p.MakeCase(key="b", params={"shape": (3, 5)}, seed="00" * 8, expect_values=True), ()
    )
    assert isinstance(plain, p.CaseMade) and plain.gradients == ()
    oracle.answer(p.Forget(key="a"), ())
    with pytest.raises(KeyError):
        oracle.answer(p.Compare(key=p.gradients_key("a"), outputs=()), ())
