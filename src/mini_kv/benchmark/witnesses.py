"""What else speaks about a case's time: CUPTI's kernel times, and the judge's own clock from outside."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from mini_kv.benchmark.samples import (
    CaseLost,
    Caught,
    Sets,
    TimedSubject,
    check_outputs,
    expect_reply,
    fetch_output,
    made_output_bytes,
)
from mini_kv.benchmark.second_look import again_us, not_reproduced
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import KernelWitness, Series, TimingTrust
from mini_kv.core.records.card import Case, DeviceKind
from mini_kv.core.records.results import Finding
from mini_kv.core.time_limits import WITNESS_TIMEOUT_S
from mini_kv.system.processes import cpu_time_ns
from mini_kv.system.workers import Answer

WITNESS_CALLS = 30
# Wall time between the two lengths, at least: below it, the clock of a busy host decides the slope.
SLOPE_SPAN_US = {"cuda": 4_000.0, "cpu": 60_000.0}
SLOPE_ROUNDS = 5
MAX_SLOPE_ROUNDS = 25
# A slope that is so many times what would be noise is contradicted by its first rounds already.
BEYOND_DOUBT = {"cuda": 3.0, "cpu": 1.5}
BOUND_TRIES = 3
MAX_REPEATED_CALLS = 2_000
# Results that a run keeps, about, and how many of them are looked at: fewer where they are large.
KEPT_OF_A_RUN = 8
LOOKS_A_RUN = 4
LOOKED_AT_BYTES = 8 << 20
# Replays of a graph add about 1 us between kernels, and the slope carries the host's jitter.
SLACK_US = {"cuda": 2.0, "cpu": 5.0}
SLACK_FRACTION = {"cuda": 0.10, "cpu": 1.00}
# Event pairs and CUPTI agree within this where one kernel is the whole call (docs/method.md).
AGREEMENT_US = 1.0
AGREEMENT_FRACTION = 0.10
OUTSIDE_US = 0.25
# Of the claim as measured before and after a look. A CPU's batch is stretched by chance; a GPU's is not.
AROUND: dict[DeviceKind, Callable[[float, float], float]] = {"cuda": max, "cpu": min}


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """CUPTI's word on both sides, or why there is none."""

    candidate: KernelWitness | None = None
    reference: KernelWitness | None = None
    finding: Finding | None = None


def attach_witnesses(subject: TimedSubject) -> None:
    """Attach CUPTI to both processes at once: the first trace of a process takes most of a second."""
    if subject.device != "cuda":
        return
    case_id = subject.card.benchmark.case_ids[0]
    request = p.WitnessKernels(case_id=case_id, calls=1, cache="hot")
    with ThreadPoolExecutor(max_workers=1) as other_thread:
        reference = other_thread.submit(subject.oracle.ask, request, timeout_s=WITNESS_TIMEOUT_S)
        # What either answers here is not kept: the real traces follow, one process at a time.
        subject.seat.ask(request, timeout_s=WITNESS_TIMEOUT_S)
        reference.result()


def witness_kernels(subject: TimedSubject, case: Case) -> Kernels:
    """Trace both sides; a side that cannot be traced leaves a finding, never a silent gap."""
    if subject.device != "cuda":
        return Kernels()
    request = p.WitnessKernels(case_id=case.id, calls=WITNESS_CALLS, cache=subject.card.benchmark.cache)
    reference = subject.oracle.ask(request, timeout_s=WITNESS_TIMEOUT_S).reply
    if not isinstance(reference, p.KernelsWitnessed):
        return Kernels(
            finding=_missing(reference.message if isinstance(reference, p.Failed) else "no answer")
        )
    try:
        candidate = expect_reply(
            subject.seat.ask(request, timeout_s=WITNESS_TIMEOUT_S, max_reply_bytes=0), p.KernelsWitnessed
        )
    except CaseLost as lost:
        return Kernels(reference=reference.witness, finding=_missing(lost.finding.message))
    return Kernels(candidate=candidate.witness, reference=reference.witness)


def _missing(message: str) -> Finding:
    return Finding(code=Code.WITNESS_MISSING, message=f"CUPTI gave no kernel times: {message[:400]}")


def disagreement(series: Series, witness: KernelWitness) -> tuple[Finding, ...]:
    """Tell of work that no event pair around the call could see: on another stream, outside it. Pure.

    CUPTI's longer time of the same kernels is none: it lengthens kernels of many blocks, by their own stamps
    too (``mini-kv calibrate``). Where a record does not say what lay outside, all that exceeds the pair does.
    """
    if witness.outside_us is None:
        outside_us = witness.kernel_us - series.net_p50_us
        slack_us = max(AGREEMENT_US, AGREEMENT_FRACTION * witness.kernel_us)
    else:
        outside_us, slack_us = witness.outside_us, OUTSIDE_US
    if not (outside_us <= slack_us and math.isfinite(witness.kernel_us)):
        return (
            Finding(
                code=Code.WORK_OUTSIDE_PAIR,
                message=f"the device worked {witness.kernel_us:.2f} us a call (CUPTI), {outside_us:.2f} us "
                f"of it outside what was timed; the pair saw {series.net_p50_us:.2f} us",
            ),
        )
    return ()


def outside_slope_us(
    subject: TimedSubject,
    case: Case,
    p50_us: float,
    net_us: float,
    *,
    sets: Sets | None = None,
    caught: list[Caught] | None = None,
) -> float | None:
    """Return the candidate's time a call by the judge's clock: the slope over two call counts.

    The least that either count ever took: what else the machine does can only lengthen a round. Rounds are
    added, to :data:`MAX_SLOPE_ROUNDS`, while the slope contradicts ``net_us``, the claim, and does not do so
    beyond doubt. On the CPU a round is the lesser of wall time and of the CPU time that the kernel charged to
    the worker: a busy machine stretches the first, several threads the second. ``None`` when the calls cannot
    be repeated.

    With ``sets``, results of every run that was shorter than those before it are added to ``caught``: only
    such a run changes the slope, and work that it left out would be missing there. Raises ``CaseLost``.
    """
    counts = _run_lengths(p50_us, subject.device)
    if not all(_done(subject, p.PrepareRepeats(case_id=case.id, calls=calls)) for calls in counts):
        return None
    least = [math.inf, math.inf]
    slope_us = math.inf
    done, shortened = 0, False
    while done < SLOPE_ROUNDS or (done < MAX_SLOPE_ROUNDS and _doubtful(net_us, slope_us, subject.device)):
        for which, calls in enumerate(counts):
            kept = KEPT_OF_A_RUN if sets is not None and subject.device == "cpu" else 0
            request = p.RunRepeats(case_id=case.id, calls=calls, kept_outputs=kept)
            ran = _outside_us(subject, request)
            if ran is None:
                return None
            if ran.took_us >= least[which] or (kept and not ran.kept):
                continue  # a run of which nothing was kept shows nothing
            least[which] = ran.took_us
            if sets is not None and caught is not None and kept:
                caught += _catch_repeated(subject, case, sets, kept=ran.kept, calls=calls)
        slope_us = (least[1] - least[0]) / (counts[1] - counts[0])
        done += 1
        if subject.device == "cpu" and not shortened and _beyond_doubt(net_us, slope_us, "cpu"):
            # Runs as long as the claim makes them would last many times the span that is wanted.
            counts, least, done, shortened = _run_lengths(slope_us, "cpu"), [math.inf, math.inf], 0, True
    return slope_us


def _run_lengths(call_us: float, device: DeviceKind) -> tuple[int, int]:
    short = max(1, min(MAX_REPEATED_CALLS // 5, int(SLOPE_SPAN_US[device] / 4.0 / max(call_us, 0.5))))
    return short, 5 * short


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run took by the judge's clock, and the calls whose results it kept."""

    took_us: float
    kept: tuple[int, ...]


def _catch_repeated(
    subject: TimedSubject, case: Case, sets: Sets, *, kept: Sequence[int], calls: int
) -> list[Caught]:
    size_bytes = max(made_output_bytes(sets.made[0]), 1)
    looks = max(1, min(LOOKS_A_RUN, len(kept), LOOKED_AT_BYTES // size_bytes))
    caught: list[Caught] = []
    for position in subject.chooser.sample(list(kept), looks):
        if not 0 <= position < calls:
            message = f"the worker names the result of call {position} in a run of {calls}"
            raise CaseLost(Finding(code=Code.SHORT_TRANSCRIPT, message=message))
        request = p.FetchRepeated(case_id=case.id, position=position)
        caught.append(fetch_output(subject, request, sets, position % len(sets.keys)))
    return caught


def _outside_us(subject: TimedSubject, request: p.RunRepeats) -> Run | None:
    used_ns = cpu_time_ns(subject.seat.pid) if subject.device == "cpu" else None
    started_ns = time.perf_counter_ns()
    outcome = subject.seat.ask(request, timeout_s=subject.timeout_s, max_reply_bytes=0)
    if not (isinstance(outcome, Answer) and isinstance(outcome.reply, p.Done | p.Repeated)):
        return None
    wall_ns = time.perf_counter_ns() - started_ns
    now_ns = cpu_time_ns(subject.seat.pid) if used_ns is not None else None
    charged_ns = now_ns - used_ns if now_ns is not None and used_ns is not None else wall_ns
    kept = outcome.reply.kept if isinstance(outcome.reply, p.Repeated) else ()
    return Run(took_us=min(wall_ns, charged_ns) / 1e3, kept=kept)


def _done(subject: TimedSubject, request: p.PrepareRepeats) -> bool:
    outcome = subject.seat.ask(request, timeout_s=subject.timeout_s, max_reply_bytes=0)
    return isinstance(outcome, Answer) and isinstance(outcome.reply, p.Done)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What the outside clock said at last, and ``around_us``: the claim as measured next to that, net.

    ``None`` where that clock agrees with the claim itself. ``wrong`` is what was wrong with results of the
    calls that it timed.
    """

    outside_us: float | None
    around_us: float | None = None
    wrong: tuple[Finding, ...] = ()


def bound_claim(subject: TimedSubject, case: Case, series: Series, sets: Sets | None = None) -> Bound:
    """Bound a claim from outside; where it is contradicted look again, :data:`BOUND_TRIES` times in all.

    The clock runs in another moment than the samples. So before and after every further look the claim is
    measured again: an honest one is then stretched by whatever stretches the calls, a forged one is not. The
    lesser of the two counts on a CPU: where one of them was fast, calls were fast then, and the clock is the
    least of several rounds between them.
    With ``sets``, results of the calls that are clocked are judged. Raises ``CaseLost``.
    """
    caught: list[Caught] = []

    def slope_us() -> float | None:
        return outside_slope_us(subject, case, series.p50_us, series.net_p50_us, sets=sets, caught=caught)

    bound = _bound(subject, case, series, slope_us)
    wrong = check_outputs(subject, sets, caught) if sets is not None else ()
    return replace(bound, wrong=wrong) if wrong else bound


def _bound(subject: TimedSubject, case: Case, series: Series, slope_us: Callable[[], float | None]) -> Bound:
    outside_us = slope_us()
    around_us: float | None = None
    if outside_us is None or _within(series.net_p50_us, outside_us, subject.device):
        return Bound(outside_us=outside_us)
    floor_us = series.p50_us - series.net_p50_us
    for _ in range(1, BOUND_TRIES):
        before_us = again_us(subject, case, series)
        seen_us = slope_us()
        if seen_us is None:
            break  # one that does not let itself be clocked again has the first look against it
        outside_us = seen_us
        if _within(series.net_p50_us, outside_us, subject.device):
            return Bound(outside_us=outside_us)
        around_us = AROUND[subject.device](before_us, again_us(subject, case, series)) - floor_us
        if _within(around_us, outside_us, subject.device):
            break
    return Bound(outside_us=outside_us, around_us=around_us)


def longest_us(claim_us: float, device: DeviceKind) -> float:
    """Return the longest time by another clock, or of another moment, that a claim of ``claim_us`` bears."""
    return max(claim_us, 0.0) * (1.0 + SLACK_FRACTION[device]) + SLACK_US[device]


def _within(claim_us: float, outside_us: float, device: DeviceKind) -> bool:
    return outside_us <= longest_us(claim_us, device)


def _doubtful(claim_us: float, outside_us: float, device: DeviceKind) -> bool:
    limit_us = longest_us(claim_us, device)
    return limit_us < outside_us < BEYOND_DOUBT[device] * limit_us


def _beyond_doubt(claim_us: float, outside_us: float, device: DeviceKind) -> bool:
    return BEYOND_DOUBT[device] * longest_us(claim_us, device) <= outside_us < math.inf


def judge_claim(
    series: Series,
    outside_us: float | None,
    device: DeviceKind,
    *,
    checked: int,
    wrong: Sequence[Finding],
    around_us: float | None = None,
) -> tuple[TimingTrust, tuple[Finding, ...]]:
    """Say how far a claimed time is trusted, and contradict it where the outside clock does. Pure.

    ``bounded``: the outside clock does not exceed the claim beyond noise. ``verified``: bounded, and
    outputs of timed calls were checked and right. ``unverified``: no outside time could be had, or only one
    that agrees with ``around_us``, the claim as measured again next to it.
    """
    claim_us = series.net_p50_us
    if outside_us is None:
        return "unverified", (
            Finding(
                code=Code.TIME_UNVERIFIED,
                message="the judge's clock could not bound the claimed time: the calls cannot be repeated "
                "at one word (on CUDA: captured in a graph)",
            ),
        )
    if _within(claim_us, outside_us, device):
        return ("verified" if checked and not wrong else "bounded"), ()
    if around_us is not None and _within(around_us, outside_us, device):
        return "unverified", (not_reproduced(claim_us, around_us),)
    limit_us = max(longest_us(claim_us, device), longest_us(around_us or 0.0, device))
    return "unverified", (
        Finding(
            code=Code.CLOCK_CONTRADICTS,
            message=f"a call takes {outside_us:.2f} us by the judge's clock; {max(claim_us, 0.0):.2f} us "
            f"claimed (at most {limit_us:.2f} us would be noise)",
        ),
    )
