"""One fresh process of a calibration: spins through the product's stopwatch, with their own stamps."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from mini_kv.benchmark.pair_timing import side_times
from mini_kv.benchmark.samples import CaseLost
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, InternalError
from mini_kv.core.records.benchmark import KernelWitness
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.pairs import PairSide
from mini_kv.core.rules.statistics import median
from mini_kv.core.tensors import ScalarArg, TensorSpec
from mini_kv.core.time_limits import SPIN_TIMEOUT_S
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.workers import Answer, Lost

BATCHES = 2
WARMUP_CALLS = 5
# The library keeps the stamps of its last calls, in rows.
LOGGED_CALLS = 64
_ROW = 5
# A call of many blocks leaves its number, and two stamps for each of the most blocks there may be.
_WIDE_ROW = 1 + 2 * 16384
WITNESS_CALLS = 30
LONG_US = 500.0

# Start and end in nanoseconds, start and end in cycles, and the number of the call.
_Row = tuple[int, int, int, int, int]

_R = TypeVar("_R", p.Done, p.Timed, p.TimedOutput, p.KernelsWitnessed)


@dataclass(frozen=True, kw_only=True)
class Spun:
    """One spin's batches and the stamps of some of its calls: nanoseconds, and cycles."""

    timed: tuple[p.Timed, ...]
    stamped_ns: tuple[int, ...]
    stamped_cycles: tuple[int, ...]

    @property
    def floors_us(self) -> list[float]:
        """The empty pair's time next to every batch."""
        return [batch.floor_us for batch in self.timed]

    def side(self, empty_kernel_us: float, floors_us: Sequence[float] | None = None) -> PairSide:
        """Return the times as a pair's side, by the code that reads them there.

        ``floors_us`` are those of all batches that were taken in turn with these, where there are more: the
        floor is the process's, not the spin's.
        """
        try:
            return side_times(
                "spin",
                [batch.samples_us for batch in self.timed],
                self.floors_us if floors_us is None else floors_us,
                tick_us=min(batch.tick_us for batch in self.timed),
                launch_exposed=sum(len(batch.launch_exposed) for batch in self.timed),
                calls_per_sample=self.timed[0].calls_per_sample,
                empty_kernel_us=empty_kernel_us,
            )
        except CaseLost as lost:
            raise InternalError(
                Code.CALIBRATION_LOST, f"a spin gave no time: {lost.finding.message}"
            ) from lost

    @property
    def exposed(self) -> int:
        """How many samples the host leaked into."""
        return sum(len(batch.launch_exposed) for batch in self.timed)


@dataclass(frozen=True, kw_only=True)
class WideKernel:
    """A kernel of many blocks: each spins for ``cycles``, or its threads copy (``None``)."""

    blocks: int
    cycles: int | None

    @property
    def work(self) -> Literal["spin", "copy"]:
        """What its threads do."""
        return "copy" if self.cycles is None else "spin"

    @property
    def amount(self) -> int:
        """The operator's argument."""
        return -1 if self.cycles is None else self.cycles


@dataclass(frozen=True, kw_only=True)
class WideWitness:
    """CUPTI's time of a kernel of many blocks, and the stamps of the calls that it watched."""

    kernel_us: float
    stamped_ns: tuple[int, ...]


class Spinner:
    """A candidate worker that has opened the calibration's library."""

    def __init__(self, seat: CandidateSeat, device: DeviceKind) -> None:
        self.seat = seat
        self._device: DeviceKind = device
        self._prepared = 0

    def open(self, load: p.LoadCandidate) -> p.Ready:
        """Wait for the process and open the library; raises ``ConfigurationError``."""
        ready = self.seat.greet()
        loaded = self.seat.load(load)
        if isinstance(ready, p.Ready) and isinstance(loaded, p.CandidateLoaded):
            return ready
        failed = loaded if isinstance(ready, p.Ready) else ready
        text = getattr(failed, "message", type(failed).__name__)
        raise ConfigurationError(Code.CALIBRATION_NOT_LOADED, f"a calibration process did not start: {text}")

    def spin(self, amount: int, iterations: int) -> Spun:
        """Time spins of ``amount`` (cycles; nanoseconds on the CPU) in :data:`BATCHES` batches."""
        return self.spin_in_turn((amount,), iterations, BATCHES)[0]

    def spin_in_turn(
        self, amounts: Sequence[int], iterations: int, batches: int, settling: int = 0
    ) -> tuple[Spun, ...]:
        """Time spins of several lengths in turn, the order reversed from round to round.

        What drifts within the process, its floor among it, then hits all of them alike. Of the rounds, the
        first ``settling`` are not counted.
        """
        cases = [self.prepare(amount) for amount in amounts]

        def stamped(number: int, batch: p.Timed) -> list[_Row]:
            rows = _rows(self._stamps(cases[number], batch.kept[-1]))
            return rows[-min(LOGGED_CALLS, iterations) :]

        return self._in_turn(cases, iterations, batches, stamped, settling)

    def _in_turn(
        self,
        cases: Sequence[str],
        iterations: int,
        batches: int,
        stamped: Callable[[int, p.Timed], list[_Row]],
        settling: int = 0,
    ) -> tuple[Spun, ...]:
        timed: list[list[p.Timed]] = [[] for _ in cases]
        stamps: list[list[_Row]] = [[] for _ in cases]
        turn = list(range(len(cases)))
        for number in range(settling + batches):
            for one in turn:
                batch = self._batch(cases[one], iterations, timed[one])
                if number < settling:
                    continue
                timed[one].append(batch)
                stamps[one] += stamped(one, batch)
            turn.reverse()
        for case in cases:
            self._drop(case)
        return tuple(
            Spun(
                timed=tuple(own),
                stamped_ns=tuple(row[1] - row[0] for row in rows),
                stamped_cycles=tuple(row[3] - row[2] for row in rows),
            )
            for own, rows in zip(timed, stamps, strict=True)
        )

    def _batch(self, case: str, iterations: int, earlier: Sequence[p.Timed]) -> p.Timed:
        request = p.TimeBatch(
            case_id=case,
            warmup=WARMUP_CALLS,
            iterations=iterations,
            calls_per_sample=earlier[0].calls_per_sample if earlier else 0,
            cache="cold" if self._device == "cuda" else "hot",
        )
        return self._ask(request, p.Timed)[0]

    def witness_us(self, amount: int) -> tuple[float, float]:
        """Return CUPTI's time of a spin and of an empty kernel, microseconds; asked last (it stays)."""
        case = self.prepare(amount)
        witness = self._witness(case)
        self._drop(case)
        return witness.kernel_us, witness.marker_us

    def _witness(self, case: str) -> KernelWitness:
        request = p.WitnessKernels(case_id=case, calls=WITNESS_CALLS, cache="cold")
        return self._ask(request, p.KernelsWitnessed)[0].witness

    def time_wide(self, kernels: Sequence[WideKernel], iterations: int, batches: int) -> tuple[Spun, ...]:
        """Time kernels of many blocks in turn; their stamps are nanoseconds only."""
        cases = [self.prepare(one.amount, blocks=one.blocks) for one in kernels]

        def stamped(number: int, _: p.Timed) -> list[_Row]:
            return self._wide_rows(kernels[number].blocks)

        return self._in_turn(cases, iterations, batches, stamped)

    def witness_wide(self, kernel: WideKernel) -> WideWitness:
        """Return CUPTI's time of a kernel of many blocks next to the stamps of the very calls it watched."""
        case = self.prepare(kernel.amount, blocks=kernel.blocks)
        witness = self._witness(case)
        self._drop(case)
        # The watched calls are the last ones.
        rows = self._wide_rows(kernel.blocks)[-WITNESS_CALLS:]
        return WideWitness(
            kernel_us=witness.kernel_us,
            stamped_ns=tuple(row[1] - row[0] for row in rows),
        )

    def _wide_rows(self, blocks: int) -> list[_Row]:
        """Return the first start and the last end of each of the last calls of ``blocks`` blocks."""
        case = self.prepare(0, blocks=blocks)
        log = self._call(case)
        self._drop(case)
        rows = []
        for first in range(0, len(log), _WIDE_ROW):
            ends = first + 1 + blocks
            rows.append((min(log[first + 1 : ends]), max(log[ends : ends + blocks]), 0, 0, log[first]))
        return sorted(rows, key=lambda row: row[-1])

    def timer_step_ns(self, count: int = 64) -> float:
        """Return the median step between distinct readings of the device's global timer."""
        case = self.prepare(0, steps=count)
        readings = self._call(case)
        self._drop(case)
        return median([float(high - low) for low, high in itertools.pairwise(readings)])

    def prepare(self, amount: int, *, blocks: int = 0, steps: int = 0) -> str:
        """Make a spin ready to be timed and return its name."""
        self._prepared += 1
        case = f"spin_{self._prepared}"
        device = "cuda:0" if self._device == "cuda" else "cpu"
        like = TensorSpec(
            shape=(1,),
            strides=(1,),
            storage_offset=0,
            dtype="int64",
            device=device,
            storage_bytes=8,
            blob=0,
        )
        arguments = (like, ScalarArg(value=amount), ScalarArg(value=blocks), ScalarArg(value=steps))
        self._ask(p.PrepareTiming(case_id=case, argument_sets=(arguments,)), p.Done, [bytearray(8)])
        return case

    def _call(self, case: str) -> tuple[int, ...]:
        request = p.TimeBatch(case_id=case, warmup=1, iterations=1, calls_per_sample=1, cache="hot")
        batch, _ = self._ask(request, p.Timed)
        return self._stamps(case, batch.kept[-1])

    def _stamps(self, case: str, sample: int) -> tuple[int, ...]:
        _, payloads = self._ask(p.FetchTimedOutput(case_id=case, sample=sample), p.TimedOutput)
        return struct.unpack(f"<{len(payloads[0]) // 8}q", payloads[0])

    def _ask(
        self, message: p.Request, kind: type[_R], payloads: Sequence[bytearray] = ()
    ) -> tuple[_R, list[bytearray]]:
        outcome = self.seat.ask(message, payloads, timeout_s=SPIN_TIMEOUT_S)
        return _expected(outcome, kind, type(message).__name__)

    def _drop(self, case: str) -> None:
        _expected(self.seat.drop_timing(case, timeout_s=SPIN_TIMEOUT_S), p.Done, "DropTiming")


def _expected(outcome: Answer | Lost, kind: type[_R], asked: str) -> tuple[_R, list[bytearray]]:
    if isinstance(outcome, Answer) and isinstance(outcome.reply, kind):
        return outcome.reply, outcome.payloads
    text = outcome.reply if isinstance(outcome, Answer) else f"{outcome.code}: {outcome.message}"
    raise InternalError(Code.CALIBRATION_LOST, f"{asked} brought {text}")


def _rows(log: Sequence[int]) -> list[_Row]:
    """Return the log's rows, the oldest call first."""
    rows = [(log[i], log[i + 1], log[i + 2], log[i + 3], log[i + 4]) for i in range(0, len(log), _ROW)]
    return sorted(rows, key=lambda row: row[-1])
