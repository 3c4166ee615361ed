"""Element by element against FP64: what is within tolerance, what is not, and what is never."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mini_kv.core.records.card import Tolerance
from mini_kv.core.records.correctness import Numerics
from mini_kv.worker import numerics as module
from mini_kv.worker.nulls import audit_nulls
from mini_kv.worker.numerics import (
    GRADIENT_FACTOR,
    all_right,
    compare,
    expect,
    expect_gradient,
    reference_within_tolerance,
)

NAN, INF = math.nan, math.inf
LOOSE = {"float32": Tolerance(rtol=1e-3, atol=1e-3), "float16": Tolerance(rtol=1e-3, atol=1e-3)}


def judged(
    actual: Any,
    expected: Any,
    dtype: torch.dtype = torch.float32,
    tolerances: dict[str, Tolerance] | None = None,
) -> Numerics:
    exact = torch.tensor(expected, dtype=torch.float64)
    want = expect(exact.to(dtype), exact, LOOSE if tolerances is None else tolerances)
    return compare([torch.tensor(actual, dtype=dtype)], [want])


@pytest.mark.parametrize(
    ("actual", "expected", "right"),
    [
        (1.0, 1.0, True),
        (1.0015, 1.0, True),
        (1.0030, 1.0, False),
        (-1.0, 1.0, False),
        (0.0, -0.0, True),
        (0.0009, 0.0, True),
        (0.0011, 0.0, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (NAN, INF, False),
        (INF, NAN, False),
        (INF, INF, True),
        (-INF, -INF, True),
        (INF, -INF, False),
        (-INF, INF, False),
        (INF, 3.0e38, False),
        (3.0e38, INF, False),
    ],
)
def test_one_element(actual: float, expected: float, right: bool) -> None:
    found = judged([actual], [expected])
    assert found.mismatch_count == (0 if right else 1)
    finite = math.isfinite(actual) and math.isfinite(expected)
    assert found.nonfinite_mismatch_count == (0 if right or finite else 1)


def test_an_infinite_tolerance_still_wants_the_right_nan() -> None:
    boundless = {"float32": Tolerance(rtol=1.0, atol=1e300)}
    assert judged([NAN], [1.0], tolerances=boundless).mismatch_count == 1
    assert judged([INF], [1.0], tolerances=boundless).mismatch_count == 1
    assert judged([7.0], [1.0], tolerances=boundless).mismatch_count == 0


def test_a_value_that_the_dtype_cannot_hold_is_expected_as_its_rounding() -> None:
    # 65520 is the first number that rounds to infinity in float16; 65519 still rounds to 65504.
    assert judged([INF, 65504.0], [65520.0, 65519.0], torch.float16).mismatch_count == 0
    assert judged([65504.0, INF], [65520.0, 65519.0], torch.float16).mismatch_count == 2


def test_the_fp64_value_decides_and_not_its_rounding() -> None:
    tight = {"float16": Tolerance(rtol=0.0, atol=1e-4)}
    # 2048.9 is 2048 in float16: 0.9 away from the truth, although equal to the reference.
    exact = torch.tensor([2048.9], dtype=torch.float64)
    want = expect(torch.tensor([2048.0], dtype=torch.float16), exact, tight)
    assert not reference_within_tolerance([want])
    found = compare([torch.tensor([2048.0], dtype=torch.float16)], [want])
    assert found.mismatch_count == 1
    assert found.reference_max_abs_error == pytest.approx(0.9)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.uint8, torch.bool])
def test_integers_are_equal_or_wrong(dtype: torch.dtype) -> None:
    right = torch.tensor([0, 1, 1, 0]).to(dtype)
    want = expect(right, right, LOOSE)
    assert compare([right.clone()], [want]).mismatch_count == 0
    found = compare([torch.tensor([0, 1, 0, 0]).to(dtype)], [want])
    assert found.mismatch_count == 1
    assert found.max_error_eps is None
    assert found.first_mismatches[0].index == (2,)


def test_integers_beyond_2_to_the_53_are_compared_exactly() -> None:
    right = torch.tensor([2**53, 2**62 + 1])
    want = expect(right, right, {})
    assert reference_within_tolerance([want])
    found = compare([torch.tensor([2**53 + 1, 2**62 + 1])], [want])
    assert found.mismatch_count == 1
    assert found.first_mismatches[0].expected == "9007199254740992"
    assert found.first_mismatches[0].actual == "9007199254740993"


def test_a_dtype_without_a_tolerance_must_be_exact() -> None:
    assert judged([1.0 + 2**-23], [1.0], tolerances={}).mismatch_count == 1
    assert judged([1.0], [1.0], tolerances={}).mismatch_count == 0


def test_errors_are_recorded_of_passing_outputs_too() -> None:
    found = judged([1.0005, 2.0, NAN, INF], [1.0, 2.0, NAN, INF])
    assert found.mismatch_count == 0
    assert found.element_count == 4
    assert found.max_abs_error == pytest.approx(5e-4, rel=1e-3)
    assert found.max_rel_error == pytest.approx(5e-4, rel=1e-3)
    assert found.max_error_eps == pytest.approx(5e-4 / 2**-23, rel=1e-3)
    assert found.reference_max_abs_error == 0.0


def test_a_zero_that_is_met_has_no_relative_error() -> None:
    found = judged([0.0, 4.0], [0.0, 4.0])
    assert (found.max_abs_error, found.max_rel_error, found.max_error_eps) == (0.0, 0.0, 0.0)


def test_figures_of_nothing_are_none() -> None:
    found = judged([], [])
    assert (found.element_count, found.mismatch_count, found.max_abs_error) == (0, 0, None)
    assert judged([NAN], [NAN]).max_abs_error is None


def test_subnormals_are_not_measured_by_a_unit_of_zero() -> None:
    found = judged([1e-44], [2e-44], tolerances={})
    assert found.mismatch_count == 1
    assert found.max_error_eps is not None
    assert math.isfinite(found.max_error_eps)


def test_the_first_mismatches_are_named_by_output_and_index() -> None:
    exact = torch.zeros(3, 5, dtype=torch.float64)
    want = expect(exact.float(), exact, LOOSE)
    second = torch.zeros(3, 5)
    second[1, 4], second[2, 0] = 7.0, NAN
    found = compare([torch.zeros(3, 5), second], [want, want])
    assert [(item.output, item.index, item.actual) for item in found.first_mismatches] == [
        (1, (1, 4), "7.0"),
        (1, (2, 0), "nan"),
    ]
    assert found.element_count == 30


def test_the_wrong_elements_of_the_worst_output_alone_were_counted() -> None:
    exact = torch.zeros(6, dtype=torch.float64)
    want = expect(exact.float(), exact, LOOSE)
    wrong = [torch.zeros(6) for _ in range(3)]
    wrong[0][:2], wrong[1][:3], wrong[2][0] = 7.0, NAN, INF
    found = compare(wrong, [want] * 3)
    assert (found.mismatch_count, found.nonfinite_mismatch_count, found.element_count) == (6, 4, 18)


def test_integers_beyond_2_to_the_53_of_a_null_were_compared_as_fp64() -> None:
    """A case that a result of nothing passes is INVALID; one off by one in 2^53 is no such result."""
    right = torch.tensor([2**53, 7, 2**62])
    want = expect(right, right, {})
    for wrong in ([2**53 + 1, 7, 2**62], [2**53, 7, 2**62 + 1]):
        found = torch.tensor(wrong)
        assert not all_right(lambda part, found=found: found[part], want)  # type: ignore[misc]
    assert all_right(lambda part: right[part], want)
    audit = audit_nulls([right + 1], [want])
    assert "input 0" not in audit.passed
    assert "input 0" in audit_nulls([right.clone()], [want]).passed


def test_only_a_few_mismatches_are_shown_and_all_are_counted() -> None:
    found = judged([1.0] * 100, [0.0] * 100)
    assert found.mismatch_count == 100
    assert [item.index for item in found.first_mismatches] == [
        (n,) for n in range(module.MAX_MISMATCHES_SHOWN)
    ]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    exact = torch.randn(1000, generator=generator, dtype=torch.float64)
    actual = exact.float().clone()
    actual[::97] += 1.0
    actual[500] = NAN

    def found() -> Numerics:
        return compare([actual], [expect(exact.float(), exact, LOOSE)])

    whole = found()
    monkeypatch.setitem(module.CHUNK_ELEMENTS, "cpu", 64)
    assert found() == whole
    assert whole.mismatch_count == 12
    assert [item.index for item in whole.first_mismatches][:3] == [(0,), (97,), (194,)]


def test_a_scalar_output_has_an_empty_index() -> None:
    exact = torch.tensor(1.0, dtype=torch.float64)
    found = compare([torch.tensor(5.0)], [expect(exact.float(), exact, LOOSE)])
    assert found.first_mismatches[0].index == ()


def test_a_reference_within_tolerance_of_itself_is_told_from_one_that_is_not() -> None:
    exact = torch.tensor([1.0, NAN, INF], dtype=torch.float64)
    assert reference_within_tolerance([expect(exact.float(), exact, LOOSE)])
    assert not reference_within_tolerance([expect(1.1 * exact.float(), exact, LOOSE)])
    assert not reference_within_tolerance([expect(torch.nan_to_num(exact.float()), exact, LOOSE)])


@pytest.mark.parametrize("tolerance", [Tolerance(rtol=1e-3, atol=0.0), Tolerance(rtol=0.0, atol=2e-3)])
@pytest.mark.parametrize(("share", "judges"), [(0.24, True), (0.26, False), (0.6, False)])
def test_a_references_gradient_beyond_a_quarter_of_the_limit_judged_candidates(
    tolerance: Tolerance, share: float, judges: bool
) -> None:
    exact = torch.tensor([1.0], dtype=torch.float64)
    limit = GRADIENT_FACTOR * 2e-3  # both tolerances allow as much at 1
    want = expect_gradient((exact + share * limit).float(), exact, {"float32": tolerance})
    assert reference_within_tolerance([want]) is judges
    assert compare([(exact + 0.99 * limit).float()], [want]).mismatch_count == 0
    assert compare([(exact + 1.01 * limit).float()], [want]).mismatch_count == 1


def test_a_zero_that_is_missed_has_no_relative_error() -> None:
    found = judged([0.5, 2.0], [0.0, 2.0])
    assert (found.max_abs_error, found.max_rel_error, found.mismatch_count) == (0.5, 0.0, 1)
    assert judged([0.0, 2.5], [0.0, 2.0]).max_rel_error == 0.25
