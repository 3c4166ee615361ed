"""What a candidate really calls: dispatcher operators, device kernels, and torch memory that it keeps.

PyTorch's own record of dispatcher calls, nested ones included, made in a worker that is never timed. It
sees what goes through the dispatcher or runs on the device; a function that is called past both leaves
no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mini_kv.core import protocol as p
from mini_kv.core.records.correctness import CallTrace

Call = Callable[..., object]
_NAME_LIMIT = 400
# Runtime calls and markers that a device trace holds as well as kernels.
_NO_KERNEL = ("Memcpy", "Memset", "Context Sync", "Event ", "Stream ")


def trace_calls(
    operator: Call, sets: Sequence[Sequence[object]], device: torch.device, *, kernels: bool
) -> p.CallsTraced:
    """Call once with every argument set, results freed at once; raises what the operator raises.

    ``kernels`` asks for the device's kernels too, which costs the start of CUPTI.
    """

    def run() -> None:
        for arguments in sets:
            operator(*arguments)
        if device.type == "cuda":
            torch.cuda.synchronize()

    with torch.no_grad():
        traced = _on_device if kernels and device.type == "cuda" else _on_host
        operators, found, kept = traced(run)
    named = [name for name in operators if "::" in name]
    return p.CallsTraced(
        trace=CallTrace(
            operators=tuple(sorted({name[:_NAME_LIMIT] for name in named})),
            kernels=tuple(sorted({name[:_NAME_LIMIT] for name in found})),
            kept_bytes=kept,
        )
    )


def _on_host(run: Callable[[], None]) -> tuple[list[str], list[str], int]:
    # The older of torch's two profilers: the newer one takes more than a second to start.
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    legacy: Any = torch.autograd
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    legacy._enable_profiler_legacy(config)
    try:
        run()
    finally:
        events = [event for thread in legacy._disable_profiler_legacy() for event in thread]
    names = [event.name() for event in events if event.kind() == "push"]
    allocations = [event for event in events if event.kind() == "memory_alloc"]
    return names, [], sum(event.cpu_memory_usage() + event.cuda_memory_usage() for event in allocations)


def _on_device(run: Callable[[], None]) -> tuple[list[str], list[str], int]:
    from torch.autograd.profiler import profile

    with profile(use_cpu=True, use_device="cuda", use_kineto=True, profile_memory=True) as trace:
        run()
    results = trace.kineto_results
    if results is None:
        raise RuntimeError("torch's profiler returned no trace")
    names: list[str] = []
    kernels: list[str] = []
    kept = 0
    for event in results.events():
        name = event.name()
        if name == "[memory]":
            kept += event.nbytes()
        elif not str(event.device_type()).endswith("CUDA"):
            names.append(name)
        elif event.duration_ns() > 0 and not name.startswith(_NO_KERNEL):
            kernels.append(name)
    return names, kernels, kept
