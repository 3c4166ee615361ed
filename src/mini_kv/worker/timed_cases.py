"""Prepared cases and their kept outputs: the timing part that oracle and candidate worker share.

Which sets rotate, and over how much memory, is part of the timer plan: ``benchmark.plan.TIMER_PLAN``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from mini_kv.core import protocol as p
from mini_kv.worker.batches import Batch, BatchPlan, CacheMode, Seen
from mini_kv.worker.bulk_calls import Repeats
from mini_kv.worker.channel import Payload
from mini_kv.worker.copy_costs import time_copies
from mini_kv.worker.cpu_timer import CpuTimer
from mini_kv.worker.cuda_timer import FLUSHED_L2, CudaTimer
from mini_kv.worker.output_samples import overlay_all
from mini_kv.worker.rotation import copied, rotation
from mini_kv.worker.storage import as_outputs, describe_outputs, export_arguments
from mini_kv.worker.unseen_calls import time_unseen

Call = Callable[..., object]
TimingRequest = (
    p.TimeBatch
    | p.MeasureTimer
    | p.ReadyForUnseen
    | p.WitnessKernels
    | p.PrepareRepeats
    | p.RunRepeats
    | p.FetchRepeated
    | p.DropTiming
    | p.FetchTimedOutput
    | p.FetchTimedInputs
)


def _leave_cache(_: int) -> None:
    return None


@dataclass(kw_only=True)
class _Prepared:
    """One case. ``rotating`` are the last batch's argument sets: ``sets``, or those and copies of them."""

    call: Call
    sets: list[Sequence[object]]
    repeats: Repeats
    outputs: dict[int, object] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)
    calls_per_sample: int = 1
    kept_at: float = 1.0
    rotating: list[Sequence[object]] = field(default_factory=list)
    spread: list[Sequence[object]] = field(default_factory=list)
    earlier: list[Sequence[object]] = field(default_factory=list)
    fetched_once: bool = True

    def rotate(self, cache: CacheMode, room_bytes: int) -> list[Sequence[object]]:
        """Return the sets to call with: where the cache is to be cold, more than ``room_bytes`` of them."""
        if cache == "cold" and not self.spread:
            self.spread = rotation(self.sets, room_bytes)
        self.rotating = self.spread if cache == "cold" else self.sets
        return self.rotating

    def move(self) -> None:
        """Go on with copies of the argument sets; the ones before stay, so that no copy takes their place."""
        self.earlier += self.spread or self.sets
        self.sets = [copied(arguments) for arguments in self.sets]
        self.spread = []


def timer_for(device: torch.device) -> CpuTimer | CudaTimer:
    """Return the stopwatch of a device."""
    return CudaTimer(device) if device.type == "cuda" else CpuTimer()


class TimedCases:
    """The timed cases of one process, by case id."""

    def __init__(self, device: torch.device, *, keeps_outputs: bool) -> None:
        """``keeps_outputs`` until one of them is fetched: only the candidate's are ever asked for."""
        self._device = device
        self._keeps_outputs = keeps_outputs
        self._timer = timer_for(device)
        self._room_bytes = FLUSHED_L2 * self._timer.l2_bytes if isinstance(self._timer, CudaTimer) else 0
        self._cases: dict[str, _Prepared] = {}

    def prepare(self, case_id: str, call: Call, sets: Sequence[Sequence[object]]) -> None:
        """Make a case ready to be timed with rotating argument sets."""
        given = list(sets)
        self._cases[case_id] = _Prepared(
            call=call, sets=given, rotating=given, repeats=Repeats(call, given, self._device)
        )

    def answer(self, request: TimingRequest) -> tuple[p.Reply, Sequence[Payload]]:
        """Carry out one timing request; raises ``KeyError`` for a case that was not prepared."""
        match request:
            case p.TimeBatch():
                return self._batch(request), ()
            case p.MeasureTimer():
                return self._measure(request), ()
            case p.WitnessKernels():
                return self._witness(request), ()
            case p.ReadyForUnseen() | p.PrepareRepeats():
                self._make_ready(request)
                return p.Done(), ()
            case p.RunRepeats() | p.FetchRepeated():
                return self._repeat(request)
            case p.DropTiming():
                self._cases.pop(request.case_id, None)
                return p.Done(), ()
            case p.FetchTimedOutput():
                return self._fetch(request)
            case p.FetchTimedInputs():
                case = self._cases[request.case_id]
                copies = len(case.rotating) // len(case.sets)
                position = request.argument_set + len(case.sets) * int(request.place * copies)
                # The storages come in the order in which the oracle numbered them.
                _, payloads = export_arguments(case.rotating[position])
                return p.TimedInputs(), payloads

    def _batch(self, request: p.TimeBatch) -> p.Timed:
        case = self._cases[request.case_id]
        case.outputs.clear()
        if request.elsewhere:
            case.move()
        plan = BatchPlan(
            warmup=request.warmup,
            iterations=request.iterations,
            calls_per_sample=request.calls_per_sample,
            cache=request.cache,
            kept_at=request.kept_at,
        )
        with torch.no_grad():
            batch = self._timer.batch(case.call, case.rotate(request.cache, self._room_bytes), plan)
        return self._keep(case, batch, request.kept_at)

    def _make_ready(self, request: p.ReadyForUnseen | p.PrepareRepeats) -> None:
        case = self._cases[request.case_id]
        with torch.no_grad():
            if isinstance(request, p.PrepareRepeats):
                case.repeats.prepare(request.calls)
            elif isinstance(self._timer, CudaTimer):
                raise ValueError("single calls on new inputs are timed on the CPU only")
            else:
                self._timer.ready(case.call, case.sets, request.calls)

    def copies(
        self, case_id: str, fresh: Sequence[Sequence[object]], results: Sequence[torch.Tensor]
    ) -> tuple[float, float]:
        """Time what moving a call's bytes takes: :func:`time_copies`. Raises ``ValueError`` on CUDA."""
        if isinstance(self._timer, CudaTimer):
            raise ValueError("copies of inputs are timed on the CPU only")
        with torch.no_grad():
            return time_copies(self._timer, self._cases[case_id].sets, fresh, results)

    def unseen(self, case_id: str, call: Call, make: Callable[[], Sequence[Sequence[object]]]) -> p.Timed:
        """Time one call on every argument set that ``make`` gives, and prepare ``case_id`` with them."""
        sets: list[Sequence[object]] = []

        def made() -> Sequence[Sequence[object]]:
            sets.extend(make())
            return sets

        with torch.no_grad():
            batch = time_unseen(call, made)
        self.prepare(case_id, call, sets)
        self._cases[case_id].fetched_once = False
        return self._keep(self._cases[case_id], batch, 1.0)

    def _keep(self, case: _Prepared, batch: Batch, kept_at: float) -> p.Timed:
        if self._keeps_outputs:
            case.outputs.update(batch.outputs)
            case.seen.update(batch.seen)
        case.calls_per_sample = batch.calls_per_sample
        case.kept_at = kept_at
        return p.Timed(
            samples_us=batch.samples_us,
            launch_exposed=batch.launch_exposed,
            kept=tuple(batch.outputs),
            calls_per_sample=batch.calls_per_sample,
            floor_us=batch.floor_us,
            tick_us=batch.tick_us,
        )

    def _repeat(self, request: p.RunRepeats | p.FetchRepeated) -> tuple[p.Reply, Sequence[Payload]]:
        case = self._cases[request.case_id]
        if isinstance(request, p.RunRepeats):
            with torch.no_grad():
                case.repeats.run(request.calls, request.kept_outputs)
            return (p.Repeated(kept=tuple(case.repeats.kept)) if request.kept_outputs else p.Done()), ()
        kept = case.repeats.kept[request.position]
        outputs, payloads = describe_outputs(as_outputs(kept.result), case.sets[kept.argument_set])
        if len(payloads) == len(outputs):
            payloads = overlay_all(payloads, kept.seen)
        return p.TimedOutput(argument_set=kept.argument_set, outputs=outputs), payloads

    def _witness(self, request: p.WitnessKernels) -> p.KernelsWitnessed:
        if not isinstance(self._timer, CudaTimer):
            raise ValueError("kernels are witnessed on CUDA only")
        from mini_kv.worker.cupti import witness

        case = self._cases[request.case_id]
        clear = self._timer.clear_cache if request.cache == "cold" else _leave_cache
        sets = case.rotate(request.cache, self._room_bytes)
        with torch.no_grad():
            return p.KernelsWitnessed(witness=witness(case.call, sets, request.calls, clear))

    def _measure(self, request: p.MeasureTimer) -> p.TimerMeasured:
        floor_us, tick = self._timer.floor(request.cache)
        return p.TimerMeasured(
            floor_us=floor_us,
            tick_us=tick,
            copy_gb_per_s=self._timer.copy_gb_per_s(),
            l2_bytes=self._timer.l2_bytes if isinstance(self._timer, CudaTimer) else None,
        )

    def _fetch(self, request: p.FetchTimedOutput) -> tuple[p.Reply, Sequence[Payload]]:
        case = self._cases[request.case_id]
        calls = case.calls_per_sample
        position = request.sample * calls + p.kept_call(case.kept_at, calls)
        used = position % len(case.rotating)
        outputs, payloads = describe_outputs(as_outputs(case.outputs[request.sample]), case.rotating[used])
        if request.sample in case.seen and len(payloads) == len(outputs):
            payloads = overlay_all(payloads, case.seen[request.sample])
        # A card that sweeps many shapes would otherwise hold gigabytes for each until the last was timed.
        if case.fetched_once:
            case.outputs.clear()
            case.seen.clear()
        return p.TimedOutput(argument_set=used % len(case.sets), outputs=outputs), payloads


__all__ = ["TimedCases"]
