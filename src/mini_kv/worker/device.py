"""What both roles do at the first request: choose the device, set torch's threads, tell the facts.

And what both do around times on a CPU: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mini_kv.core.protocol import Hello, Ready


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the block, as wherever a CPU is timed; then as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def open_device(hello: Hello) -> tuple[torch.device, Ready]:
    """Initialise the device; raises ``RuntimeError`` when torch cannot use it."""
    torch.set_num_threads(hello.threads)
    if hello.device == "cpu":
        return torch.device("cpu"), Ready(
            torch=str(torch.__version__),
            torch_cuda=torch.version.cuda and str(torch.version.cuda),
            device="cpu",
            device_count=1,
        )
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} (built for CUDA {torch.version.cuda}) finds no usable CUDA device"
        )
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device).add_(1).item()
    facts = torch.cuda.get_device_properties(device)
    return device, Ready(
        torch=str(torch.__version__),
        torch_cuda=torch.version.cuda and str(torch.version.cuda),
        device="cuda:0",
        device_count=torch.cuda.device_count(),
        compute_capability=f"{facts.major}.{facts.minor}",
        device_name=facts.name,
        total_memory_bytes=facts.total_memory,
        multiprocessors=facts.multi_processor_count,
        l2_bytes=facts.L2_cache_size,
    )
