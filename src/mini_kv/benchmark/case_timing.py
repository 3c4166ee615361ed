"""One timed case from samples to record: tries, quality, witnesses, ceilings."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mini_kv.benchmark.ceilings import floor_bound_us, peak_bytes_per_us, per_time, percent
from mini_kv.benchmark.inputs_unchanged import check_inputs
from mini_kv.benchmark.samples import (
    CANDIDATE,
    MIN_CALL_US,
    REFERENCE,
    CaseLost,
    Sets,
    Taken,
    TimedSubject,
    check_outputs,
    hand_over,
    made_output_bytes,
    make_sets,
    release,
    take_repeats,
)
from mini_kv.benchmark.unseen_inputs import remembers
from mini_kv.benchmark.witnesses import (
    Kernels,
    bound_claim,
    disagreement,
    judge_claim,
    witness_kernels,
)
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import BenchmarkCase, KernelWitness, Series, TimingTrust
from mini_kv.core.records.card import Case
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.axes import axis_values
from mini_kv.core.rules.policies import judge_timed_kernels
from mini_kv.core.rules.quality import judge_quality

MAX_TRIES = 3
# No further try of a case begins after this: a busy machine stays busy, and a verdict is waited for.
RETRY_BUDGET_S = 3.0

__all__ = [
    "MAX_TRIES",
    "RETRY_BUDGET_S",
    "TimedCase",
    "TimedSubject",
    "both_series",
    "finish_case",
    "judge_case",
    "take_case",
]


@dataclass(kw_only=True)
class TimedCase:
    """What one case has left so far, between its samples and its record."""

    case: Case
    sets: Sets
    taken: dict[str, Taken] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    wrong: tuple[Finding, ...] = ()
    checked: int = 0
    tries: int = 0


def take_case(subject: TimedSubject, case: Case) -> TimedCase:
    """Take the plan's samples of both sides, up to three times while the quality gate is missed."""
    started = time.monotonic()
    timed = TimedCase(case=case, sets=Sets(made=(), keys=()))
    try:
        timed.sets, payloads = make_sets(subject, case)
        hand_over(subject, case, timed.sets, payloads)
        while timed.tries < MAX_TRIES:
            timed.tries += 1
            taken, caught = take_repeats(subject, case, timed.sets, timed.order)
            candidate, reference = both_series(subject, taken, Kernels())
            timed.taken = taken
            timed.wrong = check_outputs(subject, timed.sets, caught)
            timed.wrong += check_inputs(subject, case, timed.sets)
            timed.checked += len(caught)
            findings = judge_quality(candidate, reference, subject.device)
            if timed.wrong or not findings or time.monotonic() - started > RETRY_BUDGET_S:
                break
    except CaseLost as lost:
        timed.wrong = (lost.finding,)
    return timed


def both_series(subject: TimedSubject, taken: dict[str, Taken], kernels: Kernels) -> tuple[Series, Series]:
    """Return the statistics of candidate and reference; raises :class:`CaseLost` for what is no time."""

    def marker(witness: KernelWitness | None) -> float:
        return witness.marker_us if witness is not None else 0.0

    try:
        candidate = taken[CANDIDATE].series(subject.device, marker(kernels.candidate))
        if not candidate.p50_us >= MIN_CALL_US:
            raise ValueError(f"a P50 of {candidate.p50_us:g} us is shorter than one clock cycle")
    except ValueError as error:
        raise CaseLost(
            Finding(code=Code.NOT_A_TIME, message=f"the candidate's samples are not times: {error}")
        ) from error
    return candidate, taken[REFERENCE].series(subject.device, marker(kernels.reference))


def finish_case(subject: TimedSubject, timed: TimedCase, timer: p.TimerMeasured) -> BenchmarkCase:
    """Hear the other witnesses (after all samples of all cases), free the case, write its record."""
    record = judge_case(subject, timed, timer)
    # Not after Ctrl-C or a lost oracle: nobody would answer, or only when the running batch has ended.
    release(subject, timed.case, timed.sets)
    return record


def judge_case(subject: TimedSubject, timed: TimedCase, timer: p.TimerMeasured) -> BenchmarkCase:
    """Hear the other witnesses and write the record; the case stays prepared on both sides."""
    try:
        if timed.wrong or not timed.taken:
            return _record(subject, timed, timer, _Heard())
        return _witnessed(subject, timed, timer)
    except CaseLost as lost:
        timed.wrong = (lost.finding,)
        return _record(subject, timed, timer, _Heard())


def _witnessed(subject: TimedSubject, timed: TimedCase, timer: p.TimerMeasured) -> BenchmarkCase:
    kernels = witness_kernels(subject, timed.case)
    candidate, reference = both_series(subject, timed.taken, kernels)
    bound = bound_claim(subject, timed.case, candidate, timed.sets)
    timed.wrong += bound.wrong
    findings = list(judge_quality(candidate, reference, subject.device))
    if kernels.finding is not None:
        findings.append(kernels.finding)
    timed.wrong += judge_timed_kernels(kernels.candidate, subject.card.contract)
    if kernels.candidate is not None:
        timed.wrong += disagreement(candidate, kernels.candidate)
    remembered = remembers(subject, timed.case, candidate)
    timed.wrong += remembered.wrong
    findings += remembered.doubts
    trust, doubts = judge_claim(
        candidate,
        bound.outside_us,
        subject.device,
        checked=timed.checked,
        wrong=timed.wrong,
        around_us=bound.around_us,
    )
    timed.wrong += tuple(doubt for doubt in doubts if doubt.code == Code.CLOCK_CONTRADICTS)
    findings += [doubt for doubt in doubts if doubt.code != Code.CLOCK_CONTRADICTS]
    heard = _Heard(
        candidate=candidate,
        reference=reference,
        kernels=kernels,
        quality=tuple(findings),
        outside_us=bound.outside_us,
        trust=trust,
    )
    return _record(subject, timed, timer, heard)


@dataclass(frozen=True, kw_only=True)
class _Heard:
    """What samples and witnesses say of a case; of one that was lost, nothing. Microseconds."""

    candidate: Series | None = None
    reference: Series | None = None
    kernels: Kernels = field(default_factory=Kernels)
    quality: tuple[Finding, ...] = ()
    outside_us: float | None = None
    trust: TimingTrust = "unverified"


def _record(subject: TimedSubject, timed: TimedCase, timer: p.TimerMeasured, heard: _Heard) -> BenchmarkCase:
    candidate, reference, kernels = heard.candidate, heard.reference, heard.kernels
    made = timed.sets.made[0] if timed.sets.made else None
    bytes_moved, flops = (made.bytes_moved, made.flops) if made else (None, None)
    time_us = _device_time_us(candidate)
    bound = _bound_us(subject, made, timer) if made else None
    wrong = timed.wrong
    if time_us is not None and bound is not None and not time_us >= bound:
        wrong = (*wrong, _impossible(time_us, bound))
    gb_per_s = per_time(bytes_moved, time_us) if time_us is not None else None
    both = candidate is not None and reference is not None
    return BenchmarkCase(
        case_id=timed.case.id,
        status=Status.FAIL if wrong or not both else Status.PASS,
        stable=both and not wrong and not heard.quality,
        findings=(*wrong, *heard.quality),
        params=timed.case.params,
        candidate=candidate,
        reference=reference,
        speedup=reference.p50_us / candidate.p50_us if candidate and reference else None,
        bytes_moved=bytes_moved,
        flops=flops,
        gb_per_s=gb_per_s,
        gflop_per_s=per_time(flops, time_us) if time_us is not None else None,
        percent_of_copy_bandwidth=percent(gb_per_s, timer.copy_gb_per_s),
        floor_bound_us=bound,
        candidate_kernel=kernels.candidate,
        reference_kernel=kernels.reference,
        kernel_speedup=_kernel_speedup(kernels),
        outside_us=heard.outside_us,
        timing_trust="unverified" if wrong else heard.trust,
        checked_outputs=timed.checked,
        tries=timed.tries,
        batch_order=tuple(timed.order),
        axis_values=axis_values(subject.card, timed.case.id),
    )


def _bound_us(subject: TimedSubject, made: p.CaseMade, timer: p.TimerMeasured) -> float | None:
    if subject.card.benchmark.cache != "cold" or subject.gpu is None:
        return None
    return floor_bound_us(
        made.bytes_moved, made_output_bytes(made), timer.l2_bytes, peak_bytes_per_us(subject.gpu)
    )


def _kernel_speedup(kernels: Kernels) -> float | None:
    if kernels.candidate is None or kernels.reference is None or not kernels.candidate.kernel_us > 0.0:
        return None
    return kernels.reference.kernel_us / kernels.candidate.kernel_us


def _device_time_us(series: Series | None) -> float | None:
    if series is None:
        return None
    return series.net_p50_us if series.net_p50_us > 0.0 else series.p50_us


def _impossible(time_us: float, bound_us: float) -> Finding:
    return Finding(
        code=Code.IMPOSSIBLE_TIME,
        message=f"a cold call took {time_us:.3f} us net; the memory bus alone needs {bound_us:.3f} us "
        "for the bytes that must cross it",
    )
