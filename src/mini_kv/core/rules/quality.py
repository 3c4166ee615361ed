"""The quality gate of a timed case: whether its times may be ranked, promoted and compared."""

from __future__ import annotations

from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import Series
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.results import Finding

MAX_P50_ROBUST_CV = 0.03
MAX_CANDIDATE_P95_ROBUST_CV = 0.15
MAX_LAUNCH_EXPOSED_FRACTION = 0.01
# One repeat shows no spread between repeats, so nothing can be said about it.
MIN_REPEATS = 2


def _spread_finding(code: Code, side: str, figure: str, spread: float, limit: float) -> Finding | None:
    if spread <= limit:
        return None
    return Finding(
        code=code,
        message=f"The {side}'s {figure} varies by {spread:.1%} between repeats; the limit is {limit:.0%}.",
        evidence=(f"robust_cv={spread!r}", f"limit={limit!r}"),
    )


def _exposure_finding(side: str, series: Series) -> Finding | None:
    count = sum(len(repeat) for repeat in series.samples_us)
    fraction = series.launch_exposed / count if count else float("nan")
    if fraction <= MAX_LAUNCH_EXPOSED_FRACTION:
        return None
    return Finding(
        code=Code.LAUNCH_EXPOSED,
        message=(
            f"In {series.launch_exposed} of the {side}'s {count} samples the device waited for the host; "
            f"the limit is {MAX_LAUNCH_EXPOSED_FRACTION:.0%}."
        ),
        evidence=(f"launch_exposed={series.launch_exposed}", f"samples={count}"),
    )


def _side_findings(side: str, series: Series, device: DeviceKind) -> list[Finding | None]:
    repeats = len(series.repeat_p50_us)
    findings: list[Finding | None] = []
    if not repeats >= MIN_REPEATS:
        message = (
            f"The {side} has {repeats} repeat(s); at least {MIN_REPEATS} are needed to judge its spread."
        )
        findings.append(Finding(code=Code.TOO_FEW_REPEATS, message=message))
    code = Code.CANDIDATE_P50_UNSTABLE if side == "candidate" else Code.REFERENCE_P50_UNSTABLE
    findings.append(_spread_finding(code, side, "P50", series.robust_cv, MAX_P50_ROBUST_CV))
    if device == "cuda":
        findings.append(_exposure_finding(side, series))
    return findings


def judge_quality(candidate: Series, reference: Series, device: DeviceKind) -> tuple[Finding, ...]:
    """Return why the times of a case may not be trusted; empty means stable.

    The limits: robust CV of repeat P50s at most 3 % on both sides, of the candidate's repeat P95s at most
    15 %, and on CUDA at most 1 % launch-exposed samples. Fails closed: NaN is over every limit.
    """
    findings = _side_findings("candidate", candidate, device)
    spread = candidate.robust_cv_p95
    limit = MAX_CANDIDATE_P95_ROBUST_CV
    findings.append(_spread_finding(Code.CANDIDATE_P95_UNSTABLE, "candidate", "P95", spread, limit))
    findings += _side_findings("reference", reference, device)
    return tuple(finding for finding in findings if finding is not None)
