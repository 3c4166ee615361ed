"""The process under the profiler: load, make the inputs, warm up, call once, leave what the call returned.

It is a candidate's process: what it leaves is bytes, judged elsewhere. Kernels of the input factory run
here too; the profiler's name filter keeps them out.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from mini_kv.core import protocol as p
from mini_kv.core.records.profile import TargetPlan
from mini_kv.worker.candidate import Candidate
from mini_kv.worker.storage import as_outputs, tensor_bytes, values_of

_PR_SET_PDEATHSIG = 1

NOT_LOADED = 3
"""Exit code when the library does not open here, though it did in the gate's process."""


def main(text: str) -> None:
    """Carry out one plan, given as JSON; raises what the factory or the operator raises."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    plan = msgspec.json.decode(text, type=TargetPlan)
    operator = _load(plan)
    arguments = _make_inputs(plan)
    with torch.no_grad():
        for _ in range(plan.warmup_calls):
            operator(*arguments)
        _synchronize(plan)
        result = operator(*arguments)
        _synchronize(plan)
    _leave(as_outputs(result), Path(plan.output_folder))


def _load(plan: TargetPlan) -> Callable[..., object]:
    candidate = Candidate()
    candidate.answer(p.Hello(device=plan.device, threads=1), ())
    request = p.LoadCandidate(
        library=plan.library,
        library_sha256=plan.library_sha256,
        python=plan.python,
        dispatcher=plan.dispatcher,
        schema=plan.schema,
    )
    reply, _ = candidate.answer(request, ())
    if not isinstance(reply, p.CandidateLoaded):
        sys.stderr.write(f"the candidate does not load: {reply}\n")
        sys.exit(NOT_LOADED)
    namespace, _, name = plan.dispatcher.partition("::")
    operator: Callable[..., object] = getattr(getattr(torch.ops, namespace), name).default
    return operator


def _make_inputs(plan: TargetPlan) -> tuple[object, ...]:
    module, _, name = plan.input_factory.partition(":")
    factory = getattr(importlib.import_module(module), name)
    # Seeded as the oracle seeds it, so that the values are those that were checked.
    generator = torch.Generator().manual_seed(int(plan.seed, 16) & (2**63 - 1))
    made = factory(plan.params, generator, _device(plan))
    return tuple(values_of(made))


def _device(plan: TargetPlan) -> torch.device:
    return torch.device("cuda", 0) if plan.device == "cuda" else torch.device("cpu")


def _synchronize(plan: TargetPlan) -> None:
    if plan.device == "cuda":
        torch.cuda.synchronize()


def _leave(outputs: Sequence[torch.Tensor], folder: Path) -> None:
    for number, output in enumerate(outputs):
        (folder / f"output_{number}.bin").write_bytes(tensor_bytes(output))
    # Written last: that it is there says that every call returned.
    (folder / "done.json").write_text(json.dumps({"outputs": len(outputs)}))
