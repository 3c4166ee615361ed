"""Which of two candidates is faster, from pairs of fresh processes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase, KernelWitness, Series
from mini_kv.core.records.comparison import ComparedCase, ComparedWord, RatioEstimate
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.statistics import mean
from mini_kv.regression import paired_slowdown

CONFIDENCE = 0.95
# As in the gate, `Policy.max_reference_shift`: a machine that moved more is named next to the ratio.
MAX_REFERENCE_SPREAD = 0.02
_MAX_LOG_RATIO = 700.0


def estimate(log_ratios: Sequence[float], confidence: float = CONFIDENCE) -> RatioEstimate | None:
    """Return the geometric mean of B / A with its two-sided t interval; ``None`` for less than two pairs.

    ``log_ratios`` holds ``log(B / A)`` of net times, one a pair. ``None`` too where one is no number.
    """
    try:
        test = paired_slowdown(log_ratios, (1.0 - confidence) / 2.0)
    except ValueError:
        return None
    return RatioEstimate(
        pairs=len(log_ratios),
        ratio=_exp(test.mean),
        lower=_exp(test.lower),
        upper=_exp(test.upper),
        confidence=confidence,
        log_ratios=tuple(log_ratios),
    )


def _exp(value: float) -> float:
    return math.exp(min(value, _MAX_LOG_RATIO))


def word_of(ratio: RatioEstimate | None) -> ComparedWord:
    """Return what B is compared with A; an interval that holds 1 shows no difference."""
    if ratio is None:
        return "undecided"
    if ratio.lower > 1.0:
        return "slower"
    if ratio.upper < 1.0:
        return "faster"
    return "no_difference" if ratio.lower <= 1.0 <= ratio.upper else "undecided"


def sentence(word: ComparedWord, ratio: RatioEstimate | None) -> str:
    """Return the word with its figures, in net time."""
    if ratio is None:
        return "no interval: fewer than two pairs of processes gave a ratio"
    span = f"{ratio.confidence:.0%} interval {_ratio(ratio.lower)} to {_ratio(ratio.upper)}"
    figures = f"B / A = {_ratio(ratio.ratio)} in net time, {span}, {ratio.pairs} pairs of processes"
    match word:
        case "faster":
            return f"B is faster by {1.0 / ratio.ratio - 1.0:.1%} in rate ({figures})"
        case "slower":
            return f"B is slower by {ratio.ratio - 1.0:.1%} in time ({figures})"
        case "no_difference":
            return f"no difference within the interval ({figures})"
        case "undecided":
            return f"undecided ({figures})"


def _ratio(value: float) -> str:
    return f"{value:.4g}" if value < 0.1 or value >= 10.0 else f"{value:.4f}"


def compared_cases(
    a: Benchmark, b: Benchmark, pairs: PairSet | None, watched: Sequence[Finding]
) -> tuple[ComparedCase, ...]:
    """Return the verdict on every case; ``watched`` is what was held against the pairs' times."""
    log_ratios = pairs.log_ratios() if pairs is not None else {}
    found: list[ComparedCase] = []
    for one, two in zip(a.cases, b.cases, strict=True):
        losses = [loss.finding for loss in pairs.losses if loss.case_id == one.case_id] if pairs else []
        found.append(
            _case(one, two, log_ratios.get(one.case_id, ()), (*losses, *watched), a.device == "cuda")
        )
    return tuple(found)


def _case(
    one: BenchmarkCase,
    two: BenchmarkCase,
    log_ratios: Sequence[float],
    held_against: Sequence[Finding],
    unstable_decides: bool,
) -> ComparedCase:
    ratio = estimate(log_ratios)
    reference = one.reference
    spread = max(reference.repeat_p50_us) / min(reference.repeat_p50_us) - 1.0 if reference else None
    findings = list(held_against)
    if spread is not None and not spread <= MAX_REFERENCE_SPREAD:
        message = f"the reference's own P50 moved by {spread:.1%} between repeats of this run"
        findings.append(Finding(code=Code.REFERENCE_MOVED, message=message))
    word, message = word_of(ratio), ""
    failed = [label for label, case in (("A", one), ("B", two)) if case.status is not Status.PASS]
    unstable = [label for label, case in (("A", one), ("B", two)) if not case.stable]
    if failed:
        word, message = "undecided", f"undecided: {' and '.join(failed)} has no valid time for this case"
    elif unstable_decides and (unstable or held_against):
        why = f"{' and '.join(unstable)} missed the quality gate" if unstable else held_against[0].message
        word, message = "undecided", f"undecided: {why}"
    return ComparedCase(
        case_id=one.case_id,
        params=one.params,
        word=word,
        message=message or sentence(word, ratio),
        ratio=ratio,
        sample_ratio=_net_ratio(one.candidate, two.candidate),
        kernel_ratio=_kernel_ratio(one.candidate_kernel, two.candidate_kernel),
        reference_p50_us=reference.p50_us if reference else None,
        reference_spread=spread,
        findings=tuple(findings),
        axis_values=one.axis_values,
    )


def _net_ratio(a: Series | None, b: Series | None) -> float | None:
    if a is None or b is None or not a.net_p50_us > 0.0 or not b.net_p50_us > 0.0:
        return None
    return b.net_p50_us / a.net_p50_us


def _kernel_ratio(a: KernelWitness | None, b: KernelWitness | None) -> float | None:
    if a is None or b is None or not a.kernel_us > 0.0:
        return None
    return b.kernel_us / a.kernel_us


def overall(
    cases: Sequence[ComparedCase], pairs: PairSet | None
) -> tuple[ComparedWord, str, RatioEstimate | None]:
    """Return the word on the geometric mean over all cases: one mean log-ratio a pair, then the interval.

    Undecided where a case is, or where a pair misses a case: leaving one out must not improve the mean.
    """
    undecided = [case.case_id for case in cases if case.word == "undecided"]
    if not cases or undecided or pairs is None:
        return "undecided", f"undecided: {', '.join(undecided) or 'nothing was timed'}", None
    if pairs.losses:
        return "undecided", "undecided: not every pair of processes timed every case", None
    columns = [case.ratio.log_ratios for case in cases if case.ratio is not None]
    ratio = estimate([mean(row) for row in zip(*columns, strict=True)])
    word = word_of(ratio)
    prefix = f"over {len(cases)} cases, " if len(cases) > 1 else ""
    return word, prefix + sentence(word, ratio), ratio
