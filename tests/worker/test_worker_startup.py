"""A worker's start: what it must not import on the way (seconds of a verdict hang on it) or print."""

from __future__ import annotations

import subprocess
import sys

import pytest


def imported_after(code: str) -> set[str]:
    """Run code in a fresh interpreter and return the modules that it has then."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(done.stdout.split())


def test_the_contract_worker_is_ready_without_inductor() -> None:
    found = imported_after("from mini_kv.worker.contract_checks import preload; preload()")
    assert "torch._dynamo" in found
    assert "torch._inductor.lowering" not in found


def test_a_trace_starts_without_the_compiler() -> None:
    """torch.profiler's own class imports 861 modules before it starts."""
    found = imported_after(
        "import torch\n"
        "import mini_kv.worker.cupti\n"
        "from torch.autograd.profiler import profile\n"
        "with profile(use_cpu=True, use_kineto=True, profile_memory=True) as trace: torch.ones(2)\n"
        "assert trace.kineto_results is not None and list(trace.kineto_results.events())"
    )
    assert "mini_kv.worker.cupti" in found
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & found


# NumPy is hidden, so that torch has reason to warn in every environment.
WARNED = """
import sys, warnings
sys.modules['numpy'] = None
import mini_kv.worker.{start}
import torch
warnings.warn('another')
warnings.warn('Failed to initialize')
"""


@pytest.mark.parametrize("start", ["main", "profile_target"])
def test_a_worker_prints_every_warning_but_torchs_about_numpy(start: str) -> None:
    """The profiled process and the one that leaves bytecode printed it."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", WARNED.format(start=start)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = [line.partition("UserWarning: ")[2] for line in done.stderr.splitlines() if "Warning" in line]
    assert said == ["another", "Failed to initialize"]
