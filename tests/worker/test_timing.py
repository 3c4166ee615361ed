"""The CPU's stopwatch: how often it calls, what it keeps, what it says of itself."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import mmap
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.worker import batches, cpu_timer
from mini_kv.worker.batches import Batch, BatchPlan, kept_indices, tick_us
from mini_kv.worker.bulk_calls import Repeats
from mini_kv.worker.cpu_timer import CpuTimer
from mini_kv.worker.output_samples import PLACES, Looker, overlay
from mini_kv.worker.storage import as_outputs
from mini_kv.worker.timed_cases import TimedCases, timer_for


class Counter:
    """A call that counts and returns the number of elements it was given, and which call it was."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.calls.append(int(value[0]))
        return torch.tensor([float(value[0]), float(len(self.calls))])


SETS = [(torch.tensor([float(n)]),) for n in range(3)]


def batch(counter: Counter, **changes: Any) -> Batch:
    plan = BatchPlan(warmup=4, iterations=6, calls_per_sample=5, cache="hot")
    return CpuTimer().batch(counter, SETS, dataclasses.replace(plan, **changes))


def test_a_batch_makes_exactly_the_calls_of_its_plan() -> None:
    counter = Counter()
    taken = batch(counter)
    assert len(taken.samples_us) == 6
    assert taken.calls_per_sample == 5
    assert len(counter.calls) == 4 + 6 * 5
    assert taken.launch_exposed == ()
    assert all(sample > 0.0 for sample in taken.samples_us)


def test_inputs_rotate_from_call_to_call() -> None:
    counter = Counter()
    batch(counter, warmup=1)
    assert counter.calls[1:] == [position % 3 for position in range(30)]


def test_the_kept_output_is_that_of_the_samples_last_call() -> None:
    counter = Counter()
    taken = batch(counter, warmup=1)
    kept = {sample: output.tolist() for sample, output in taken.outputs.items()}  # type: ignore[attr-defined]
    assert kept == {sample: [float((5 * sample + 4) % 3), float(1 + 5 * sample + 5)] for sample in range(6)}


def test_a_free_choice_of_calls_makes_a_sample_last_a_millisecond() -> None:
    def slow(_: torch.Tensor) -> torch.Tensor:
        total = 0
        for number in range(2000):
            total += number
        return torch.tensor([float(total)])

    # A call that was interrupted while its length was looked at makes the choice 1: that is the machine's.
    plan = BatchPlan(warmup=1, iterations=3, calls_per_sample=0, cache="cold")
    taken_batches = (CpuTimer().batch(slow, SETS, plan) for _ in range(20))
    taken = next(one for one in taken_batches if one.calls_per_sample > 1)
    fastest_ns = min(taken.samples_us) * 1e3 * taken.calls_per_sample
    assert fastest_ns > 0.5 * cpu_timer.MIN_CPU_SAMPLE_NS


def test_one_call_may_be_a_sample() -> None:
    import time

    def sleeps(_: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return torch.zeros(1)

    taken = CpuTimer().batch(
        sleeps, SETS, BatchPlan(warmup=1, iterations=2, calls_per_sample=0, cache="cold")
    )
    assert taken.calls_per_sample == 1
    assert all(sample >= 2000.0 for sample in taken.samples_us)


def test_the_collector_is_quiet_while_samples_are_taken_and_runs_again_after() -> None:
    seen: list[bool] = []

    def looks(_: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        return torch.zeros(1)

    CpuTimer().batch(looks, SETS, BatchPlan(warmup=1, iterations=2, calls_per_sample=1, cache="hot"))
    assert seen[-2:] == [False, False]
    assert gc.isenabled()


def test_the_collector_runs_again_after_a_call_that_raises() -> None:
    counter = iter(range(3))

    def raises_later(_: torch.Tensor) -> torch.Tensor:
        if next(counter) == 2:
            raise ValueError("later")
        return torch.zeros(1)

    with pytest.raises(ValueError, match="later"):
        CpuTimer().batch(
            raises_later, SETS, BatchPlan(warmup=1, iterations=5, calls_per_sample=1, cache="hot")
        )
    assert gc.isenabled()


def test_the_floor_of_an_empty_call_is_small_and_positive() -> None:
    floor_us, tick = CpuTimer().floor("hot")
    assert 0.0 < floor_us < 5.0
    assert 0.0 < tick < 1.0


def test_a_batchs_tick_is_a_calls_share_of_the_clocks() -> None:
    ten, one = (batch(Counter(), calls_per_sample=calls).tick_us for calls in (10, 1))
    assert ten == pytest.approx(one / 10.0)


@pytest.mark.parametrize(
    ("samples", "tick"),
    [((1.0, 1.032, 1.064, 1.032), 0.032), ((5.0, 5.0), 0.0), ((1.0, 1.0 + 1e-9, 1.5), 0.5), ((), 0.0)],
)
def test_the_tick_is_the_smallest_step_between_readings(samples: tuple[float, ...], tick: float) -> None:
    assert tick_us(samples) == pytest.approx(tick)


def test_outputs_are_kept_within_the_budget_and_at_least_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batches.KEPT_OUTPUT_BYTES, "cpu", 100)
    assert kept_indices(torch.zeros(10), 6, "cpu") == range(4, 6)
    assert kept_indices([torch.zeros(5), torch.zeros(5)], 6, "cpu") == range(4, 6)
    assert kept_indices(torch.zeros(1000), 6, "cpu") == range(5, 6)
    assert kept_indices(torch.zeros(0), 6, "cpu") == range(6)
    assert kept_indices(None, 6, "cpu") == range(6)


def test_a_cpu_gets_the_cpus_stopwatch() -> None:
    counter = Counter()
    timer = timer_for(torch.device("cpu"))
    assert type(timer) is CpuTimer
    plan = batches.BatchPlan(warmup=2, iterations=3, calls_per_sample=4, cache="hot")
    taken = timer.batch(counter, SETS, plan)
    assert (len(taken.samples_us), len(counter.calls)) == (3, 2 + 3 * 4)


# ---------------------------------------------------------------------------- cases of one process


def timed_cases() -> TimedCases:
    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    cases.prepare("a", lambda value: value * 2.0, SETS)
    return cases


def time_batch(case_id: str = "a", calls: int = 3) -> p.TimeBatch:
    return p.TimeBatch(case_id=case_id, warmup=1, iterations=4, calls_per_sample=calls, cache="hot")


def test_a_kept_output_comes_with_the_set_it_belongs_to() -> None:
    cases = timed_cases()
    for sample in range(4):
        reply, _ = cases.answer(time_batch())
        assert isinstance(reply, p.Timed)
        assert reply.kept == (0, 1, 2, 3)
        output, payloads = cases.answer(p.FetchTimedOutput(case_id="a", sample=sample))
        assert isinstance(output, p.TimedOutput)
        assert output.argument_set == ((sample + 1) * 3 - 1) % 3
        value = torch.frombuffer(bytearray(payloads[0]), dtype=torch.float32)
        assert value.tolist() == [2.0 * output.argument_set]
        with pytest.raises(KeyError):  # one a batch is fetched, the others are freed
            cases.answer(p.FetchTimedOutput(case_id="a", sample=sample))


def test_a_batch_forgets_the_outputs_of_the_one_before() -> None:
    cases = timed_cases()
    cases.answer(time_batch())
    cases.prepare("a", lambda value: value, SETS)
    with pytest.raises(KeyError):
        cases.answer(p.FetchTimedOutput(case_id="a", sample=0))


@pytest.mark.parametrize("request_", [time_batch("b"), p.FetchTimedOutput(case_id="b", sample=0)])
def test_a_case_that_was_not_prepared_is_a_key_error(request_: Any) -> None:
    with pytest.raises(KeyError):
        timed_cases().answer(request_)


def test_a_dropped_case_is_gone_and_dropping_twice_is_fine() -> None:
    cases = timed_cases()
    for _ in range(2):
        assert cases.answer(p.DropTiming(case_id="a"))[0] == p.Done()
    with pytest.raises(KeyError):
        cases.answer(time_batch())


def test_a_batch_elsewhere_has_equal_inputs_where_none_lay_before() -> None:
    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    places: list[tuple[int, int]] = []
    base = torch.arange(12.0)

    def look(whole: torch.Tensor, part: torch.Tensor, scale: float) -> torch.Tensor:
        # Views of one storage stay views of one storage.
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        assert torch.equal(part, base.view(3, 4)[:, 1::2]) and scale == 2.5
        places.append((whole.data_ptr(), whole.numel()))
        return whole * scale

    cases.prepare("a", look, [(base, base.view(3, 4)[:, 1::2], 2.5)])
    for elsewhere in (False, True, True):
        cases.answer(msgspec.structs.replace(time_batch(), elsewhere=elsewhere))
    assert len(set(places)) == 3
    assert places[0] == (base.data_ptr(), 12)


def test_inputs_that_were_written_to_stay_written_to_elsewhere() -> None:
    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    cases.prepare("a", lambda value: value.add_(1.0), [(torch.zeros(4),)])
    cases.answer(time_batch())
    cases.answer(msgspec.structs.replace(time_batch(), elsewhere=True))
    _, payloads = cases.answer(p.FetchTimedInputs(case_id="a", argument_set=0))
    assert torch.frombuffer(bytearray(payloads[0]), dtype=torch.float32).tolist() == [2.0 * (1 + 4 * 3)] * 4


def test_calls_are_timed_without_gradients() -> None:
    cases = TimedCases(torch.device("cpu"), keeps_outputs=False)
    recorded: list[bool] = []

    def notes(value: torch.Tensor) -> torch.Tensor:
        recorded.append(torch.is_grad_enabled())
        return value

    cases.prepare("a", notes, SETS)
    cases.answer(time_batch())
    assert not any(recorded)


@pytest.mark.parametrize(("kept_at", "position"), [(0.0, 0), (0.5, 2), (0.999, 3), (1.0, 3)])
def test_kept_output_is_that_of_the_call_which_the_judge_drew(kept_at: float, position: int) -> None:
    calls = itertools.count()
    plan = BatchPlan(warmup=1, iterations=3, calls_per_sample=4, cache="hot", kept_at=kept_at)
    taken = CpuTimer().batch(lambda *_: next(calls), SETS, plan)
    assert taken.outputs == {sample: 1 + 4 * sample + position for sample in range(3)}


PAGES = """
import resource, torch
from mini_kv.worker.batches import BatchPlan
from mini_kv.worker.cpu_timer import CpuTimer

torch.set_num_threads(1)
source, faults = torch.ones(8 << 20, dtype=torch.uint8), []

def call(tensor):
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return tensor.clone()

plan = BatchPlan(warmup=2, iterations=60, calls_per_sample=1, cache="cold")
CpuTimer().batch(call, ((source,),), plan)
print(faults[-1] - faults[2], source.nbytes // resource.getpagesize())
"""


def test_a_cpu_sample_waits_for_no_pages_of_its_output() -> None:
    """Kept outputs made the kernel hand out new pages inside samples: 4 ms then read as 11 ms.

    In a process of its own, as a worker is: what other tests left of the heap decides where outputs fit.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PAGES], capture_output=True, text=True, timeout=120, check=True
    )
    faults, output_pages = map(int, done.stdout.split())
    # Transparent huge pages could hide some of it, never make more: of 60 outputs, not even one is new.
    assert faults < output_pages


def test_what_a_thread_fills_in_after_the_return_is_not_what_is_judged() -> None:
    """Empty memory was handed out, and filled before the batch ended and its outputs were looked at."""
    returned: list[torch.Tensor] = []

    def late(_: torch.Tensor) -> torch.Tensor:
        returned.append(torch.zeros(1000))
        return returned[-1]

    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    cases.prepare("late", late, [(torch.ones(1),)])
    request = p.TimeBatch(
        case_id="late", warmup=1, iterations=2, calls_per_sample=3, cache="hot", kept_at=0.5
    )
    cases.answer(request)
    for tensor in returned:
        tensor.fill_(7.0)
    _, payloads = cases.answer(p.FetchTimedOutput(case_id="late", sample=1))
    judged = torch.frombuffer(bytearray(payloads[0]), dtype=torch.float32)
    assert 1 <= int((judged == 0.0).sum()) <= PLACES
    assert int((judged == 7.0).sum()) >= 1000 - PLACES


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32])
def test_a_glimpse_of_a_result_that_stays_changes_nothing(dtype: torch.dtype) -> None:
    for tensor in (
        torch.arange(600).to(dtype),
        torch.arange(600).to(dtype).view(20, 30).t(),
        torch.ones(3, dtype=dtype),
    ):
        (seen,) = Looker().look(tensor)
        raw = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
        assert overlay(raw, seen) == raw
    assert Looker().look((torch.empty(0), None, torch.empty(2, device="meta"))) == (None, None, None)
    assert overlay(b"abc", None) == b"abc"


def test_where_a_result_is_looked_at_is_drawn_when_it_is() -> None:
    """The places of a whole batch stood in the stopwatch's frame before its calls: work on these alone,
    and a thread that filled in the rest later, passed."""
    tensor, looker = torch.arange(1_000_000), Looker()
    before = dict(vars(looker))
    seen = [looker.look(tensor)[0] for _ in range(3)]
    assert len({one.places for one in seen if one is not None}) == 3
    assert vars(looker) == before
    assert all(one is not None and 0 <= min(one.places) <= max(one.places) < 1_000_000 for one in seen)


def test_a_result_whose_pages_nobody_can_read_is_not_waited_for() -> None:
    reading, length = 1, 1 << 16
    pages = mmap.mmap(-1, length)
    tensor = torch.frombuffer(pages, dtype=torch.float32)
    assert Looker().look(tensor) != (None,)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(length), 0) == 0
    try:
        with pytest.raises(ValueError, match="could not be read when it was returned"):
            Looker().look(tensor)
    finally:
        assert protect(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(length), reading) == 0


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (lambda: torch._neg_view(torch.ones(3)), "worked out when it is read"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), "worked out when it is read"),
        (lambda: torch._efficientzerotensor(3), "C\\+\\+ class of its own|worked out"),
        (lambda: torch._lazy_clone(torch.ones(3)), "copied when it is used"),
        (lambda: torch.ones(2, 2).to_sparse(), "C\\+\\+ class of its own"),
    ],
)
def test_a_result_that_computes_when_it_is_looked_at_is_refused(
    late: Callable[[], torch.Tensor], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        as_outputs(late())
    with pytest.raises(TypeError, match=said):
        Looker().look(late())


def test_what_a_clocked_run_keeps_is_drawn_after_each_call() -> None:
    """A candidate that read the position of the kept call from the stopwatch worked on that one alone."""
    counter = Counter()
    repeats = Repeats(counter, SETS, torch.device("cpu"))
    repeats.run(300, kept_outputs=30)
    first = repeats.kept
    assert counter.calls == [position % 3 for position in range(300)]
    assert 5 <= len(first) <= 80
    for position, kept in first.items():
        assert isinstance(kept.result, torch.Tensor)
        assert kept.argument_set == position % 3
        assert kept.result.tolist() == [float(position % 3), float(position + 1)]
    repeats.run(300, kept_outputs=30)
    assert set(repeats.kept) != set(first)
    repeats.run(2, kept_outputs=30)
    assert sorted(repeats.kept) == [0, 1]


def test_a_clocked_run_keeps_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batches.KEPT_OUTPUT_BYTES, "cpu", 3 * 8)
    repeats = Repeats(Counter(), SETS, torch.device("cpu"))
    repeats.run(50, kept_outputs=40)
    assert len(repeats.kept) == 3
    repeats.run(5)
    assert len(repeats.kept) == 3


def test_no_garbage_is_collected_between_the_arrival_of_unseen_arguments_and_their_calls() -> None:
    """What is called back for a collection found the new arguments, and worked out their results untimed."""
    collected: list[str] = []
    on: list[bool] = []

    def call(value: torch.Tensor) -> torch.Tensor:
        on.append(gc.isenabled())
        return value + 1.0

    def note(phase: str, _: object) -> None:
        collected.append(phase)

    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    cases.prepare("known", call, SETS)
    gc.callbacks.append(note)
    try:
        cases.answer(p.ReadyForUnseen(case_id="known", calls=2))
        assert collected and not gc.isenabled()
        collected.clear()
        del on[:]
        cases.unseen("new", call, lambda: [[torch.zeros(4)], [torch.ones(4)]])
        assert (collected, on) == ([], [False, False])
        assert gc.isenabled()
    finally:
        gc.callbacks.remove(note)
        gc.enable()


def test_a_call_on_unseen_arguments_is_the_first_to_meet_them() -> None:
    """A warm-up call on the same sets let a candidate work out all of their results beforehand."""
    order: list[str] = []

    def call(value: torch.Tensor) -> torch.Tensor:
        order.append("call")
        return value + 1.0

    def make() -> list[list[torch.Tensor]]:
        order.append("make")
        return [[torch.full((4,), 1.0 + position)] for position in range(3)]

    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    timed = cases.unseen("new", call, make)
    assert order == ["make", "call", "call", "call"]
    assert (len(timed.samples_us), timed.kept, timed.calls_per_sample) == (1, (0, 1, 2), 1)
    assert timed.samples_us[0] > 0.0
    for sample in range(3):
        reply, payloads = cases.answer(p.FetchTimedOutput(case_id="new", sample=sample))
        assert isinstance(reply, p.TimedOutput) and reply.argument_set == sample
        assert torch.frombuffer(bytearray(payloads[0]), dtype=torch.float32).tolist() == [2.0 + sample] * 4
