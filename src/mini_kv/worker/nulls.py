"""Null candidates: results that took no work. A case that one of them passes proves nothing.

They are judged by the oracle alone, from the case's own inputs and expected values; a result is made
slice by slice, so that a large case costs one slice of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mini_kv.core import protocol as p
from mini_kv.core.dtypes import NARROWER
from mini_kv.worker.numerics import Expected, all_right
from mini_kv.worker.storage import dtype_name, dtype_of

Slice = Callable[[slice], torch.Tensor]
Null = Callable[[Expected], Slice | None]

CONSTANT = 1.0
# What an allocation that nothing was written to may hold; the third pattern, zeros, is a null of its own.
UNINITIALISED = (0xFF, 0x5A)


def audit_nulls(arguments: Sequence[object], expected: Sequence[Expected]) -> p.CaseAudited:
    """Return the nulls that pass for every output. An empty result is passed by all of them."""
    nulls: dict[str, Null] = {
        "zeros": lambda want: _constant(want, 0.0),
        "a constant": lambda want: _constant(want, CONSTANT),
        "the mean": _mean,
        "half the work": _half,
    }
    for pattern in UNINITIALISED:
        nulls[f"memory filled with 0x{pattern:02X}"] = lambda want, byte=pattern: _filled(want, byte)  # type: ignore[misc]
    for position, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and argument.device.type != "meta":
            nulls[f"input {position}"] = lambda want, given=argument: _input(want, given)  # type: ignore[misc]
    return p.CaseAudited(
        element_count=sum(want.working.numel() for want in expected),
        passed=tuple(name for name, null in nulls.items() if _passes(null, expected)),
        lower_precision=_lower_precision(expected),
    )


def _passes(null: Null, expected: Sequence[Expected]) -> bool:
    for want in expected:
        values = null(want)
        if values is None or not all_right(values, want):
            return False
    return True


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _constant(want: Expected, value: float) -> Slice:
    like = want.working
    made = torch.tensor(value, dtype=torch.float64, device=like.device).to(like.dtype)
    return lambda part: made.expand(_length(part))


def _mean(want: Expected) -> Slice | None:
    finite = want.target[torch.isfinite(want.target)]
    # The mean of one element is that element: to know it takes the whole work.
    if want.working.numel() < 2 or finite.numel() == 0:
        return None
    return _constant(want, float(finite.mean()))


def _half(want: Expected) -> Slice:
    flat = want.working.reshape(-1)
    middle = flat.numel() // 2

    def values(part: slice) -> torch.Tensor:
        done = flat[part].clone()
        done[max(middle - part.start, 0) :] = 0
        return done

    return values


def _filled(want: Expected, pattern: int) -> Slice | None:
    like = want.working
    if like.dtype == torch.bool:
        return None
    size = like.element_size()
    return lambda part: torch.full(
        (_length(part) * size,), pattern, dtype=torch.uint8, device=like.device
    ).view(like.dtype)


def _input(want: Expected, given: torch.Tensor) -> Slice | None:
    """Return an input where its shape broadcasts to the output's, or holds as many elements."""
    shape = want.working.shape
    try:
        fitted = given.expand(shape)
    except RuntimeError:
        if given.numel() != want.working.numel():
            return None
        fitted = given
    flat = fitted.detach().reshape(-1).to(device=want.working.device, dtype=want.working.dtype)
    return lambda part: flat[part]


def _lower_precision(expected: Sequence[Expected]) -> tuple[str, ...]:
    found: list[str] = []
    for want in expected:
        narrow = NARROWER.get(dtype_name(want.working.dtype))
        if narrow is None or want.working.numel() == 0 or narrow in found:
            continue
        flat, dtype = want.working.reshape(-1), dtype_of(narrow)
        if all_right(lambda part, flat=flat, dtype=dtype: flat[part].to(dtype), want):  # type: ignore[misc]
            found.append(narrow)
    return tuple(found)
