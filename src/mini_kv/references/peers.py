"""Peers: other implementations of the operators, to be timed against a candidate as its reference.

A card whose reference is a peer says how a candidate stands against what a user of PyTorch would have
written instead of it. What is right does not follow the peer: its FP64 run, which the judge takes for the
yardstick, is the formula's own, and a peer outside the card's tolerance makes its cases INVALID.

``*_compiled`` are the formulas through ``torch.compile`` with Inductor, for each shape and dtype apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from mini_kv.references import fused_bias_relu, rmsnorm, vector_add

Function = Callable[..., torch.Tensor]

# Compiling takes a second a form. Fewer elements than this are no size to be timed, and take the formula.
COMPILED_ELEMENTS = 1 << 16

# More shapes, dtypes and layouts than a card has cases.
COMPILED_FORMS = 256


def rmsnorm_functional(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``torch.nn.functional.rms_norm`` over the last dimension; shapes as ``rmsnorm.reference``."""
    if x.dtype == torch.float64:
        return rmsnorm.reference(x, weight, eps)
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps).contiguous()


def rmsnorm_liger(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Liger's Triton kernel, from the package ``liger-kernel``; off the GPU, and in FP64, the formula.

    Of its casting modes the one that computes in float32 throughout and rounds once, as the formula does.
    """
    if x.dtype == torch.float64 or x.device.type != "cuda":
        return rmsnorm.reference(x, weight, eps)
    from liger_kernel.ops.rms_norm import (  # type: ignore[import-not-found,unused-ignore]
        LigerRMSNormFunction,
    )

    result: torch.Tensor = LigerRMSNormFunction.apply(x, weight, eps, 0.0, "gemma", False, None)
    return result


def rmsnorm_compiled(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``rmsnorm.reference`` through ``torch.compile``."""
    return _through_compiler(rmsnorm.reference, x)(x, weight, eps)


def bias_relu_compiled(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``fused_bias_relu.reference`` through ``torch.compile``: one kernel, as the candidates."""
    return _through_compiler(fused_bias_relu.reference, x)(x, bias)


def vector_add_compiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``vector_add.reference`` through ``torch.compile``."""
    return _through_compiler(vector_add.reference, a)(a, b)


def _through_compiler(formula: Function, first: torch.Tensor) -> Function:
    # What is compiled is checked where it is timed: at its own size.
    small = first.numel() < COMPILED_ELEMENTS
    return formula if small or first.dtype == torch.float64 else compiled(formula)


@functools.cache
def compiled(formula: Function) -> Function:
    """Return the formula compiled for static shapes: made once, and once more for each new input form.

    By default PyTorch stops after a few forms and then runs the formula uncompiled, without a word: the
    limit is raised, and passing it is an error.
    """
    import torch._dynamo.config
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = COMPILED_FORMS
    torch._dynamo.config.accumulated_recompile_limit = COMPILED_FORMS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # Kernels this small compile in this process sooner than a pool of processes starts.
    torch._inductor.config.compile_threads = 1
    result: Function = torch.compile(formula, fullgraph=True, dynamic=False)
    return result
