"""Times one case: fresh secret inputs, alternating sides, outputs of timed calls checked afterwards."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from mini_kv.benchmark.ceilings import floor_bound_us, peak_bytes_per_us, per_time, percent
from mini_kv.core import protocol as p
from mini_kv.core.canonical import canonical_sha256
from mini_kv.core.card import Case, DeviceKind, TaskCard
from mini_kv.core.errors import InternalError
from mini_kv.core.quality import judge_quality
from mini_kv.core.results import BenchmarkCase, Finding, GpuFacts, Series, Status
from mini_kv.core.statistics import median, summarize
from mini_kv.core.tensors import ITEM_SIZE_BYTES, Argument, TensorSpec, element_count
from mini_kv.system.crew import CandidateSeat, OracleSeat
from mini_kv.system.workers import Answer, Lost

ROTATING_SETS = 3
MAX_TRIES = 3
REWARM_CALLS = 2
# No further try of a case begins after this: a busy machine stays busy, and a verdict is waited for.
RETRY_BUDGET_S = 3.0
CANDIDATE, REFERENCE = "candidate", "reference"
MAX_CALLS_PER_SAMPLE = 10_000_000
# A tenth of a nanosecond: nothing is called in less than a cycle, and ratios stay finite.
MIN_CALL_US = 1e-4
REPLY_SLACK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TimedSubject:
    """Everything a timed case needs."""

    card: TaskCard
    device: DeviceKind
    oracle: OracleSeat
    seat: CandidateSeat
    secret_seeds: dict[str, str]
    gpu: GpuFacts | None
    timeout_s: float
    chooser: random.Random
    telemetry: Callable[[], Sequence[Finding]]


class CaseLost(Exception):
    """The candidate's side of a timed case ended; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(kw_only=True)
class _Taken:
    samples_us: list[tuple[float, ...]] = field(default_factory=list)
    exposed: int = 0
    calls_per_sample: int = 0
    floors_us: list[float] = field(default_factory=list)
    ticks_us: list[float] = field(default_factory=list)

    def add(self, timed: p.Timed) -> None:
        self.samples_us.append(timed.samples_us)
        self.exposed += len(timed.launch_exposed)
        self.calls_per_sample = timed.calls_per_sample
        self.floors_us.append(timed.floor_us)
        self.ticks_us.append(timed.tick_us)

    def series(self) -> Series:
        """Return the statistics; raises ``ValueError`` for samples that are not times."""
        positive = [tick for tick in self.ticks_us if tick > 0.0]
        return summarize(
            self.samples_us,
            calls_per_sample=self.calls_per_sample,
            launch_exposed=self.exposed,
            floor_us=median(self.floors_us),
            tick_us=min(positive, default=1e-3),
        )


@dataclass(frozen=True, kw_only=True)
class _Sets:
    made: tuple[p.CaseMade, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Caught:
    """The output of one timed call, copied out, with the argument set it must belong to."""

    argument_set: int
    outputs: p.TimedOutput
    payloads: list[bytearray]


def timed_seed(secret_seed: str, position: int) -> str:
    """Return the seed of one rotating argument set: derived from the attempt's archived secret."""
    return canonical_sha256(["timed", secret_seed, position])[:16]


def time_case(subject: TimedSubject, case: Case, timer: p.TimerMeasured) -> BenchmarkCase:
    """Take the plan's samples of both sides, up to three times while the quality gate is missed."""
    started = time.monotonic()
    try:
        sets, payloads = _make_sets(subject, case)
    except CaseLost as lost:
        return _record(
            subject, case, _Sets(made=(), keys=()), timer, None, None, (), (lost.finding,), 0, 0, ()
        )
    order: list[str] = []
    findings: tuple[Finding, ...] = ()
    candidate = reference = None
    checked = tries = 0
    wrong: tuple[Finding, ...] = ()
    try:
        _hand_over(subject, case, sets, payloads)
        while tries < MAX_TRIES:
            tries += 1
            taken, caught = _take_repeats(subject, case, sets, order)
            candidate, reference = _series(taken)
            findings = judge_quality(candidate, reference, subject.device)
            wrong = _check_outputs(subject, sets, caught)
            checked += len(caught)
            spent_s = time.monotonic() - started
            if wrong or not findings or spent_s > RETRY_BUDGET_S:
                break
    except CaseLost as lost:
        wrong = (lost.finding,)
    # Not after Ctrl-C or a lost oracle: nobody would answer, or only when the running batch has ended.
    _release(subject, case, sets)
    return _record(subject, case, sets, timer, candidate, reference, findings, wrong, checked, tries, order)


def _make_sets(subject: TimedSubject, case: Case) -> tuple[_Sets, list[bytearray]]:
    made: list[p.CaseMade] = []
    keys: list[str] = []
    payloads: list[bytearray] = []
    for position in range(ROTATING_SETS):
        key = f"timed/{case.id}/{position}"
        seed = timed_seed(subject.secret_seeds[case.id], position)
        answer = subject.oracle.ask(
            p.MakeCase(key=key, params=case.params, seed=seed, expect_values=True), timeout_s=300.0
        )
        if not isinstance(answer.reply, p.CaseMade):
            text = answer.reply.message if isinstance(answer.reply, p.Failed) else "an unexpected answer"
            message = f"the card's input factory or reference raised: {text[:500]}"
            raise CaseLost(Finding(code="CASE_NOT_MAKEABLE", message=message))
        made.append(answer.reply)
        keys.append(key)
        payloads += answer.payloads
    return _Sets(made=tuple(made), keys=tuple(keys)), payloads


def _hand_over(subject: TimedSubject, case: Case, sets: _Sets, payloads: Sequence[bytearray]) -> None:
    arguments: list[tuple[Argument, ...]] = []
    first = 0
    for made in sets.made:
        arguments.append(_shifted(made.arguments, first))
        blobs = [argument.blob for argument in made.arguments if isinstance(argument, TensorSpec)]
        first += max(blobs, default=-1) + 1
    subject.oracle.ask(p.PrepareReferenceTiming(case_id=case.id, keys=sets.keys), timeout_s=300.0)
    outcome = subject.seat.ask(
        p.PrepareTiming(case_id=case.id, argument_sets=tuple(arguments)),
        payloads,
        timeout_s=300.0,
        max_reply_bytes=0,
    )
    _expect(outcome, p.Done)


def _shifted(arguments: Sequence[Argument], by: int) -> tuple[Argument, ...]:
    return tuple(
        msgspec.structs.replace(argument, blob=argument.blob + by)
        if isinstance(argument, TensorSpec)
        else argument
        for argument in arguments
    )


def _take_repeats(
    subject: TimedSubject, case: Case, sets: _Sets, order: list[str]
) -> tuple[dict[str, _Taken], list[_Caught]]:
    taken = {CANDIDATE: _Taken(), REFERENCE: _Taken()}
    caught: list[_Caught] = []
    for repeat in range(subject.card.benchmark.repeats):
        sides = (REFERENCE, CANDIDATE) if repeat % 2 == 0 else (CANDIDATE, REFERENCE)
        for side in sides:
            timed = _batch(subject, case, side, taken[side])
            taken[side].add(timed)
            order.append(side)
            if side == CANDIDATE:
                caught.append(_catch(subject, case, timed, len(sets.keys), _output_bytes(sets.made[0])))
    return taken, caught


def _batch(subject: TimedSubject, case: Case, side: str, so_far: _Taken) -> p.Timed:
    plan = subject.card.benchmark
    calls_per_sample = so_far.calls_per_sample
    # A GPU has run the other process since this side's last batch; a CPU has only to be woken.
    again = subject.device == "cpu" and bool(so_far.samples_us)
    request = p.TimeBatch(
        case_id=case.id,
        warmup=min(plan.warmup, REWARM_CALLS) if again else plan.warmup,
        iterations=plan.iterations,
        calls_per_sample=calls_per_sample,
        cache=plan.cache,
    )
    timeout_s = subject.timeout_s * 10.0
    if side == REFERENCE:
        reply = subject.oracle.ask(request, timeout_s=timeout_s).reply
        if isinstance(reply, p.Timed):
            return reply
        text = reply.message if isinstance(reply, p.Failed) else type(reply).__name__
        raise InternalError("REFERENCE_NOT_TIMED", f"the reference of '{case.id}' cannot be timed: {text}")
    timed = _expect(subject.seat.ask(request, timeout_s=timeout_s, max_reply_bytes=0), p.Timed)
    fault = transcript_fault(timed, plan.iterations, calls_per_sample)
    if fault is not None:
        raise CaseLost(fault)
    return timed


def transcript_fault(timed: p.Timed, iterations: int, calls_per_sample: int) -> Finding | None:
    """Return what a batch's answer lacks against the plan; ``calls_per_sample`` is 0 where it was free.

    Whatever the worker says here comes back in later requests, so nothing out of range may pass.
    """
    if len(timed.samples_us) != iterations or not timed.kept:
        return Finding(
            code="SHORT_TRANSCRIPT",
            message=f"the worker gave {len(timed.samples_us)} samples and kept {len(timed.kept)} outputs; "
            f"the plan has {iterations} samples",
        )
    if any(not 0 <= sample < iterations for sample in timed.kept):
        return Finding(
            code="SHORT_TRANSCRIPT", message="the worker names outputs of samples that the plan does not have"
        )
    least, most = (calls_per_sample,) * 2 if calls_per_sample else (1, MAX_CALLS_PER_SAMPLE)
    if not least <= timed.calls_per_sample <= most:
        return Finding(
            code="SHORT_TRANSCRIPT",
            message=f"the worker made {timed.calls_per_sample} calls a sample; allowed: {least} to {most}",
        )
    return None


def _catch(subject: TimedSubject, case: Case, timed: p.Timed, sets: int, output_bytes: int) -> _Caught:
    # Which call is looked at is drawn only after all of them have been made.
    sample = subject.chooser.choice(timed.kept)
    outcome = subject.seat.ask(
        p.FetchTimedOutput(case_id=case.id, sample=sample),
        timeout_s=subject.timeout_s,
        max_reply_bytes=2 * output_bytes + REPLY_SLACK_BYTES,
    )
    reply = _expect(outcome, p.TimedOutput)
    assert isinstance(outcome, Answer)
    last_call = (sample + 1) * timed.calls_per_sample - 1
    return _Caught(argument_set=last_call % sets, outputs=reply, payloads=outcome.payloads)


_R = TypeVar("_R", p.Done, p.Timed, p.TimedOutput)


def _expect(outcome: Answer | Lost, kind: type[_R]) -> _R:
    if isinstance(outcome, Lost):
        evidence = (outcome.output[-4000:],) if outcome.output else ()
        raise CaseLost(Finding(code=outcome.code, message=outcome.message, evidence=evidence))
    if isinstance(outcome.reply, kind):
        return outcome.reply
    text = outcome.reply.message if isinstance(outcome.reply, p.Failed) else type(outcome.reply).__name__
    raise CaseLost(Finding(code="NOT_TIMED", message=f"the candidate could not be timed: {text[:500]}"))


def _series(taken: dict[str, _Taken]) -> tuple[Series, Series]:
    try:
        candidate = taken[CANDIDATE].series()
        if not candidate.p50_us >= MIN_CALL_US:
            raise ValueError(f"a P50 of {candidate.p50_us:g} us is shorter than one clock cycle")
    except ValueError as error:
        raise CaseLost(
            Finding(code="NOT_A_TIME", message=f"the candidate's samples are not times: {error}")
        ) from error
    return candidate, taken[REFERENCE].series()


def _check_outputs(subject: TimedSubject, sets: _Sets, caught: Sequence[_Caught]) -> tuple[Finding, ...]:
    for item in caught:
        expected = sets.made[item.argument_set].expected
        form = [(spec.shape, spec.dtype) for spec in item.outputs.outputs]
        if form != [(want.shape, want.dtype) for want in expected]:
            return (
                Finding(code="TIMED_OUTPUT_WRONG", message="a timed call returned another shape or dtype"),
            )
        reply = subject.oracle.ask(
            p.Compare(key=sets.keys[item.argument_set], outputs=item.outputs.outputs),
            item.payloads,
            timeout_s=300.0,
        ).reply
        if not isinstance(reply, p.Compared):
            text = reply.message if isinstance(reply, p.Failed) else "an unexpected answer"
            return (
                Finding(code="TIMED_OUTPUT_WRONG", message=f"a timed call's output is malformed: {text}"),
            )
        if reply.numerics.mismatch_count:
            return (
                Finding(
                    code="TIMED_OUTPUT_WRONG",
                    message=f"the output of a timed call is wrong in {reply.numerics.mismatch_count} of "
                    f"{reply.numerics.element_count} elements, although the same case passed untimed",
                ),
            )
    return ()


def _release(subject: TimedSubject, case: Case, sets: _Sets) -> None:
    subject.oracle.ask(p.DropTiming(case_id=case.id), timeout_s=60.0)
    for key in sets.keys:
        subject.oracle.ask(p.Forget(key=key), timeout_s=60.0)
    if subject.seat.occupied:  # a lost worker holds nothing, and a fresh one costs seconds
        subject.seat.ask(p.DropTiming(case_id=case.id), timeout_s=60.0, max_reply_bytes=0)


def _record(
    subject: TimedSubject,
    case: Case,
    sets: _Sets,
    timer: p.TimerMeasured,
    candidate: Series | None,
    reference: Series | None,
    quality: tuple[Finding, ...],
    wrong: tuple[Finding, ...],
    checked: int,
    tries: int,
    order: Sequence[str],
) -> BenchmarkCase:
    made = sets.made[0] if sets.made else None
    time_us = _device_time_us(candidate)
    rate = peak_bytes_per_us(subject.gpu) if subject.gpu is not None else None
    bytes_moved, flops = (made.bytes_moved, made.flops) if made else (None, None)
    bound = floor_bound_us(bytes_moved, _output_bytes(made) if made else 0, timer.l2_bytes, rate)
    if time_us is not None and bound is not None and subject.card.benchmark.cache == "cold":
        if not time_us >= bound:
            wrong = (*wrong, _impossible(time_us, bound))
    gb_per_s = per_time(bytes_moved, time_us) if time_us is not None else None
    both = candidate is not None and reference is not None
    return BenchmarkCase(
        case_id=case.id,
        status=Status.FAIL if wrong or not both else Status.PASS,
        stable=both and not wrong and not quality,
        findings=(*wrong, *quality),
        params=case.params,
        candidate=candidate,
        reference=reference,
        speedup=reference.p50_us / candidate.p50_us if candidate and reference else None,
        bytes_moved=bytes_moved,
        flops=flops,
        gb_per_s=gb_per_s,
        gflop_per_s=per_time(flops, time_us) if time_us is not None else None,
        percent_of_copy_bandwidth=percent(gb_per_s, timer.copy_gb_per_s),
        floor_bound_us=bound,
        checked_outputs=checked,
        tries=tries,
        batch_order=tuple(order),
    )


def _device_time_us(series: Series | None) -> float | None:
    if series is None:
        return None
    return series.net_p50_us if series.net_p50_us > 0.0 else series.p50_us


def _output_bytes(made: p.CaseMade) -> int:
    return sum(element_count(want.shape) * ITEM_SIZE_BYTES[want.dtype] for want in made.expected)


def _impossible(time_us: float, bound_us: float) -> Finding:
    return Finding(
        code="IMPOSSIBLE_TIME",
        message=f"a cold call took {time_us:.3f} us net; the memory bus alone needs {bound_us:.3f} us "
        "for the bytes that must cross it",
    )
