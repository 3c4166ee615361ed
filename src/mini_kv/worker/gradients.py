"""Gradients of an operator or a reference, in the same way in both processes, for the oracle to compare."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mini_kv.core.rules.registration import no_derivative
from mini_kv.worker.storage import as_outputs

Function = Callable[..., object]
# A prime below 2^31: products with a position stay below 2^62.
_PRIME = 2**31 - 1
_DERIVATIVE_KEYS = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
_CARRIES_NONE = "no output carries a gradient although inputs require one"
_WROTE = (
    "the backward wrote to the gradient that it was given, which others may read and whose elements may "
    "share memory: it may work in place on a copy (grad.clone()) only"
)


class GradientFault(Exception):
    """A formula for gradients does what none may, whatever it returns."""


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """One call with autograd's record of it: the results that carry gradients, the inputs that want them."""

    outputs: list[torch.Tensor]
    wanted: list[torch.Tensor]


def gradients_of(
    function: Function, arguments: Sequence[object], seed: str, *, strained: bool = False
) -> list[torch.Tensor]:
    """Return the gradient for every floating-point tensor among the arguments, in order, in fresh memory.

    Where there are several, those of calls in which only one input wants a gradient follow, in the same
    order: a formula may leave out what is not wanted, and nothing else. The results are weighted with values
    of both signs that every dtype holds exactly and that ``seed`` decides; they lie in memory with gaps, as
    those that come from a slice or an expansion do. An input that does not count has zeros.

    ``strained`` calls with other values between a call and its backward, and goes back through that call
    afterwards. Raises :class:`GradientFault` where gradients that were returned change then, where the
    weights were written to, where a backward raises and where no result carries a gradient. Without it the
    last two are what autograd raises and a ``ValueError``: a reference need not have gradients.
    """
    places = [
        position
        for position, value in enumerate(arguments)
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    ]
    graph = _call(function, arguments, places)
    if not graph.outputs:
        if strained:
            raise GradientFault(lacking(function).partition(": ")[0])  # gradcheck tells the remedy, once
        raise ValueError(_CARRIES_NONE)
    later = _call_elsewhere(function, arguments, places) if strained else None
    back = _told_backward if strained else _backward
    found = back(graph, seed)
    copies = _plain_copies(graph, found)
    if later is not None:
        with contextlib.suppress(Exception):  # those values may be none that the operator is for
            _backward(later, seed)
        if not all(map(_same, _plain_copies(graph, found), copies)):
            raise GradientFault("the backward of a later call overwrote gradients that had been returned")
    if len(places) > 1:
        for place in places:
            alone = _call(function, arguments, [place])
            copies += _plain_copies(alone, back(alone, seed))
    return copies


def _call(function: Function, arguments: Sequence[object], places: Sequence[int]) -> _Graph:
    inputs = list(arguments)
    wanted: list[torch.Tensor] = []
    for place in places:
        value = arguments[place]
        assert isinstance(value, torch.Tensor)
        wanted.append(value.detach().requires_grad_(True))
        inputs[place] = wanted[-1]
    with torch.enable_grad():
        outputs = [output for output in as_outputs(function(*inputs)) if carries_gradient(output)]
    return _Graph(outputs=outputs, wanted=wanted)


def _call_elsewhere(function: Function, arguments: Sequence[object], places: Sequence[int]) -> _Graph | None:
    """Call with the same values in the opposite order: each is one that the operator may meet."""
    others = list(arguments)
    for place in places:
        value = arguments[place]
        assert isinstance(value, torch.Tensor)
        others[place] = value.detach().flip(tuple(range(value.dim())))
    with contextlib.suppress(Exception):
        return _call(function, others, places)
    return None


def carries_gradient(output: torch.Tensor) -> bool:
    """Say whether autograd can go back from a result: the dispatcher's stand-in for a formula only warns."""
    if not output.requires_grad:
        return False
    return output.grad_fn is None or output.grad_fn.name() != "torch::autograd::WarnNotImplemented"


def lacking(function: Function) -> str:
    """Return the sentence about a function none of whose results carries a gradient."""
    if isinstance(function, torch._ops.OpOverload) and not any(
        torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key) for key in _DERIVATIVE_KEYS
    ):
        return no_derivative(function.name())
    return _CARRIES_NONE


def _told_backward(graph: _Graph, seed: str) -> Sequence[torch.Tensor | None]:
    """Go back, and say of what is raised that it was raised there: the call itself went well."""
    try:
        return _backward(graph, seed)
    except GradientFault:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        said = f"the backward raised {type(error).__name__}: {text}"
        raise GradientFault(said.removesuffix(": ")) from error


def _backward(graph: _Graph, seed: str) -> Sequence[torch.Tensor | None]:
    if not graph.outputs:
        return [None] * len(graph.wanted)
    weights = [_weights(output, seed) for output in graph.outputs]
    versions = [given._version for given in weights]
    found = torch.autograd.grad(graph.outputs, graph.wanted, grad_outputs=weights, allow_unused=True)
    # Written to with the values that were there (mul_ by 1) is written to: what is expanded refuses it.
    if not all(
        version == given._version and torch.equal(given, _weights(output, seed))
        for version, given, output in zip(versions, weights, graph.outputs, strict=True)
    ):
        raise GradientFault(_WROTE)
    return found


def _plain_copies(graph: _Graph, found: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [
        torch.zeros_like(value, memory_format=torch.contiguous_format)
        if gradient is None
        else gradient.detach().clone(memory_format=torch.contiguous_format)
        for value, gradient in zip(graph.wanted, found, strict=True)
    ]


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare bytes, since NaN is no less the same."""
    flat = (one.reshape(-1).view(torch.uint8) for one in (left, right))
    return left.shape == right.shape and torch.equal(*flat)


def _weights(output: torch.Tensor, seed: str) -> torch.Tensor:
    digest = hashlib.sha256(seed.encode()).digest()
    factor = 1 + int.from_bytes(digest[:8], "big") % (_PRIME - 1)
    first = int.from_bytes(digest[8:16], "big") % _PRIME
    steps = (torch.arange(output.numel(), device=output.device) * factor + first) % _PRIME % 7 - 3
    # What reads the gaps between them as if they were weights has NaN in its result.
    spread = torch.full((*output.shape, 2), torch.nan, dtype=output.dtype, device=output.device)
    spread[..., 0] = (steps.to(output.dtype) / 4.0).reshape(output.shape)
    return spread[..., 0].detach()
