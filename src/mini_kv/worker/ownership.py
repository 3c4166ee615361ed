"""Who owns the memory of a result: the caller alone, or something that stays behind in the operator."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

PATIENCE_S = 0.05
_LOOK_AGAIN_S = 0.001


def is_held(output: torch.Tensor, outputs: Sequence[torch.Tensor]) -> bool:
    """Say whether the memory of one of the results has other owners than them, and what they are views of.

    A formula for gradients may keep what it returned; memory without bytes has nothing to overwrite. A thread
    that has done its part of the work may let go of it a little after the call returned: who still holds the
    memory after :data:`PATIENCE_S` counts.
    """
    if output.device.type == "meta" or output.grad_fn is not None or output.untyped_storage().nbytes() == 0:
        return False
    deadline = time.monotonic() + PATIENCE_S
    while _has_other_owners(output, outputs):
        if time.monotonic() >= deadline:
            return True
        time.sleep(_LOOK_AGAIN_S)
    return False


def _has_other_owners(output: torch.Tensor, outputs: Sequence[torch.Tensor]) -> bool:
    storage = output.untyped_storage()
    sharing = [one for one in outputs if one.untyped_storage()._cdata == storage._cdata]
    known = {one._cdata for one in sharing}
    if _uses(output) > 1 + sum(one._base is output for one in outputs):
        return True  # the very same tensor, held by the operator
    base = output._base
    if base is not None and base._cdata not in known:
        known.add(base._cdata)
        views = sum(one._base is base for one in sharing)
        # Python's object for it counts once, whoever refers to that object.
        if _uses(base) > views + 1 or sys.getrefcount(base) > _BASE_REFERENCES:
            return True
    return _owners(storage) > len(known) + _PYTHONS_OWN


def python_keeps(result: object, *, own: int = 0, patience_s: float = 0.0) -> bool:
    """Say whether Python refers to a result, or a part of it, by another name than the caller's.

    ``own`` is how many more references to each part the caller has made. Handles in C++ keep Python's object
    too: they have ``patience_s`` to let go.
    """
    deadline = time.monotonic() + patience_s
    while True:
        # Asked each time: where frames are evaluated by another than Python, as after a compilation that
        # failed, a call holds its arguments once more.
        of_result, of_part = _references()
        if isinstance(result, tuple | list):
            parts = [value for value in result if isinstance(value, torch.Tensor)]
            keeps = any(sys.getrefcount(value) > of_part + own for value in parts)
        else:
            keeps = isinstance(result, torch.Tensor) and sys.getrefcount(result) > of_result + own
        if not keeps or time.monotonic() >= deadline:
            return keeps
        time.sleep(_LOOK_AGAIN_S)


def _references() -> tuple[int, int]:
    """Return what :func:`python_keeps` counts for a result, and for a part of one, that nobody else has."""

    def of_result(result: object) -> int:
        return sys.getrefcount(result)

    def of_part(result: tuple[object, ...]) -> int:
        parts = [value for value in result if isinstance(value, torch.Tensor)]
        return max(sys.getrefcount(value) for value in parts)

    one, pair = torch.empty(1), (torch.empty(1), torch.empty(1))
    return of_result(one), of_part(pair)


def _uses(tensor: torch.Tensor) -> int:
    counted: Any = tensor
    return int(counted._use_count())


def _owners(storage: torch.UntypedStorage) -> int:
    internals: Any = torch._C
    return int(internals._storage_Use_Count(storage._cdata))


_FRESH = torch.empty(1)
_PYTHONS_OWN = _owners(_FRESH.untyped_storage()) - 1
_VIEW = torch.empty(1).view(1)
_BASE = _VIEW._base
# One name, the call's own argument, and the tensor's reference to its own object.
_BASE_REFERENCES = sys.getrefcount(_BASE)
