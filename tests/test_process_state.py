"""The process before and after: what a candidate changes is named, honest work leaves no mark."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.core.card import Contract
from mini_kv.core.correctness import StateChange
from mini_kv.core.process_state import ProcessState, compare_states, judge_changes
from mini_kv.core.progress import silent
from mini_kv.core.results import Status
from mini_kv.correctness.cases import run_cases
from mini_kv.correctness.state import check_state
from mini_kv.system.workers import Answer, Lost
from mini_kv.worker.process_state import describe_process, foreign_kernels
from probe import candidate_seat, probe_card, probe_case, probe_subject

LIBC = ctypes.CDLL(None)


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


def test_a_patched_clock_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = judge_changes(changes_by(lambda: monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)))
    assert finding is not None and finding.evidence == ("python.time.perf_counter_ns",)


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
    leave = threading.Event()
    worker = threading.Thread(target=leave.wait)
    read, write = os.pipe()
    os.close(write)

    def action() -> None:
        worker.start()
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
