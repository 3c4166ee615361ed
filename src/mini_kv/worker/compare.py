"""Element-by-element judgement of an output against the FP64 reference. Runs in the oracle only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mini_kv.core.card import Tolerance
from mini_kv.core.results import Mismatch, Numerics
from mini_kv.worker.storage import dtype_name

MAX_MISMATCHES_SHOWN = 8
# Exact comparison for types the card gives no tolerance for (integers, booleans).
EXACT = Tolerance(rtol=0.0, atol=0.0)


@dataclass(frozen=True, kw_only=True)
class _Errors:
    mismatched: torch.Tensor
    nonfinite_mismatches: int
    max_abs: float | None
    max_rel: float | None
    max_eps: float | None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One expected output: the reference at the working dtype, what FP64 demands, their distance."""

    working: torch.Tensor
    target: torch.Tensor
    limit: Tolerance
    own: _Errors


def expect(working: torch.Tensor, exact: torch.Tensor, tolerances: dict[str, Tolerance]) -> Expected:
    """Make the expectation from the reference at the working dtype and its FP64 run.

    The FP64 value decides; where the working dtype cannot hold it (overflow), its rounding does.
    """
    rounded = exact.to(working.dtype).to(torch.float64)
    target = torch.where(torch.isfinite(rounded), exact.to(torch.float64), rounded)
    limit = tolerances.get(dtype_name(working.dtype), EXACT)
    own = _errors(working, target, working.dtype, limit)
    return Expected(working=working, target=target, limit=limit, own=own)


def _errors(actual: torch.Tensor, target: torch.Tensor, dtype: torch.dtype, limit: Tolerance) -> _Errors:
    value = actual.to(torch.float64)
    finite = torch.isfinite(value) & torch.isfinite(target)
    same = (value == target) | (torch.isnan(value) & torch.isnan(target))
    difference = (value - target).abs()
    magnitude = target.abs()
    # Written so that NaN lands on the failing side.
    close = finite & (difference <= limit.atol + limit.rtol * magnitude)
    mismatched = ~(same | close)
    nonfinite = int((mismatched & ~finite).sum())
    if not bool(finite.any()):
        return _Errors(
            mismatched=mismatched, nonfinite_mismatches=nonfinite, max_abs=None, max_rel=None, max_eps=None
        )
    difference, magnitude = difference[finite], magnitude[finite]
    nonzero = magnitude > 0
    max_rel = float((difference[nonzero] / magnitude[nonzero]).max()) if bool(nonzero.any()) else None
    max_eps = None
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        unit = info.eps * magnitude.clamp_min(info.tiny)
        max_eps = float((difference / unit).max())
    return _Errors(
        mismatched=mismatched,
        nonfinite_mismatches=nonfinite,
        max_abs=float(difference.max()),
        max_rel=max_rel,
        max_eps=max_eps,
    )


def compare(actual: Sequence[torch.Tensor], expected: Sequence[Expected]) -> Numerics:
    """Compare all outputs; shapes and dtypes were checked against the plan before.

    ``actual[i]`` has the shape and dtype of ``expected[i].working``.
    """
    totals = {"elements": 0, "mismatches": 0, "nonfinite": 0}
    worst: dict[str, float | None] = dict.fromkeys(("abs", "rel", "eps", "ref_abs", "ref_eps"))
    shown: list[Mismatch] = []
    for position, (value, want) in enumerate(zip(actual, expected, strict=True)):
        target, own = want.target, want.own
        found = _errors(value, target, want.working.dtype, want.limit)
        totals["elements"] += value.numel()
        totals["mismatches"] += int(found.mismatched.sum())
        totals["nonfinite"] += found.nonfinite_mismatches
        for name, figure in (
            ("abs", found.max_abs),
            ("rel", found.max_rel),
            ("eps", found.max_eps),
            ("ref_abs", own.max_abs),
            ("ref_eps", own.max_eps),
        ):
            worst[name] = _larger(worst[name], figure)
        shown += _first_mismatches(position, value, target, found.mismatched, len(shown))
    return Numerics(
        element_count=totals["elements"],
        mismatch_count=totals["mismatches"],
        nonfinite_mismatch_count=totals["nonfinite"],
        max_abs_error=worst["abs"],
        max_rel_error=worst["rel"],
        max_error_eps=worst["eps"],
        reference_max_abs_error=worst["ref_abs"],
        reference_max_error_eps=worst["ref_eps"],
        first_mismatches=tuple(shown),
    )


def reference_within_tolerance(expected: Sequence[Expected]) -> bool:
    """Return whether the reference itself, at the working dtype, keeps the card's tolerance."""
    return not any(bool(want.own.mismatched.any()) for want in expected)


def _larger(left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)


def _first_mismatches(
    output: int, value: torch.Tensor, target: torch.Tensor, mismatched: torch.Tensor, already: int
) -> list[Mismatch]:
    flat = mismatched.reshape(-1).nonzero().reshape(-1)[: MAX_MISMATCHES_SHOWN - already]
    values, targets = value.reshape(-1), target.reshape(-1)
    return [
        Mismatch(
            output=output,
            index=_unravel(int(position), tuple(value.shape)),
            expected=repr(float(targets[position])),
            actual=repr(float(values[position])),
        )
        for position in flat
    ]


def _unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        index.append(position % extent)
        position //= extent
    return tuple(reversed(index))
