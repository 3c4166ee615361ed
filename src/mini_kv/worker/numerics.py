"""Element-by-element judgement of an output against the FP64 reference. Runs in the oracle only.

Tensors are taken in chunks: on a CPU a chunk's intermediates then stay in the cache (five times faster
at four million elements), and on a GPU a large output needs no FP64 copy of itself for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from mini_kv.core.records.card import Tolerance
from mini_kv.core.records.correctness import Mismatch, Numerics
from mini_kv.worker.storage import dtype_name

MAX_MISMATCHES_SHOWN = 8
CHUNK_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 26}
# Exact comparison for types the card gives no tolerance for (integers, booleans).
EXACT = Tolerance(rtol=0.0, atol=0.0)
# A gradient passes through two or three times the arithmetic of a result, in an order of its own.
GRADIENT_FACTOR = 8.0
_REFERENCES_SHARE = 0.25


@dataclass(kw_only=True)
class _Errors:
    """Figures of one output so far; ``first`` holds flat positions of the first mismatches."""

    mismatches: int = 0
    nonfinite_mismatches: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    max_eps: float | None = None
    first: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One expected output: the reference at the working dtype, what FP64 demands, their distance.

    ``target`` is FP64, contiguous, of ``working``'s shape.
    """

    working: torch.Tensor
    target: torch.Tensor
    limit: Tolerance
    own: _Errors


def expect(working: torch.Tensor, exact: torch.Tensor, tolerances: dict[str, Tolerance]) -> Expected:
    """Make the expectation from the reference at the working dtype and its FP64 run.

    The FP64 value decides; where the working dtype cannot hold it (overflow), its rounding does.
    """
    rounded = exact.to(working.dtype).to(torch.float64)
    target = torch.where(torch.isfinite(rounded), exact.to(torch.float64), rounded).contiguous()
    limit = tolerances.get(dtype_name(working.dtype), EXACT)
    own = _errors(working, target, limit, working)
    return Expected(working=working, target=target, limit=limit, own=own)


def expect_gradient(working: torch.Tensor, exact: torch.Tensor, tolerances: dict[str, Tolerance]) -> Expected:
    """Like :func:`expect`, for a gradient: it may sum terms that cancel, so its largest element decides.

    The reference's own keeps a quarter of the limit or counts as outside: where all terms cancel, a right
    formula that rounds elsewhere would be held against chance.
    """
    plain = tolerances.get(dtype_name(working.dtype), EXACT)
    finite = exact[torch.isfinite(exact)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    limit = Tolerance(
        rtol=GRADIENT_FACTOR * plain.rtol,
        atol=GRADIENT_FACTOR * (plain.atol + plain.rtol * largest),
    )
    want = expect(working, exact, {dtype_name(working.dtype): limit})
    own = Tolerance(rtol=_REFERENCES_SHARE * limit.rtol, atol=_REFERENCES_SHARE * limit.atol)
    return replace(want, own=_errors(working, want.target, own, working))


def reference_within_tolerance(expected: Sequence[Expected]) -> bool:
    """Return whether the reference itself, at the working dtype, keeps the card's tolerance."""
    return not any(want.own.mismatches for want in expected)


def compare(actual: Sequence[torch.Tensor], expected: Sequence[Expected]) -> Numerics:
    """Compare all outputs; shapes and dtypes were checked against the plan before.

    ``actual[i]`` has the shape and dtype of ``expected[i].working``.
    """
    found = [
        _errors(value, want.target, want.limit, want.working)
        for value, want in zip(actual, expected, strict=True)
    ]
    own = [want.own for want in expected]
    shown = [
        mismatch
        for position, (value, want, errors) in enumerate(zip(actual, expected, found, strict=True))
        for mismatch in _mismatches(position, value, want, errors.first)
    ]
    return Numerics(
        element_count=sum(value.numel() for value in actual),
        mismatch_count=sum(errors.mismatches for errors in found),
        nonfinite_mismatch_count=sum(errors.nonfinite_mismatches for errors in found),
        max_abs_error=_largest(errors.max_abs for errors in found),
        max_rel_error=_largest(errors.max_rel for errors in found),
        max_error_eps=_largest(errors.max_eps for errors in found),
        reference_max_abs_error=_largest(errors.max_abs for errors in own),
        reference_max_error_eps=_largest(errors.max_eps for errors in own),
        first_mismatches=tuple(shown[:MAX_MISMATCHES_SHOWN]),
    )


def _errors(actual: torch.Tensor, target: torch.Tensor, limit: Tolerance, working: torch.Tensor) -> _Errors:
    errors = _Errors()
    values, targets = actual.reshape(-1), target.reshape(-1)
    # FP64 holds no integer above 2^53 exactly: those are compared as what they are, and are equal or not.
    integers = None if working.dtype.is_floating_point else working.reshape(-1)
    step = CHUNK_ELEMENTS[target.device.type]
    for start in range(0, targets.numel(), step):
        part = slice(start, start + step)
        same = None if integers is None else values[part] == integers[part]
        _add_chunk(errors, values[part], targets[part], limit, start=start, same=same)
    return errors


def _add_chunk(
    errors: _Errors,
    values: torch.Tensor,
    target: torch.Tensor,
    limit: Tolerance,
    *,
    start: int,
    same: torch.Tensor | None,
) -> None:
    dtype = values.dtype
    value = values.to(torch.float64)
    difference = (value - target).abs()
    magnitude = target.abs()
    finite = torch.isfinite(difference) & torch.isfinite(magnitude)
    good = _good(value, target, difference, finite, limit) if same is None else same
    if not bool(good.all()):
        wrong = (~good).nonzero().reshape(-1)
        errors.mismatches += wrong.numel()
        errors.nonfinite_mismatches += int((~finite[wrong]).sum())
        room = MAX_MISMATCHES_SHOWN - len(errors.first)
        errors.first += [start + int(position) for position in wrong[:room]]
    if not bool(finite.all()):
        difference, magnitude = difference[finite], magnitude[finite]
    if difference.numel() == 0:
        return
    errors.max_abs = _larger(errors.max_abs, float(difference.max()))
    # 0 / 0 is NaN, which amax would return: a zero that is met exactly has no relative error.
    relative = torch.nan_to_num(difference / magnitude, nan=0.0, posinf=0.0)
    errors.max_rel = _larger(errors.max_rel, float(relative.max()))
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        unit = magnitude.clamp_min(info.tiny).mul_(info.eps)
        errors.max_eps = _larger(errors.max_eps, float((difference / unit).max()))


def _good(
    value: torch.Tensor,
    target: torch.Tensor,
    difference: torch.Tensor,
    finite: torch.Tensor,
    limit: Tolerance,
) -> torch.Tensor:
    # Written so that NaN lands on the failing side; infinities differ by NaN or infinity.
    close = difference <= limit.rtol * target.abs() + limit.atol
    return (close & finite) | (value == target) | (torch.isnan(value) & torch.isnan(target))


def all_right(values: Callable[[slice], torch.Tensor], want: Expected) -> bool:
    """Return whether every element is right; ``values`` gives any slice of the flattened output.

    The last chunk comes first and the first wrong one ends it: what computes nothing, or only half, is
    found out by one chunk.
    """
    targets, working = want.target.reshape(-1), want.working.reshape(-1)
    step = CHUNK_ELEMENTS[targets.device.type]
    for start in reversed(range(0, targets.numel(), step)):
        part = slice(start, min(start + step, targets.numel()))
        found = values(part)
        if not working.dtype.is_floating_point:
            good = found == working[part]
        else:
            value, target = found.to(torch.float64), targets[part]
            difference = (value - target).abs()
            finite = torch.isfinite(difference) & torch.isfinite(target)
            good = _good(value, target, difference, finite, want.limit)
        if not bool(good.all()):
            return False
    return True


def _larger(left: float | None, right: float) -> float:
    return right if left is None else max(left, right)


def _largest(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _mismatches(output: int, value: torch.Tensor, want: Expected, positions: Sequence[int]) -> list[Mismatch]:
    target = want.target if want.working.dtype.is_floating_point else want.working
    values, targets = value.reshape(-1), target.reshape(-1)
    return [
        Mismatch(
            output=output,
            index=_unravel(position, tuple(value.shape)),
            expected=repr(targets[position].item()),
            actual=repr(values[position].item()),
        )
        for position in positions
    ]


def _unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        index.append(position % extent)
        position //= extent
    return tuple(reversed(index))
