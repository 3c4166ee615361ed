"""A card's policies held against what a traced run saw: library calls and kept memory. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import KernelWitness
from mini_kv.core.records.card import Contract
from mini_kv.core.records.correctness import CallTrace
from mini_kv.core.records.results import Finding

# Operators that allocate, copy or look at memory another way, and compute nothing.
PLUMBING = frozenset(
    {
        "aten::_local_scalar_dense", "aten::_reshape_alias", "aten::_to_copy", "aten::_unsafe_view",
        "aten::alias", "aten::as_strided", "aten::clone", "aten::contiguous", "aten::copy_",
        "aten::detach", "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::expand",
        "aten::fill_", "aten::flatten", "aten::full", "aten::full_like", "aten::item",
        "aten::lift_fresh", "aten::narrow", "aten::new_empty", "aten::new_empty_strided",
        "aten::new_full", "aten::new_zeros", "aten::ones", "aten::ones_like", "aten::permute",
        "aten::record_stream", "aten::reshape", "aten::resize_", "aten::select", "aten::set_",
        "aten::slice", "aten::squeeze", "aten::t", "aten::to", "aten::transpose", "aten::unflatten",
        "aten::unsqueeze", "aten::view", "aten::view_as", "aten::zero_", "aten::zeros",
        "aten::zeros_like",
    }
)  # fmt: skip
# Kernels of PyTorch, cuBLAS, cuBLASLt, cuDNN, cuSPARSE and cuFFT, by the names CUPTI gives them.
_LIBRARY_KERNEL = re.compile(
    r"at::(?:native|cuda)::|pytorch_flash::|cublas|cudnn|cusparse|cufft|nvjet_|xmma_|cutlass_\d+_|"
    r"splitKreduce|gemv2[TN]_kernel|gemvNSP|(?:ampere|hopper|turing|volta|maxwell|sm\d+)_\w*gemm"
)
_PLUMBING_KERNEL = re.compile(r"copy_kernel|copy_device|FillFunctor|[Mm]emcpy|[Mm]emset")
_SHOWN = 6


def library_operators(operators: Iterable[str], namespace: str) -> tuple[str, ...]:
    """Return the dispatcher calls that are neither the candidate's own nor plumbing."""
    return tuple(
        name
        for name in operators
        if name not in PLUMBING and not name.startswith((f"{namespace}::", "autograd::", "profiler::"))
    )


def library_kernels(kernels: Iterable[str]) -> tuple[str, ...]:
    """Return the device kernels that belong to PyTorch or a vendor's library, copies and fills aside."""
    return tuple(
        name for name in kernels if _LIBRARY_KERNEL.search(name) and not _PLUMBING_KERNEL.search(name)
    )


def judges_trace(contract: Contract) -> bool:
    """Say whether the card forbids anything that a trace shows."""
    return not (contract.allow_library_calls and contract.allow_workspace)


def judge_trace(trace: CallTrace, contract: Contract, namespace: str) -> tuple[Finding, ...]:
    """Return what the card's policies forbid and the trace shows."""
    found: list[Finding] = []
    if not contract.allow_library_calls:
        calls = library_operators(trace.operators, namespace) + library_kernels(trace.kernels)
        if calls:
            found.append(_library_call(calls))
    if not contract.allow_workspace and trace.kept_bytes > 0:
        found.append(
            Finding(
                code=Code.WORKSPACE_KEPT,
                message=f"the calls left {trace.kept_bytes} bytes of torch's memory allocated after their "
                "results were freed; the card allows no workspace",
            )
        )
    return tuple(found)


def judge_timed_kernels(witness: KernelWitness | None, contract: Contract) -> tuple[Finding, ...]:
    """Hold the kernels that ran in traced calls of a timed case against the card."""
    if witness is None or contract.allow_library_calls:
        return ()
    calls = library_kernels(kernel.name for kernel in witness.kernels)
    return (_library_call(calls),) if calls else ()


def _library_call(calls: tuple[str, ...]) -> Finding:
    shown = ", ".join(name[:80] for name in calls[:_SHOWN])
    more = f" and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    return Finding(
        code=Code.LIBRARY_CALL,
        message=f"the candidate called {shown}{more}; the card wants its own kernels (allow_library_calls: "
        "false)",
        evidence=calls,
    )
