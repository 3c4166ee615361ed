"""The process before and after: what a candidate changes is named, honest work leaves no mark."""

from __future__ import annotations

import builtins
import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.card import Contract
from mini_kv.core.records.correctness import StateChange
from mini_kv.core.records.process_state import ProcessState
from mini_kv.core.records.results import Status
from mini_kv.core.rules.process_changes import compare_states, judge_changes
from mini_kv.correctness.cases import run_cases
from mini_kv.correctness.process_changes import check_state
from mini_kv.system.workers import Answer, Lost
from mini_kv.worker import storage
from mini_kv.worker.candidate import Candidate
from mini_kv.worker.process_snapshot import describe_process, foreign_kernels
from mini_kv.worker.replaced_functions import code_here, replaced_since
from probe import candidate_seat, probe_card, probe_case, probe_subject

LIBC = ctypes.CDLL(None)
PR_SET_NAME = 15


def changes_by(action: Callable[[], object]) -> tuple[StateChange, ...]:
    before = describe_process()
    action()
    return compare_states(before.facts, describe_process().facts)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    dtype, threads, folder = torch.get_default_dtype(), torch.get_num_threads(), os.getcwd()
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)
    LIBC.unsetenv(b"LD_PRELOAD")
    LIBC.fesetround(0)
    os.chdir(folder)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("torch.default_dtype", lambda: torch.set_default_dtype(torch.float64)),
        ("torch.threads", lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
        ("torch.deterministic_algorithms", lambda: torch.use_deterministic_algorithms(True)),
        ("torch.float32_matmul_precision", lambda: torch.set_float32_matmul_precision("high")),
        ("torch.initial_seed", lambda: torch.manual_seed(time.monotonic_ns() & 0xFFFF)),
        ("arithmetic.rounding_mode", lambda: LIBC.fesetround(0x400)),
        ("arithmetic.subnormals", lambda: torch.set_flush_denormal(True)),
        ("environment.LD_PRELOAD", lambda: LIBC.setenv(b"LD_PRELOAD", b"/tmp/x.so", 1)),
        ("process.folder", lambda: os.chdir("/")),
    ],
)
def test_a_changed_flag_is_a_fault_and_named(name: str, action: Callable[[], object]) -> None:
    finding = judge_changes(changes_by(action))
    assert finding is not None and finding.code == "GLOBAL_STATE_CHANGED"
    assert name in finding.evidence


@pytest.mark.parametrize(
    ("owner", "name", "place"),
    [
        (time, "perf_counter_ns", "time"),
        (torch, "zeros", "torch"),
        (torch.Tensor, "__repr__", "torch.Tensor"),
        (builtins, "len", "builtins"),
        (storage, "tensor_bytes", "mini_kv.worker.storage"),
        (Candidate, "_run", "mini_kv.worker.candidate.Candidate"),
    ],
)
def test_a_replaced_function_is_found_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, place: str
) -> None:
    before, real = code_here(), getattr(owner, name)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, lambda *given, **named: (real(*given, **named), real)[0])
        found = replaced_since(before)
    assert list(found) == [f"{place}.{name}"] and "test_process_snapshot.py" in found[f"{place}.{name}"]
    assert replaced_since(before) == {}


def test_what_torch_puts_in_the_place_of_its_own_is_no_fault() -> None:
    """``import torch._dynamo`` wraps ``torch.manual_seed`` and registers operators in namespaces of torch."""
    program = """
from mini_kv.worker.process_snapshot import describe_process, foreign_kernels
from mini_kv.worker.replaced_functions import code_here, replaced_since
from mini_kv.core.rules.process_changes import compare_states, judge_changes
code, before = code_here(), describe_process().facts
import torch, torch._dynamo, torch._functorch.aot_autograd
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
finding = judge_changes(compare_states(before, describe_process().facts | foreign_kernels("own")))
assert finding is None, finding
assert replaced_since(code) == {}, replaced_since(code)
"""
    _run_elsewhere(program)


def test_an_operator_that_is_defined_in_torchs_namespace_is_a_fault() -> None:
    before = foreign_kernels("mini_kv_probe")
    library = torch.library.Library("aten", "FRAGMENT")
    try:
        library.define("of_a_candidate(Tensor x) -> Tensor")
        found = set(foreign_kernels("mini_kv_probe")) - set(before)
        assert found == {"dispatcher.aten::of_a_candidate"}
    finally:
        library._destroy()


def test_what_steers_every_later_line_of_python_is_a_fault() -> None:
    def trace(*_: object) -> None:
        return None

    profiling, tracing = sys.getprofile(), sys.gettrace()
    try:
        found = changes_by(lambda: sys.setprofile(trace))
    finally:
        sys.setprofile(profiling)
        sys.settrace(tracing)
    finding = judge_changes(found)
    assert finding is not None and finding.evidence == ("python.profile_function",)


CANNOT_BE_TAKEN_BACK = {
    "torch.function_modes": "BaseTorchFunctionMode().__enter__()",
    "torch.saved_tensor_hooks": "saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()",
    "torch.anomaly_detection": "torch.autograd.set_detect_anomaly(True)",
    "torch.dispatcher_fallbacks": "library.fallback(lambda op, *a, **k: None, 'PrivateUse1')",
    "python.garbage_collection": "gc.disable()",
    "python.recursion_limit": "sys.setrecursionlimit(5000)",
    "arithmetic.traps": "ctypes.CDLL(None).feenableexcept(4)",
    "process.locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "process.limit.NOFILE": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "process.niceness": "os.nice(1)",
    "process.timers": "signal.alarm(100)",
    "process.standard_stream.1": "os.close(1)",
}


def test_a_change_that_cannot_be_taken_back_is_a_fault() -> None:
    program = f"""
import ctypes, gc, locale, os, resource, signal, sys, torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import BaseTorchFunctionMode
from mini_kv.worker.process_snapshot import describe_process
from mini_kv.core.rules.process_changes import compare_states, judge_changes
library = torch.library.Library("_", "IMPL", "PrivateUse1")
locale.setlocale(locale.LC_ALL, "C.UTF-8")
for name, statement in {CANNOT_BE_TAKEN_BACK}.items():
    before = describe_process().facts
    exec(statement)
    finding = judge_changes(compare_states(before, describe_process().facts))
    assert finding is not None and finding.evidence == (name,), (name, finding)
"""
    _run_elsewhere(program)


def _run_elsewhere(program: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program]
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"TORCHINDUCTOR_CACHE_DIR": folder}  # as in every worker
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_computing_leaves_no_fault() -> None:
    def work() -> None:
        with torch.no_grad():
            x = torch.randn(1 << 18)
            (x * 2).sum().item()
        joined = threading.Thread(target=lambda: torch.ones(4) + 1)
        joined.start()
        joined.join()

    assert judge_changes(changes_by(work)) is None


def test_a_thread_and_a_file_that_stay_are_remarks() -> None:
    named, leave = threading.Event(), threading.Event()

    def work() -> None:
        # A name of its own: a thread of an earlier test may end meanwhile, and threads are counted by name.
        LIBC.prctl(PR_SET_NAME, b"one-that-stays", 0, 0, 0)
        named.set()
        leave.wait()

    worker = threading.Thread(target=work)
    read, write = os.pipe()
    os.close(write)

    def action() -> None:
        worker.start()
        named.wait()
        os.dup(read)

    found = changes_by(action)
    leave.set()
    worker.join()
    assert judge_changes(found) is None
    kinds = {change.name.partition(".")[0] for change in found}
    assert {"threads", "descriptors"} <= kinds and all(change.remark for change in found)


def test_an_overridden_kernel_of_torchs_own_is_a_fault() -> None:
    # Earlier tests may have opened candidates in this process.
    before = foreign_kernels("mini_kv_probe")
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("special_airy_ai", lambda x: x, "CPU")
        found = {
            name: where for name, where in foreign_kernels("mini_kv_probe").items() if name not in before
        }
        assert list(found) == ["dispatcher.aten::special_airy_ai[CPU]"]
        finding = judge_changes(compare_states({}, found))
        assert finding is not None and "special_airy_ai" in finding.message
    finally:
        library._destroy()


def test_the_probe_leaves_its_process_as_it_was() -> None:
    # The probe lives in pytest's process, which earlier tests may have changed since it was loaded: its own
    # calls must add nothing to that.
    def held_against_it() -> set[tuple[str, str | None]]:
        changes, _ = check_state(candidate_seat(), Contract())  # type: ignore[arg-type]
        return {(one.name, one.after) for one in changes if not one.remark}

    earlier = held_against_it()
    run_cases(probe_subject(probe_card(probe_case("a", 0))), silent)
    assert held_against_it() == earlier


class Says:
    occupied = True

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def ask(self, *_: Any, **__: Any) -> Any:
        return self.outcome


def described(after: dict[str, str]) -> Answer:
    facts = {"torch.default_dtype": "torch.float32"}
    reply = p.StateDescribed(before=ProcessState(facts=facts), after=ProcessState(facts=facts | after))
    return Answer(reply=reply, payloads=[])


def test_the_card_decides_what_a_change_means() -> None:
    seat: Any = Says(described({"torch.default_dtype": "torch.float64"}))
    changes, check = check_state(seat, Contract())
    assert (check.status, check.code) == (Status.FAIL, "GLOBAL_STATE_CHANGED")
    assert "was torch.float32, is torch.float64" in (check.message or "")
    assert [change.name for change in changes] == ["torch.default_dtype"]
    _, check = check_state(seat, Contract(allow_global_state=True))
    assert (check.status, check.code) == (Status.SKIPPED, "GLOBAL_STATE_ALLOWED")


def test_a_process_that_cannot_be_asked_is_no_proof() -> None:
    lost: Any = Says(Lost(code="TIMEOUT", message="no answer", output=""))
    assert check_state(lost, Contract())[1].code == "TIMEOUT"
    other: Any = Says(Answer(reply=p.Done(), payloads=[]))
    assert check_state(other, Contract())[1].code == "UNANSWERED"
    gone: Any = Says(None)
    gone.occupied = False
    assert check_state(gone, Contract())[1].status is Status.SKIPPED


def test_a_flood_of_changes_is_bounded_and_faults_come_first() -> None:
    after = {f"libraries.{number}": "mapped" for number in range(500)} | {"torch.x": "1" * 10_000}
    found = compare_states({}, after)
    assert len(found) == 200
    assert found[0].name == "torch.x" and len(found[0].after or "") == 200
