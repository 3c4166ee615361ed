"""Compare one measurement with a baseline, case by case."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from mini_kv.core.codes import Code, in_confirmation
from mini_kv.core.records.attempt import Baseline
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase, Series
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.environment import Environment
from mini_kv.core.records.regression import CaseComparison, Decision, Regression
from mini_kv.core.rules.quality import judge_quality
from mini_kv.regression.decisions import (
    CurrentMeasurement,
    Policy,
    conclude,
    sum_up,
)


class _Reading(NamedTuple):
    """One batch of one case against the baseline; ``trouble`` says why it must not be judged."""

    p50_ratio: float
    p95_ratio: float
    reference_ratio: float
    over: bool
    trouble: tuple[Code, str] | None


_NOTHING_READ = _Reading(math.nan, math.nan, math.nan, True, None)


def decide(
    current: CurrentMeasurement,
    baseline: Baseline | None,
    policy: Policy,
    confirmation: Benchmark | None = None,
    *,
    retimed: Benchmark | None = None,
    baseline_name: str | None = None,
    baseline_sha256: str | None = None,
) -> Regression:
    """Compare a measurement with a baseline.

    Without ``confirmation`` a P50 over its limit is INCONCLUSIVE with code ``NEEDS_CONFIRMATION`` (see
    :func:`needs_confirmation`): a second batch that never comes is not a pass. With it, over in both
    batches is FAIL and over in one PASS_WITH_WARNING. ``retimed``, another batch in fresh processes, stands
    in for a case whose reference had moved (see :func:`needs_retiming`) where it has not moved there: one
    process's reference differs from another's by more than the limit now and then. Every comparison fails
    closed: NaN is slower.
    """
    if baseline is None:
        return conclude(Decision.NO_BASELINE, Code.NO_BASELINE, "No baseline was given to compare with.", ())
    name = baseline_name or baseline.attempt.attempt_id
    concluded = functools.partial(conclude, cases=(), baseline=name, baseline_sha256=baseline_sha256)
    if differences := _differences(current, baseline):
        message = f"Not comparable with the baseline: {'; '.join(text for _, text in differences)}."
        return concluded(Decision.INCOMPARABLE, differences[0][0], message)
    if current.benchmark is None:
        message = "Nothing was timed, so nothing can be compared."
        return concluded(Decision.INCONCLUSIVE, Code.NOT_TIMED, message)
    cases = compare_benchmarks(
        current.benchmark, baseline.benchmark, policy, confirmation=confirmation, retimed=retimed
    )
    return sum_up(cases, name, baseline_sha256)


# ---------------------------------------------------------------------------- may they be compared?


def why_incomparable(current: CurrentMeasurement, baseline: Baseline) -> str | None:
    """Return what differs, or ``None``. All of it but the timed device is known before anything is timed."""
    return "; ".join(text for _, text in _differences(current, baseline)) or None


def _differences(current: CurrentMeasurement, baseline: Baseline) -> list[tuple[Code, str]]:
    then = baseline.attempt
    pairs = (
        (Code.DIFFERENT_TASK, "task id", current.task_id, then.task_id),
        (
            Code.DIFFERENT_OPERATOR_VERSION,
            "operator version",
            current.operator_version,
            then.operator_version,
        ),
        (Code.DIFFERENT_SUITE, "suite hash", current.suite_sha256[:12], then.suite_sha256[:12]),
    )
    full = (current.suite_sha256 == then.suite_sha256, current.environment_key == then.environment_key)
    differences = [
        (code, f"{what} is {now}, the baseline's is {before}")
        for code, what, now, before in pairs
        if now != before or (what == "suite hash" and not full[0])
    ]
    if current.environment_key is None or then.environment_key is None:
        differences.append((Code.NO_ENVIRONMENT, "the environment is not known on both sides"))
    elif not full[1]:
        details = _environment_details(current.environment, baseline.environment)
        differences.append((Code.DIFFERENT_ENVIRONMENT, f"the environment key differs ({details})"))
    if current.benchmark is not None and current.benchmark.device != baseline.benchmark.device:
        text = f"timed on {current.benchmark.device}, the baseline on {baseline.benchmark.device}"
        differences.append((Code.DIFFERENT_DEVICE, text))
    return differences


def _environment_details(now: Environment | None, then: Environment) -> str:
    if now is None:
        return "its facts are in the two environment records"
    if now.device != then.device:
        return f"device: {now.device}, was {then.device}"  # driver, timer plan and the rest follow from it
    facts = {
        "CPU": (now.cpu_model, then.cpu_model),
        "GPU": (_gpu_facts(now), _gpu_facts(then)),
        "driver": (now.driver, then.driver),
        "CUDA": (now.torch_cuda, then.torch_cuda),
        "torch": (now.torch, then.torch),
        "timer plan": (now.timer_plan, then.timer_plan),
    }
    changed = [f"{what}: {new}, was {old}" for what, (new, old) in facts.items() if new != old]
    return ", ".join(changed) or "in a fact that is not listed here"


def _gpu_facts(environment: Environment) -> str:
    return " + ".join(
        f"{gpu.name} sm {gpu.compute_capability} at {gpu.power_limit_w} W" for gpu in environment.gpus
    )


# ---------------------------------------------------------------------------- one case


def compare_benchmarks(
    now: Benchmark,
    then: Benchmark,
    policy: Policy,
    *,
    confirmation: Benchmark | None = None,
    retimed: Benchmark | None = None,
) -> tuple[CaseComparison, ...]:
    """Return one comparison a case, the baseline's cases first; arguments as :func:`decide` has them."""
    # The baseline's cases are the plan: one that is missing now has not passed.
    planned = {case.case_id: case for case in then.cases}
    current = {case.case_id: case for case in now.cases}
    again = {case.case_id: case for case in confirmation.cases} if confirmation is not None else {}
    fresh = {case.case_id: case for case in retimed.cases} if retimed is not None else {}
    compared = [
        _compare_case(
            name,
            _read_still(current.get(name), fresh.get(name), before, now.device, policy),
            _read(again[name], before, now.device, policy) if name in again else None,
            policy,
        )
        for name, before in planned.items()
    ]
    message = "The baseline has no such case."
    compared += [
        _case(name, Decision.INCOMPARABLE, Code.CASE_NOT_IN_BASELINE, message, first=_NOTHING_READ)
        for name in current
        if name not in planned
    ]
    return tuple(compared)


def _read_still(
    now: BenchmarkCase | None,
    fresh: BenchmarkCase | None,
    then: BenchmarkCase,
    device: DeviceKind,
    policy: Policy,
) -> _Reading:
    reading = _read(now, then, device, policy)
    if fresh is None or reading.trouble is None or reading.trouble[0] != Code.REFERENCE_MOVED:
        return reading
    other = _read(fresh, then, device, policy)
    if other.trouble is None:
        return other
    code, why = reading.trouble
    return reading._replace(trouble=(code, f"{why}; timed again in fresh processes, {other.trouble[1]}"))


def _read(now: BenchmarkCase | None, then: BenchmarkCase, device: DeviceKind, policy: Policy) -> _Reading:
    if now is None or now.candidate is None or now.reference is None:
        return _NOTHING_READ._replace(trouble=(Code.CASE_NOT_TIMED, "the case was not timed"))
    if then.candidate is None or then.reference is None:
        return _NOTHING_READ._replace(trouble=(Code.BASELINE_NOT_TIMED, "the baseline did not time the case"))
    p50_ratio, shift_us = _net_ratio(now.candidate, then.candidate, policy)
    # What two processes of the same code differ by is no slowdown, however short the kernel.
    least_us = policy.min_p50_shift_us if device == "cuda" else 0.0
    p95_ratio, _ = _ratio(now.candidate, then.candidate, "p95_us", policy)
    reference_ratio, moved_us = _ratio(now.reference, then.reference, "p50_us", policy)
    reading = _Reading(
        p50_ratio=p50_ratio,
        p95_ratio=p95_ratio,
        reference_ratio=reference_ratio,
        over=not p50_ratio <= 1.0 + policy.max_p50_slowdown and not shift_us < least_us,
        trouble=None,
    )
    # Judged from the series once more: the flag alone is no evidence that the gate was applied.
    findings = judge_quality(now.candidate, now.reference, device)
    if findings or not now.stable:
        reasons = (*findings, *now.findings)
        why = reasons[0].message.rstrip(".") if reasons else "the case was marked unstable"
        return reading._replace(trouble=(Code.UNSTABLE, f"the times are unstable ({why})"))
    shift = policy.max_reference_shift
    if not 1.0 - shift <= reference_ratio <= 1.0 + shift and not abs(moved_us) < least_us:
        why = f"the reference itself runs at {reference_ratio:.3f} of its baseline time (limit {shift:.0%})"
        return reading._replace(trouble=(Code.REFERENCE_MOVED, why))
    return reading


def _net_ratio(now: Series, then: Series, policy: Policy) -> tuple[float, float]:
    """Return the P50s' ratio and difference (us), each net of its own process's floor; NaN if no ratio.

    The floor is no work of the candidate's: on a kernel of 2 us it is more than half of what the pair
    reads, and would hide a slowdown of 10 %. Floors too far apart to be one timer's (or NaN) are not
    trusted: the times then stand as they are.
    """
    now_us, then_us = now.p50_us, then.p50_us
    if abs(now.floor_us - then.floor_us) <= policy.max_floor_shift * then.floor_us:
        now_us, then_us = now_us - now.floor_us, then_us - then.floor_us
    usable = 0.0 < now_us < math.inf and 0.0 < then_us < math.inf
    return (now_us / then_us, now_us - then_us) if usable else (math.nan, math.nan)


def _ratio(
    now: Series, then: Series, figure: Literal["p50_us", "p95_us"], policy: Policy
) -> tuple[float, float]:
    """Return a figure's ratio and difference (us) as the baseline's own timer would have read them.

    Every process reads all its times with one constant offset, seen in its empty-call floor: on short
    kernels that offset moves a P50 by more than the limits judge. So the difference of the two floors is
    taken off, unless it is too large to be that offset (or NaN): then the times stand as they are. NaN
    where there is no ratio.
    """
    now_us, then_us = getattr(now, figure), getattr(then, figure)
    offset_us = now.floor_us - then.floor_us
    if abs(offset_us) <= policy.max_floor_shift * then.floor_us:
        now_us -= offset_us
    usable = 0.0 < now_us < math.inf and 0.0 < then_us < math.inf
    return (now_us / then_us, now_us - then_us) if usable else (math.nan, math.nan)


def _compare_case(name: str, first: _Reading, second: _Reading | None, policy: Policy) -> CaseComparison:
    compared = functools.partial(_case, name, first=first, second=second)
    if first.trouble is not None:
        code, why = first.trouble
        return compared(Decision.INCONCLUSIVE, code, f"Not judged: {why}.")
    limit = 1.0 + policy.max_p50_slowdown
    over_first = first.over
    took = f"net P50 is {first.p50_ratio:.3f} of the baseline's"
    if second is None:
        if over_first:
            message = f"{took} (limit {limit:.2f}); a second, independent batch must confirm it."
            return compared(Decision.INCONCLUSIVE, Code.NEEDS_CONFIRMATION, message)
        return _compare_within(compared, took, first, policy)
    if second.trouble is not None:
        if not over_first:
            return _compare_within(compared, took, first, policy)
        code, why = second.trouble
        message = f"{took} (limit {limit:.2f}), but the second batch cannot confirm it: {why}."
        return compared(Decision.INCONCLUSIVE, in_confirmation(code), message)
    over_second = second.over
    both = f"{took}, {second.p50_ratio:.3f} in the second batch (limit {limit:.2f})"
    if over_first and over_second:
        return compared(Decision.FAIL, Code.P50_SLOWER, f"{both}: slower in both.")
    if over_first or over_second:
        message = f"{both}: slower in one of two."
        return compared(Decision.PASS_WITH_WARNING, Code.P50_SLOWER_ONCE, message)
    return _compare_within(compared, took, first, policy)


def _compare_within(
    compared: Callable[[Decision, str, str], CaseComparison], took: str, first: _Reading, policy: Policy
) -> CaseComparison:
    limit = 1.0 + policy.max_p95_slowdown
    if not first.p95_ratio <= limit:
        message = f"P95 is {first.p95_ratio:.3f} of the baseline's (limit {limit:.2f}); {took}."
        return compared(Decision.PASS_WITH_WARNING, Code.P95_SLOWER, message)
    if first.p50_ratio < 1.0 - policy.max_p50_slowdown:
        return compared(Decision.PASS, Code.FASTER, f"{took}: faster.")
    return compared(Decision.PASS, Code.WITHIN_LIMITS, f"{took}.")


def _case(
    name: str,
    decision: Decision,
    code: str,
    message: str,
    *,
    first: _Reading,
    second: _Reading | None = None,
) -> CaseComparison:
    return CaseComparison(
        case_id=name,
        decision=decision,
        code=code,
        message=message,
        p50_ratio=_known(first.p50_ratio),
        p95_ratio=_known(first.p95_ratio),
        reference_ratio=_known(first.reference_ratio),
        confirmation_p50_ratio=_known(second.p50_ratio) if second is not None else None,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
