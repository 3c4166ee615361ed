"""Takes the plan's samples of one case: prepared inputs, alternating sides, outputs caught for later."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.canonical import canonical_sha256, sha256_bytes
from mini_kv.core.codes import Code
from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.records.benchmark import Series
from mini_kv.core.records.card import Case, DeviceKind
from mini_kv.core.records.environment import GpuFacts
from mini_kv.core.records.pairs import PairName
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.output_form import grade_form
from mini_kv.core.rules.statistics import median, summarize
from mini_kv.core.tensors import Argument, TensorSpec, element_count
from mini_kv.core.time_limits import BATCH_TIMEOUT_FACTOR, DROP_TIMING_TIMEOUT_S, TIMED_CASE_TIMEOUT_S
from mini_kv.system.oracle_client import not_makeable
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.subject import StageSubject
from mini_kv.system.workers import Answer, Lost

# These, what a batch is asked for and the order of the sides are part of the timer plan: see TIMER_PLAN.
ROTATING_SETS = 3
# A set beyond this is timed alone. Rotation keeps data from being reused out of a cache or remembered: no
# cache holds a set this large, a remembered result would beat the memory bus and be refused as impossible,
# and three sets would keep gigabytes waiting in four places for every case of a card.
LARGE_SET_BYTES = 256 << 20
REWARM_CALLS = 2
MAX_CALLS_PER_SAMPLE = 10_000_000
# A tenth of a nanosecond: nothing is called in less than a cycle, and ratios stay finite.
MIN_CALL_US = 1e-4
REPLY_SLACK_BYTES = 1 << 20
CANDIDATE, REFERENCE = "candidate", "reference"
# The step of a clock whose every reading was equal: CUDA's event grid on the GPUs of today.
FALLBACK_TICK_US = {"cuda": 0.032, "cpu": 0.001}


@dataclass(frozen=True, kw_only=True)
class TimedSubject(StageSubject):
    """Everything a timed case needs. ``waiting``: seats of candidates that wait meanwhile."""

    gpu: GpuFacts | None
    chooser: random.Random
    waiting: tuple[CandidateSeat, ...] = ()


@contextmanager
def held(subject: TimedSubject, seats: Sequence[CandidateSeat]) -> Iterator[None]:
    """Keep the candidates of these seats from running while another process is timed in the block.

    On the CPU, threads that work on when nobody calls them would take cores and memory from whoever is timed
    then: the reference that makes the speedup, or the other candidate.
    """
    with ExitStack() as stack:
        for seat in seats if subject.device == "cpu" else ():
            stack.enter_context(seat.held())
        yield


class CaseLost(Exception):
    """The candidate's side of a timed case ended; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class SideLost(Exception):
    """One of two candidates gave no times for a case; carries which, and the finding."""

    def __init__(self, name: PairName, finding: Finding) -> None:
        super().__init__(finding.message)
        self.name = name
        self.finding = finding


@contextmanager
def blamed_on(name: PairName) -> Iterator[None]:
    """Turn a :class:`CaseLost` of the block into that side's :class:`SideLost`."""
    try:
        yield
    except CaseLost as lost:
        raise SideLost(name, lost.finding) from lost


def apart(sides: Mapping[PairName, TimedSubject]) -> dict[PairName, TimedSubject]:
    """Return both sides, each with the other's candidate to wait while it is timed."""
    return {
        name: replace(subject, waiting=tuple(other.seat for other in sides.values() if other is not subject))
        for name, subject in sides.items()
    }


class SamplePlan(Protocol):
    """What a batch needs of a plan: a card's own, or that of a pair of processes."""

    @property
    def warmup(self) -> int:
        """Untimed calls before the first batch."""

    @property
    def iterations(self) -> int:
        """Samples a batch."""

    @property
    def cache(self) -> Literal["cold", "hot"]:
        """Whether the cache is cleared before each sample."""


@dataclass(kw_only=True)
class Taken:
    """Batches of one side so far."""

    samples_us: list[tuple[float, ...]] = field(default_factory=list)
    exposed: int = 0
    calls_per_sample: int = 0
    floors_us: list[float] = field(default_factory=list)
    ticks_us: list[float] = field(default_factory=list)

    def add(self, timed: p.Timed) -> None:
        """Append one batch."""
        self.samples_us.append(timed.samples_us)
        self.exposed += len(timed.launch_exposed)
        self.calls_per_sample = timed.calls_per_sample
        self.floors_us.append(timed.floor_us)
        self.ticks_us.append(timed.tick_us)

    def series(self, device: DeviceKind, empty_kernel_us: float) -> Series:
        """Return the statistics; raises ``ValueError`` for samples that are not times.

        ``empty_kernel_us`` is the part of the empty pair that is kernel, not timer.
        """
        positive = [tick for tick in self.ticks_us if tick > 0.0]
        return summarize(
            self.samples_us,
            calls_per_sample=self.calls_per_sample,
            launch_exposed=self.exposed,
            floor_us=max(median(self.floors_us) - empty_kernel_us, 0.0),
            tick_us=min(positive, default=FALLBACK_TICK_US[device]),
        )


@dataclass(frozen=True, kw_only=True)
class Sets:
    """The rotating argument sets of one case, as the oracle made them.

    ``storages`` holds the size and the SHA-256 of every storage of every set.
    """

    made: tuple[p.CaseMade, ...]
    keys: tuple[str, ...]
    storages: tuple[tuple[tuple[int, str], ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Caught:
    """The output of one timed call, copied out, with the argument set it must belong to."""

    argument_set: int
    outputs: p.TimedOutput
    payloads: list[bytearray]


def timed_seed(secret_seed: str, position: int) -> str:
    """Return the seed of one rotating argument set: derived from the attempt's archived secret."""
    return canonical_sha256(["timed", secret_seed, position])[:16]


def make_sets(subject: TimedSubject, case: Case) -> tuple[Sets, list[bytearray]]:
    """Have the oracle make the sets; raises :class:`CaseLost` where the card is at fault.

    :data:`ROTATING_SETS` of them, or one where a set has more than :data:`LARGE_SET_BYTES`.
    """
    made: list[p.CaseMade] = []
    keys: list[str] = []
    payloads: list[bytearray] = []
    storages: list[tuple[tuple[int, str], ...]] = []
    for position in range(ROTATING_SETS):
        key = f"timed/{case.id}/{position}"
        seed = timed_seed(subject.secret_seeds[case.id], position)
        one = subject.oracle.make_case(key, case, seed, timeout_s=TIMED_CASE_TIMEOUT_S, lenient=True)
        if isinstance(one, p.Failed):
            raise CaseLost(not_makeable(one, named=False))
        made.append(one.reply)
        keys.append(key)
        payloads += one.payloads
        storages.append(tuple((len(raw), sha256_bytes(raw)) for raw in one.payloads))
        if sum(map(len, one.payloads)) > LARGE_SET_BYTES:
            break
    return Sets(made=tuple(made), keys=tuple(keys), storages=tuple(storages)), payloads


def hand_over(subject: TimedSubject, case: Case, sets: Sets, payloads: Sequence[bytearray]) -> None:
    """Give both sides the sets; raises :class:`CaseLost` with what became of the candidate's."""
    arguments: list[tuple[Argument, ...]] = []
    first = 0
    for made in sets.made:
        arguments.append(shifted(made.arguments, first))
        blobs = [argument.blob for argument in made.arguments if isinstance(argument, TensorSpec)]
        first += max(blobs, default=-1) + 1
    subject.oracle.prepare_timing(case.id, sets.keys, timeout_s=TIMED_CASE_TIMEOUT_S)
    outcome = subject.seat.ask(
        p.PrepareTiming(case_id=case.id, argument_sets=tuple(arguments)),
        payloads,
        timeout_s=TIMED_CASE_TIMEOUT_S,
        max_reply_bytes=0,
    )
    expect_reply(outcome, p.Done)


def release(subject: TimedSubject, case: Case, sets: Sets) -> None:
    """Free the sets on both sides."""
    subject.oracle.drop_timing(case.id, timeout_s=DROP_TIMING_TIMEOUT_S)
    subject.oracle.forget(*sets.keys, timeout_s=DROP_TIMING_TIMEOUT_S)
    subject.seat.drop_timing(case.id, timeout_s=DROP_TIMING_TIMEOUT_S)


def shifted(arguments: Sequence[Argument], by: int) -> tuple[Argument, ...]:
    """Return arguments whose payloads come ``by`` places later."""
    return tuple(
        msgspec.structs.replace(argument, blob=argument.blob + by)
        if isinstance(argument, TensorSpec)
        else argument
        for argument in arguments
    )


def take_repeats(
    subject: TimedSubject, case: Case, sets: Sets, order: list[str]
) -> tuple[dict[str, Taken], list[Caught]]:
    """Take all repeats, the order of the sides flipped between them; raises :class:`CaseLost`."""
    taken = {CANDIDATE: Taken(), REFERENCE: Taken()}
    caught: list[Caught] = []
    for repeat in range(subject.card.benchmark.repeats):
        sides = (REFERENCE, CANDIDATE) if repeat % 2 == 0 else (CANDIDATE, REFERENCE)
        for side in sides:
            kept_at = subject.chooser.random()
            timed = take_batch(subject, case, side, taken[side], kept_at=kept_at)
            taken[side].add(timed)
            order.append(side)
            if side == CANDIDATE:
                caught.append(catch_output(subject, case.id, timed, sets, kept_at=kept_at))
    return taken, caught


def take_batch(
    subject: TimedSubject, case: Case, side: str, so_far: Taken, *, kept_at: float = 1.0
) -> p.Timed:
    """Take one batch of the plan's samples of the candidate or the reference; raises :class:`CaseLost`."""
    request = batch_request(subject, case.id, subject.card.benchmark, so_far, kept_at=kept_at)
    timeout_s = BATCH_TIMEOUT_FACTOR * subject.timeout_s
    if side == CANDIDATE:
        return time_candidate(subject, request, timeout_s)
    with held(subject, (subject.seat, *subject.waiting)):
        return subject.oracle.time_reference(request, timeout_s=timeout_s)


def batch_request(
    subject: TimedSubject, case_id: str, plan: SamplePlan, so_far: Taken, *, kept_at: float = 1.0
) -> p.TimeBatch:
    """Return the request for a side's next batch.

    ``kept_at`` draws the call of each sample whose output is kept (0 the first, 1 the last).
    """
    # A GPU has run the other process since this side's last batch; a CPU has only to be woken.
    again = subject.device == "cpu" and bool(so_far.samples_us)
    return p.TimeBatch(
        case_id=case_id,
        warmup=min(plan.warmup, REWARM_CALLS) if again else plan.warmup,
        iterations=plan.iterations,
        calls_per_sample=so_far.calls_per_sample,
        cache=plan.cache,
        kept_at=kept_at,
    )


def time_candidate(subject: TimedSubject, request: p.TimeBatch, timeout_s: float) -> p.Timed:
    """Have the candidate's worker take a batch and hold its answer to it; raises :class:`CaseLost`."""
    with held(subject, subject.waiting):
        outcome = subject.seat.ask(request, timeout_s=timeout_s, max_reply_bytes=0)
    timed = expect_reply(outcome, p.Timed)
    fault = transcript_fault(timed, request.iterations, request.calls_per_sample)
    if fault is not None:
        raise CaseLost(Finding(code=Code.SHORT_TRANSCRIPT, message=fault))
    return timed


def transcript_fault(timed: p.Timed, iterations: int, calls_per_sample: int) -> str | None:
    """Say how a batch's answer departs from the plan; ``calls_per_sample`` is 0 where it was free.

    Whatever the worker says here comes back in later requests, so nothing out of range may pass.
    """
    if len(timed.samples_us) != iterations or not timed.kept:
        return (
            f"the worker gave {len(timed.samples_us)} samples and kept {len(timed.kept)} outputs; "
            f"the plan has {iterations} samples"
        )
    if any(not 0 <= sample < iterations for sample in timed.kept):
        return "the worker names outputs of samples that the plan does not have"
    least, most = (calls_per_sample,) * 2 if calls_per_sample else (1, MAX_CALLS_PER_SAMPLE)
    if not least <= timed.calls_per_sample <= most:
        return f"the worker made {timed.calls_per_sample} calls a sample; allowed: {least} to {most}"
    return None


def catch_output(
    subject: TimedSubject, case_id: str, timed: p.Timed, sets: Sets, *, kept_at: float = 1.0
) -> Caught:
    """Copy out the result of one of the candidate's calls that were just timed; raises :class:`CaseLost`."""
    # Which call is looked at is drawn only after all of them have been made.
    sample = subject.chooser.choice(timed.kept)
    calls = timed.calls_per_sample
    kept = sample * calls + p.kept_call(kept_at, calls)
    request = p.FetchTimedOutput(case_id=case_id, sample=sample)
    return fetch_output(subject, request, sets, kept % len(sets.keys))


def fetch_output(
    subject: TimedSubject, request: p.FetchTimedOutput | p.FetchRepeated, sets: Sets, argument_set: int
) -> Caught:
    """Copy out one result, which belongs to that argument set by the plan; raises :class:`CaseLost`."""
    outcome = subject.seat.ask(
        request,
        timeout_s=subject.timeout_s,
        max_reply_bytes=2 * made_output_bytes(sets.made[0]) + REPLY_SLACK_BYTES,
    )
    reply = expect_reply(outcome, p.TimedOutput)
    assert isinstance(outcome, Answer)
    return Caught(argument_set=argument_set, outputs=reply, payloads=outcome.payloads)


_R = TypeVar("_R", p.Timed, p.TimedOutput, p.TimedInputs, p.KernelsWitnessed, p.Repeated, p.Done)


def expect_reply(outcome: Answer | Lost, kind: type[_R]) -> _R:
    """Return the reply of that kind; raises :class:`CaseLost` with the reason for anything else."""
    if isinstance(outcome, Lost):
        evidence = (outcome.output[-4000:],) if outcome.output else ()
        raise CaseLost(Finding(code=outcome.code, message=outcome.message, evidence=evidence))
    if isinstance(outcome.reply, kind):
        return outcome.reply
    text = outcome.reply.message if isinstance(outcome.reply, p.Failed) else type(outcome.reply).__name__
    raise CaseLost(Finding(code=Code.NOT_TIMED, message=f"the candidate could not be timed: {text[:500]}"))


def check_outputs(subject: TimedSubject, sets: Sets, caught: Sequence[Caught]) -> tuple[Finding, ...]:
    """Have the oracle judge the caught outputs; one finding for the first that is wrong."""
    for item in caught:
        expected = sets.made[item.argument_set].expected
        form = grade_form(item.outputs.outputs, expected, subject.card.contract)
        if form:
            return (_wrong(f"the result of a timed call has another form: {form[0].message}"),)
        key = sets.keys[item.argument_set]
        numerics = subject.oracle.compare(
            key, item.outputs.outputs, item.payloads, timeout_s=TIMED_CASE_TIMEOUT_S, lenient=True
        )
        if isinstance(numerics, p.Failed):
            return (_wrong(f"a timed call's output is malformed: {numerics.message}"),)
        if numerics.mismatch_count:
            return (
                _wrong(
                    f"the output of a timed call is wrong in {numerics.mismatch_count} of "
                    f"{numerics.element_count} elements, although the same case passed untimed"
                ),
            )
    return ()


def made_output_bytes(made: p.CaseMade) -> int:
    """Return the bytes of all outputs of a case."""
    return sum(element_count(want.shape) * ITEM_SIZE_BYTES[want.dtype] for want in made.expected)


def _wrong(message: str) -> Finding:
    return Finding(code=Code.TIMED_OUTPUT_WRONG, message=message)
