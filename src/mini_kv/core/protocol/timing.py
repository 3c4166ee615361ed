"""What is said to whoever is timed, and what the samples and their outputs come back as."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from mini_kv.core.record import Record
from mini_kv.core.records.benchmark import KernelWitness
from mini_kv.core.tensors import Argument, NonNegative, OutputSpec


class MeasureTimer(Record, frozen=True, kw_only=True, tag="measure_timer"):
    """Measure the timer itself: empty-call floor, tick, copy bandwidth."""

    cache: Literal["cold", "hot"]


class TimerMeasured(Record, frozen=True, kw_only=True, tag="timer_measured"):
    """Answer to MeasureTimer. Floors and ticks in microseconds, bandwidth in GB/s (1e9 bytes)."""

    floor_us: float
    tick_us: float
    copy_gb_per_s: float | None
    l2_bytes: int | None


class PrepareTiming(Record, frozen=True, kw_only=True, tag="prepare_timing"):
    """Give the process the rotating argument sets of one timed case (payloads: all storages)."""

    case_id: str
    argument_sets: tuple[tuple[Argument, ...], ...]


class TimeBatch(Record, frozen=True, kw_only=True, tag="time_batch"):
    """Take ``iterations`` samples of the prepared case after ``warmup`` untimed calls.

    ``kept_at`` says how far into a sample (0 first, 1 last) the call stands whose output is kept.
    ``elsewhere`` asks for copies of the inputs, which lie where no earlier batch of the case had them.
    """

    case_id: str
    warmup: int
    iterations: int
    calls_per_sample: int
    cache: Literal["cold", "hot"]
    kept_at: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    elsewhere: bool = False


def kept_call(kept_at: float, calls_per_sample: int) -> int:
    """Return the position within a sample, from 0, of the call whose output is kept."""
    return min(int(kept_at * calls_per_sample), calls_per_sample - 1)


class Timed(Record, frozen=True, kw_only=True, tag="timed"):
    """Answer to TimeBatch; exposed samples and samples whose output is kept are given by index."""

    samples_us: tuple[float, ...]
    launch_exposed: tuple[int, ...]
    kept: tuple[int, ...]
    calls_per_sample: int
    floor_us: float
    tick_us: float


class ReadyForUnseen(Record, frozen=True, kw_only=True, tag="ready_for_unseen"):
    """Make ready for TimeUnseen of ``calls`` calls, with the argument sets of a prepared case (CPU only).

    What only the first call after a pause costs is spent here, before anything new has arrived: memory for
    results is fetched, the code is called, garbage is collected and the collector switched off.
    """

    case_id: str
    calls: Annotated[int, Meta(ge=1)]


class TimeUnseen(Record, frozen=True, kw_only=True, tag="time_unseen"):
    """Time one call each on argument sets that come with this request (payloads: all storages); CPU only.

    Nothing is called between their arrival and the first call. The one sample is the time a call; the results
    are kept as samples of ``case_id``, one a set.
    """

    case_id: str
    argument_sets: Annotated[tuple[tuple[Argument, ...], ...], Meta(min_length=1)]


class TimeCopies(Record, frozen=True, kw_only=True, tag="time_copies"):
    """Have the oracle time what moving a call's bytes takes, on a prepared case's sets and on fresh ones.

    ``keys`` are those under which the fresh sets were made; CPU only.
    """

    case_id: str
    keys: Annotated[tuple[str, ...], Meta(min_length=1)]


class CopiesTimed(Record, frozen=True, kw_only=True, tag="copies_timed"):
    """Answer to TimeCopies, microseconds a call."""

    fresh_us: float
    rotating_us: float


class FetchTimedOutput(Record, frozen=True, kw_only=True, tag="fetch_timed_output"):
    """Return the output of one timed call (and which argument set it used)."""

    case_id: str
    sample: int


class TimedOutput(Record, frozen=True, kw_only=True, tag="timed_output"):
    """Answer to FetchTimedOutput and FetchRepeated (payloads as in Ran, without inputs)."""

    argument_set: int
    outputs: tuple[OutputSpec, ...]


class FetchTimedInputs(Record, frozen=True, kw_only=True, tag="fetch_timed_inputs"):
    """Return the storages of one argument set as they are after the timed calls.

    ``place`` draws which of the copies that the last batch rotated over (0 the first).
    """

    case_id: str
    argument_set: int
    place: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0


class TimedInputs(Record, frozen=True, kw_only=True, tag="timed_inputs"):
    """Answer to FetchTimedInputs (payloads: the set's storages)."""


class WitnessKernels(Record, frozen=True, kw_only=True, tag="witness_kernels"):
    """Trace ``calls`` calls of the prepared case with CUPTI (CUDA only)."""

    case_id: str
    calls: Annotated[int, Meta(ge=1)]
    cache: Literal["cold", "hot"]


class KernelsWitnessed(Record, frozen=True, kw_only=True, tag="kernels_witnessed"):
    """Answer to WitnessKernels."""

    witness: KernelWitness


class PrepareRepeats(Record, frozen=True, kw_only=True, tag="prepare_repeats"):
    """Make ready to make ``calls`` calls of the prepared case at one word."""

    case_id: str
    calls: Annotated[int, Meta(ge=1)]


class RunRepeats(Record, frozen=True, kw_only=True, tag="run_repeats"):
    """Make them and answer when they are done; the judge looks at its own clock.

    About ``kept_outputs`` of the results are kept until the next run (CPU only). Whether one is kept is drawn
    when its call has returned.
    """

    case_id: str
    calls: Annotated[int, Meta(ge=1)]
    kept_outputs: NonNegative = 0


class Repeated(Record, frozen=True, kw_only=True, tag="repeated"):
    """Answer to RunRepeats where outputs are to be kept: the positions of the calls whose results were."""

    kept: tuple[NonNegative, ...]


class FetchRepeated(Record, frozen=True, kw_only=True, tag="fetch_repeated"):
    """Return a result that the last run of repeats kept, by the position of its call in the run."""

    case_id: str
    position: NonNegative


class DropTiming(Record, frozen=True, kw_only=True, tag="drop_timing"):
    """Free what PrepareTiming and TimeBatch hold."""

    case_id: str


TimingRequest = (
    MeasureTimer
    | PrepareTiming
    | TimeBatch
    | ReadyForUnseen
    | TimeUnseen
    | TimeCopies
    | FetchTimedOutput
    | FetchTimedInputs
    | WitnessKernels
    | PrepareRepeats
    | RunRepeats
    | FetchRepeated
    | DropTiming
)
TimingReply = TimerMeasured | CopiesTimed | Timed | TimedOutput | TimedInputs | KernelsWitnessed | Repeated
