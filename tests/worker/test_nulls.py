"""Null candidates: which results that took no work pass a case, and which are not asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.core.records.card import Tolerance
from mini_kv.worker.nulls import audit_nulls
from mini_kv.worker.numerics import CHUNK_ELEMENTS, Expected, expect

TIGHT = {name: Tolerance(rtol=1e-6, atol=0.0) for name in ("float64", "float32", "float16", "bfloat16")}
CHUNK = CHUNK_ELEMENTS["cpu"]
FILLED = ("memory filled with 0xFF", "memory filled with 0x5A")


def wanted(values: Any, dtype: torch.dtype = torch.float32, tolerances: Any = None) -> Expected:
    working = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    exact = working.double() if working.dtype.is_floating_point else working
    return expect(working, exact, TIGHT if tolerances is None else tolerances)


def passed(want: Expected, *arguments: object) -> tuple[str, ...]:
    return audit_nulls(arguments, [want]).passed


def test_work_that_no_null_does_is_passed_by_none() -> None:
    assert passed(wanted([1.0, 2.0, 3.5]), torch.tensor([3.0, 2.0, 1.0])) == ()


@pytest.mark.parametrize(
    ("values", "nulls"),
    [
        ([0.0, 0.0, 0.0], ("zeros", "the mean", "half the work")),
        ([1.0, 1.0, 1.0], ("a constant", "the mean")),
        ([7.0, 7.0], ("the mean",)),
        ([7.0], ()),
        ([5.0, 6.0, 0.0, 0.0], ("half the work",)),
        ([5.0, 6.0, 0.0], ()),
        ([5.0, 0.0, 0.0], ("half the work",)),
        ([math.nan, math.nan], (FILLED[0],)),
    ],
)
def test_a_result_that_takes_no_work_is_passed_by_that_null(
    values: list[float], nulls: tuple[str, ...]
) -> None:
    assert passed(wanted(values)) == nulls


def test_an_infinite_element_does_not_hide_the_mean_of_the_others() -> None:
    assert passed(wanted([3.0, 3.0, math.inf])) == ()
    loose = {"float32": Tolerance(rtol=0.5, atol=0.0)}
    assert passed(wanted([2.0, 3.0, 2.5], tolerances=loose)) == ("the mean",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("pattern", [0xFF, 0x5A])
def test_memory_that_nothing_was_written_to_is_read_at_the_size_of_the_dtype(
    dtype: torch.dtype, pattern: int
) -> None:
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.full((3 * size,), pattern, dtype=torch.uint8).view(dtype)
    assert f"memory filled with 0x{pattern:02X}" in passed(wanted(raw))


def test_memory_of_booleans_holds_no_pattern() -> None:
    found = passed(wanted([True, True], torch.bool))
    assert "a constant" in found
    assert not set(found) & set(FILLED)


def test_an_input_passes_where_its_shape_or_its_count_fits() -> None:
    want = wanted(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]))
    row = torch.tensor([1.0, 2.0, 3.0])
    assert passed(want, row) == ("input 0",)
    assert passed(want, 3, torch.tensor([9.0]), row.repeat(2)) == ("input 2",)
    assert passed(want, torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0]), row.to("meta")) == ()
    assert passed(want, row.double()) == ("input 0",)
    assert passed(want, row.requires_grad_()) == ("input 0",)


def test_a_null_must_pass_every_output_and_every_slice_of_it() -> None:
    zeros, ones = wanted([0.0, 0.0, 0.0]), wanted([1.0, 1.0, 1.0])
    assert audit_nulls((), [zeros, ones]).passed == ("the mean",)
    for wrong_at in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 4):
        values = torch.zeros(2 * CHUNK + 5)
        assert "zeros" in passed(wanted(values))
        values[wrong_at] = 4.0
        assert "zeros" not in passed(wanted(values))


def test_half_the_work_ends_in_the_middle_of_a_large_result() -> None:
    count = 2 * CHUNK + 6
    values = torch.zeros(count)
    values[: count // 2] = torch.arange(1.0, count // 2 + 1)
    assert passed(wanted(values)) == ("half the work",)
    values[count // 2] = 3.0
    assert passed(wanted(values)) == ()


def test_elements_of_all_outputs_are_counted() -> None:
    made = audit_nulls((), [wanted([1.0, 2.0]), wanted([3.0, 5.0, 9.0])])
    assert made == p.CaseAudited(element_count=5, passed=(), lower_precision=("float16",))
    assert audit_nulls((), [wanted([])]).element_count == 0


@pytest.mark.parametrize(
    ("values", "dtype", "narrow"),
    [
        ([0.5, 2.0], torch.float32, ("float16",)),
        ([0.1, 2.0], torch.float32, ()),
        ([], torch.float32, ()),
        ([1, 2], torch.int32, ()),
        ([0.5, 2.0], torch.float64, ("float32",)),
    ],
)
def test_a_lower_precision_is_named_where_it_would_pass(
    values: list[float], dtype: torch.dtype, narrow: tuple[str, ...]
) -> None:
    assert audit_nulls((), [wanted(values, dtype)]).lower_precision == narrow
    twice = audit_nulls((), [wanted(values, dtype), wanted(values, dtype)])
    assert twice.lower_precision == narrow
    assert audit_nulls((), [wanted([0.1], torch.float32), wanted(values, dtype)]).lower_precision == narrow
