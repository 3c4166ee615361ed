"""Inputs replay from their seed and are what their parameters say; references keep their formulas."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from mini_kv.core.cost import Cost
from mini_kv.references import fused_bias_relu, inputs, rmsnorm, vector_add

CPU = torch.device("cpu")
OPERATORS = [vector_add, fused_bias_relu, rmsnorm]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def make(module: ModuleType, seed: int = 7, **params: Any) -> tuple[Any, ...]:
    return tuple(module.make_inputs(params, torch.Generator().manual_seed(seed), CPU))


def tensor(
    shape: tuple[int, ...], values: str = "normal", layout: str = "contiguous", **more: Any
) -> torch.Tensor:
    dtype = more.pop("dtype", torch.float32)
    return inputs.make_tensor(shape, dtype, values, layout, torch.Generator().manual_seed(3), CPU, **more)


@pytest.mark.parametrize("module", OPERATORS)
@pytest.mark.parametrize("values", inputs.VALUES)
def test_a_seed_replays_and_another_seed_differs(module: ModuleType, values: str) -> None:
    params = {"shape": (5, 33), "dtype": "float16", "values": values}
    first, again, other = (make(module, seed, **params) for seed in (1, 1, 2))
    assert all(
        torch.equal(a.view(torch.int16), b.view(torch.int16))
        for a, b in zip(first[:2], again[:2], strict=True)
    )
    assert not torch.equal(first[0].view(torch.int16), other[0].view(torch.int16))


@pytest.mark.parametrize("layout", inputs.LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_layout_changes_memory_and_not_shape_or_dtype(layout: str, dtype: torch.dtype) -> None:
    made = tensor((4, 33), layout=layout, dtype=dtype)
    assert made.shape == (4, 33) and made.dtype == dtype
    if layout != "expanded":  # expansion repeats one row, so the values differ there
        assert torch.equal(made, tensor((4, 33), dtype=dtype))


def test_layouts_are_what_they_are_called() -> None:
    assert tensor((4, 33), layout="transposed").stride() == (1, 4)
    assert tensor((4, 33), layout="expanded").stride() == (0, 1)
    assert tensor((4, 33), layout="strided").stride() == (66, 2)
    shifted = tensor((4, 33), layout="offset")
    assert shifted.is_contiguous() and shifted.data_ptr() % 16 != 0


@pytest.mark.parametrize("layout", ["offset", "strided"])
def test_memory_outside_the_tensor_is_nan(layout: str) -> None:
    made = tensor((4, 33), layout=layout)
    storage = torch.empty(0).set_(made.untyped_storage())
    assert int(storage.isnan().sum()) == storage.numel() - made.numel() > 0
    assert not made.isnan().any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_value_classes_hold_what_they_promise(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    zeros = tensor((4, 64), "zeros", dtype=dtype)
    assert (zeros[::2] == 0).all() and (zeros[1::2] != 0).all()
    assert zeros[::2].signbit().any() and not zeros[::2].signbit().all()
    tiny = tensor((4, 64), "tiny", dtype=dtype).abs()
    assert (tiny < info.tiny).any() and (tiny > info.tiny).any() and (tiny > 0).sum() > 200
    huge = tensor((4, 64), "huge", dtype=dtype)
    assert huge.abs().max() > info.max / 32 and (huge + huge).isfinite().all()
    infinite = tensor((4, 64), "infinities", dtype=dtype)
    assert {math.inf, -math.inf} <= set(infinite.flatten().tolist()) and infinite[1::2].isfinite().all()
    assert tensor((4, 64), "nans", dtype=dtype).isnan().sum() > 10
    whole = tensor((4, 64), "integers", dtype=dtype)
    assert torch.equal(whole, whole.round()) and (whole != 0).all() and whole.abs().max() <= 8
    signed = tensor((4, 64), "signed", dtype=dtype)
    assert (signed > 0).any() and (signed < 0).any() and (signed == 0).any()


def test_a_capped_huge_value_can_be_squared_in_float32() -> None:
    x, _, _ = make(rmsnorm, shape=(4, 1025), dtype="bfloat16", values="huge")
    assert x.float().square().sum().isfinite()


@pytest.mark.parametrize("module", OPERATORS)
def test_an_unknown_parameter_is_named_in_a_sentence(module: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"knows no parameter shap; allowed are .*shape.*\."):
        make(module, shap=(3,))


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"shape": (3, -1)}, "each extent must be an integer"),
        ({"shape": (3, True)}, "each extent must be an integer"),
        ({}, "shape is missing"),
        ({"shape": (3,), "dtype": "complex64"}, "dtype is 'complex64'; allowed are"),
        ({"shape": (3,), "values": "odd"}, "values is 'odd'; allowed are"),
        ({"shape": (3,), "layout": "odd"}, "layout is 'odd'; allowed are"),
        ({"shape": (3,), "layout": "transposed"}, "needs at least 2 dimensions"),
        ({"shape": (), "layout": "expanded"}, "needs at least 1 dimension"),
        ({"shape": (3,), "other_device": "moon"}, "other_device is 'moon'; allowed are"),
    ],
)
def test_a_bad_parameter_is_refused_in_a_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(vector_add, **params)


def test_a_device_mismatch_needs_no_second_gpu() -> None:
    a, b = make(vector_add, shape=(3,), other_device="mismatch")
    assert (a.device.type, b.device.type) == ("cpu", "meta")


@pytest.mark.parametrize(("text", "check"), [("nan", math.isnan), ("inf", math.isinf), ("-inf", math.isinf)])
def test_a_non_finite_eps_travels_as_text(text: str, check: Callable[[float], bool]) -> None:
    assert check(make(rmsnorm, shape=(2, 3), eps=text)[2])


@pytest.mark.parametrize("module", OPERATORS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_a_reference_returns_a_new_dense_tensor_of_the_input_dtype(
    module: ModuleType, dtype: str, layout: str
) -> None:
    arguments = make(module, shape=(4, 33), dtype=dtype, layout=layout)
    out = module.reference(*arguments)
    assert out.shape == (4, 33) and out.dtype == arguments[0].dtype and out.is_contiguous()
    assert out.untyped_storage().data_ptr() not in {a.untyped_storage().data_ptr() for a in arguments[:2]}


def test_relu_keeps_nan_and_drops_negatives() -> None:
    x = torch.tensor([[math.nan, -1.0, 2.0, -math.inf, math.inf]])
    out = fused_bias_relu.reference(x, torch.zeros(5))
    assert out[0, 0].isnan() and out[0, 1:].tolist() == [0.0, 2.0, 0.0, math.inf]


def test_rmsnorm_follows_its_formula_in_float64() -> None:
    x, weight, eps = make(rmsnorm, shape=(3, 129), dtype="float64")
    expected = torch.stack([row / math.sqrt(float((row * row).sum()) / 129 + eps) * weight for row in x])
    torch.testing.assert_close(rmsnorm.reference(x, weight, eps), expected, rtol=1e-14, atol=0)


def test_rmsnorm_accumulates_wider_than_float16() -> None:
    x = torch.full((1, 1024), 1000.0, dtype=torch.float16)  # its squares pass float16's largest number
    out = rmsnorm.reference(x, torch.ones(1024, dtype=torch.float16), 1e-5)
    assert torch.equal(out, torch.ones_like(out))


def test_rmsnorm_of_a_row_of_zeros_is_zero() -> None:
    assert torch.equal(rmsnorm.reference(torch.zeros(2, 8), torch.ones(8), 1e-5), torch.zeros(2, 8))


@pytest.mark.parametrize(
    ("module", "params", "cost"),
    [
        (vector_add, {"shape": (1024,), "dtype": "float16"}, Cost(bytes_moved=6144, flops=1024)),
        (fused_bias_relu, {"shape": (8, 16), "dtype": "float32"}, Cost(bytes_moved=1088, flops=256)),
        (rmsnorm, {"shape": (1024, 4096), "dtype": "float16"}, Cost(bytes_moved=16785408, flops=16780288)),
        (vector_add, {"shape": (0, 3)}, Cost(bytes_moved=0, flops=0)),
    ],
)
def test_cost_counts_compulsory_traffic(module: ModuleType, params: dict[str, Any], cost: Cost) -> None:
    assert module.cost_model(params) == cost


def made_names(source: str) -> set[str]:
    """Return the names that a function makes something of: its cases, and what it compares a name with."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.MatchValue(value=ast.Constant(value=str(name))):
                found.add(name)
            case ast.Compare(left=ast.Name(id="values"), comparators=[ast.Constant(value=str(name))]):
                found.add(name)
            case _:
                pass
    return found


def test_every_value_class_and_layout_that_is_made_is_listed_with_what_it_is() -> None:
    assert made_names(inspect.getsource(inputs.make_values)) == set(inputs.VALUES)
    assert made_names(inspect.getsource(inputs._lay_out)) == set(inputs.LAYOUTS)
    assert all({**inputs.VALUES, **inputs.LAYOUTS}.values())


def test_a_value_class_that_is_made_and_not_listed_is_seen() -> None:
    planted = "def make(values):\n    match values:\n        case 'secret':\n            return 1\n"
    planted += "    return 2 if values == 'hidden' else 3\n"
    assert made_names(planted) == {"secret", "hidden"}


def test_the_descriptions_of_values_are_true() -> None:
    drawn = {name: tensor((64, 64), name) for name in inputs.VALUES}
    rows = {name: values[::2] for name, values in drawn.items()}
    assert (rows["zeros"] == 0).all() and (drawn["zeros"][1::2] != 0).all()
    assert rows["zeros"].signbit()[:, 1::2].all() and not rows["zeros"].signbit()[:, ::2].any()
    tiny, least = drawn["tiny"].abs(), torch.finfo(torch.float32).tiny
    assert ((tiny > 0) & (tiny < least)).any() and (tiny > least).any()
    limit = torch.finfo(torch.float32).max / 8
    assert limit / 4 * 0.999 <= drawn["huge"].abs().min() and drawn["huge"].abs().max() <= limit
    assert ((drawn["signed"].abs() >= 0.5) & (drawn["signed"].abs() < 2) | (drawn["signed"] == 0)).all()
    assert rows["signed"][:, 5::16].signbit().all() and (rows["signed"][:, 5::16] == 0).all()
    assert rows["infinities"][:, 3::7].isinf().all() and drawn["infinities"].isinf().sum() == 32 * 9
    assert rows["nans"][:, 3::7].isnan().all() and drawn["nans"].isnan().sum() == 32 * 9
    assert set(drawn["integers"].abs().unique().tolist()) == set(range(1, 9))
    assert drawn["wide"].abs().max() > 100 and drawn["wide"].abs().median() < 10
    for values in inputs.VALUES:
        whole = tensor((64,), values, dtype=torch.int32)
        assert whole.min() >= 1 and whole.max() <= 8
