"""From raw times to the study's tables: spreads, achieved slowdowns, error rates with exact bounds, bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mini_kv.benchmark.witnesses import disagreement, judge_claim
from mini_kv.core.benchmark import KernelWitness
from mini_kv.core.quality import judge_quality
from mini_kv.core.record import Record
from mini_kv.core.regression import Decision
from mini_kv.core.statistics import mean, median, std, tick_median
from mini_kv.core.student_t import incomplete_beta
from mini_kv.regression import Policy
from study.decisions import (
    Evidence,
    Outcome,
    Plan,
    by_decision,
    count,
    decide,
    disjoint_groups,
    series_of,
    us,
    with_pairs,
)
from study.records import Control, Raw, cell_name

REGROUPINGS = 20
POLICY_REGROUPINGS = 6
SCANNED_PAIRS = ((3, 3), (4, 3), (5, 1), (5, 2), (5, 3), (6, 3))
CONFIDENCE = 0.95


class Proportion(Record, frozen=True, kw_only=True):
    """``events`` of ``trials``, with exact one-sided 95 % bounds (Clopper and Pearson 1934)."""

    events: int
    trials: int
    rate: float | None
    lower: float
    upper: float


class Spread(Record, frozen=True, kw_only=True):
    """One kernel without injected slowdown: times in microseconds, spreads as standard deviations.

    ``places_us`` is the spread of batches inside a process, whose operands each lie elsewhere; ``None``
    where a cell has one batch.
    """

    kernel: str
    p50_us: float
    net_us: float
    kernel_us: float
    raw_between_us: float
    net_between_us: float
    net_between_percent: float
    places_us: float | None
    achieved_percent: dict[str, float]


class Rates(Record, frozen=True, kw_only=True):
    """Decisions of one kind: over regroupings of the processes, and over disjoint groups alone."""

    kernel: str
    level: int
    decisions: dict[str, int]
    fail: Proportion
    slower_or_fail: Proportion
    disjoint_fail: Proportion
    disjoint_slower_or_fail: Proportion
    record_only_fail: Proportion


class PolicyRates(Record, frozen=True, kw_only=True):
    """What another number of pairs would give: the worst kernel's rates, and the pairs really taken."""

    pairs: int
    more_pairs: int
    mean_pairs_taken: float | None
    false_fail: float | None
    false_slower: float | None
    fail_at_8: float | None
    seen_at_5: float | None
    seen_at_3: float | None


class ControlVerdict(Record, frozen=True, kw_only=True):
    """What the product says of a negative control; ``flagged`` is what it must be (not of ``clean``)."""

    name: str
    kernel: str
    flagged: bool
    codes: tuple[str, ...]
    p50_us: float
    robust_cv: float
    strangers: tuple[str, ...] = ()


class Bar(Record, frozen=True, kw_only=True):
    """One demand and what was found."""

    demand: str
    found: str
    passed: bool


class Summary(Record, frozen=True, kw_only=True):
    """``gate_study_summary.json``."""

    schema_version: str
    device_name: str
    torch: str
    processes: int
    disjoint_groups: int
    policy: Policy
    spreads: tuple[Spread, ...]
    false_alarms: tuple[Rates, ...]
    false_fail: Proportion
    false_slower: Proportion
    power: tuple[Rates, ...]
    policies: tuple[PolicyRates, ...]
    controls: tuple[ControlVerdict, ...]
    bars: tuple[Bar, ...]
    claims: Claims
    shared: int
    throttled: int
    lost: tuple[str, ...]


def proportion(events: int, trials: int) -> Proportion:
    """Return a proportion with its exact bounds."""
    return Proportion(
        events=events,
        trials=trials,
        rate=events / trials if trials else None,
        lower=_bound(events, trials, upper=False),
        upper=_bound(events, trials, upper=True),
    )


def _bound(events: int, trials: int, *, upper: bool) -> float:
    # P(X <= k) = I_{1-p}(n-k, k+1): the bound is the p at which what was seen has probability 5 %.
    if trials == 0 or (upper and events == trials):
        return 1.0 if upper else 0.0
    if not upper and events == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if upper:
            seen = 1.0 - incomplete_beta(events + 1, trials - events, middle)
            low, high = (middle, high) if seen > 1.0 - CONFIDENCE else (low, middle)
        else:
            seen = incomplete_beta(events, trials - events + 1, middle)
            low, high = (low, middle) if seen > 1.0 - CONFIDENCE else (middle, high)
    return 0.5 * (low + high)


# --------------------------------------------------------------------------- decisions


def outcomes(
    evidence: Evidence, plans: Sequence[Plan], policy: Policy, seeds: Sequence[int]
) -> list[tuple[int, Outcome]]:
    """Return (seed, outcome) of every plan over every group of every regrouping, each plan by itself."""
    made: list[tuple[int, Outcome]] = []
    for seed in seeds:
        for first, spare in disjoint_groups(evidence, policy, seed):
            for plan in plans:
                made += [(seed, outcome) for outcome in decide(evidence, (plan,), first, spare, policy)]
    return made


def rates(kernel: str, level: int, found: Sequence[tuple[int, Outcome]]) -> Rates:
    """Return the rates of one kernel and level; seed 0 is the disjoint grouping."""
    every = [outcome for _, outcome in found]
    disjoint = [outcome for seed, outcome in found if seed == 0]
    seen = (Decision.SLOWER, Decision.FAIL)
    alone = sum(outcome.record_only is Decision.FAIL for outcome in every)
    return Rates(
        kernel=kernel,
        level=level,
        decisions=dict(by_decision(every)),
        fail=proportion(count(every, Decision.FAIL), len(every)),
        slower_or_fail=proportion(count(every, *seen), len(every)),
        disjoint_fail=proportion(count(disjoint, Decision.FAIL), len(disjoint)),
        disjoint_slower_or_fail=proportion(count(disjoint, *seen), len(disjoint)),
        record_only_fail=proportion(alone, len(every)),
    )


def summarise(raw: Raw, regroupings: int = REGROUPINGS) -> Summary:
    """Return the study's tables."""
    evidence, policy = Evidence(raw), Policy()
    kernels = list(raw.pilot.net_us)
    seeds = range(regroupings)
    equal = [Plan(kernel=name, baseline=level, candidate=level) for name in kernels for level in raw.levels]
    slower = [
        Plan(kernel=name, baseline=0, candidate=level) for name in kernels for level in raw.levels if level
    ]
    alarms = outcomes(evidence, equal, policy, seeds)
    hits = outcomes(evidence, slower, policy, seeds)
    disjoint = [outcome for seed, outcome in alarms if seed == 0]
    false_alarms = tuple(
        rates(name, 0, [one for one in alarms if one[1].plan.kernel == name]) for name in kernels
    )
    power = tuple(
        rates(plan.kernel, plan.candidate, [one for one in hits if one[1].plan == plan]) for plan in slower
    )
    false_fail = proportion(count(disjoint, Decision.FAIL), len(disjoint))
    controls = tuple(judge_control(control) for control in raw.controls)
    return Summary(
        schema_version=raw.schema_version,
        device_name=raw.device_name,
        torch=raw.torch,
        processes=len(raw.processes),
        disjoint_groups=sum(1 for _ in disjoint_groups(evidence, policy, 0)),
        policy=policy,
        spreads=tuple(spread(evidence, name) for name in kernels),
        false_alarms=false_alarms,
        false_fail=false_fail,
        false_slower=proportion(count(disjoint, Decision.SLOWER), len(disjoint)),
        power=power,
        policies=tuple(scan(evidence, kernels, *pairs) for pairs in SCANNED_PAIRS),
        controls=controls,
        bars=bars(false_fail, power, controls),
        claims=claims(evidence),
        shared=sum(bool(process.strangers) for process in raw.processes),
        throttled=sum(bool(process.throttled) for process in raw.processes),
        lost=raw.lost,
    )


def scan(evidence: Evidence, kernels: Sequence[str], pairs: int, second_set: int) -> PolicyRates:
    """Return the worst kernel's rates with other numbers of pairs."""
    policy = with_pairs(pairs, second_set)

    def outcomes_at(level: int) -> list[Outcome]:
        plans = [Plan(kernel=name, baseline=0, candidate=level) for name in kernels]
        known = level in evidence.raw.levels
        seeds = range(POLICY_REGROUPINGS if known else 0)
        return [outcome for _, outcome in outcomes(evidence, plans, policy, seeds)]

    def shares(found: Sequence[Outcome], *decisions: Decision) -> list[float]:
        by_kernel = [[one for one in found if one.plan.kernel == name] for name in kernels]
        return [count(own, *decisions) / len(own) for own in by_kernel if own]

    equal = outcomes_at(0)
    seen = (Decision.FAIL, Decision.SLOWER)
    return PolicyRates(
        pairs=pairs,
        more_pairs=policy.more_pairs,
        mean_pairs_taken=mean([float(one.pairs) for one in equal]) if equal else None,
        false_fail=max(shares(equal, Decision.FAIL), default=None),
        false_slower=max(shares(equal, Decision.SLOWER), default=None),
        fail_at_8=min(shares(outcomes_at(8), Decision.FAIL), default=None),
        seen_at_5=min(shares(outcomes_at(5), *seen), default=None),
        seen_at_3=min(shares(outcomes_at(3), *seen), default=None),
    )


# --------------------------------------------------------------------------- spreads, controls, bars


def spread(evidence: Evidence, kernel: str) -> Spread:
    """Return how far processes lie apart, and how much slower each level really is."""
    raw = evidence.raw
    base = [evidence.side(number, cell_name(kernel, 0)) for number in range(len(raw.processes))]
    p50s = [side.p50_us for side in base if side is not None]
    nets = [side.net_us for side in base if side is not None]
    achieved: dict[str, float] = {}
    for level in raw.levels:
        logs = [
            math.log(slow.net_us / side.net_us)
            for number, side in enumerate(base)
            if side is not None and (slow := evidence.side(number, cell_name(kernel, level))) is not None
        ]
        achieved[str(level)] = 100.0 * (math.exp(mean(logs)) - 1.0)
    return Spread(
        kernel=kernel,
        p50_us=median(p50s),
        net_us=median(nets),
        kernel_us=raw.pilot.kernel_us[kernel],
        raw_between_us=std(p50s),
        net_between_us=std(nets),
        net_between_percent=100.0 * std(nets) / median(nets),
        places_us=places(raw, kernel),
        achieved_percent=achieved,
    )


def places(raw: Raw, kernel: str) -> float | None:
    """Return the standard deviation of a process's batches of equal work around their own mean."""
    squares: list[float] = []
    for process in raw.processes:
        for level in raw.levels:
            cell = process.cells[cell_name(kernel, level)]
            batches = zip(cell.samples_ns, cell.floors_ns, strict=True)
            nets = [(tick_median(us(batch), cell.tick_ns / 1e3) - floor / 1e3) for batch, floor in batches]
            if len(nets) > 1:
                squares.append(std(nets) ** 2)
    return math.sqrt(mean(squares)) if squares else None


class Claims(Record, frozen=True, kw_only=True):
    """Honest claims held against the judge's own clock, one kernel a process."""

    contradicted: Proportion
    unbounded: int
    widest_us: float | None


def claims(evidence: Evidence) -> Claims:
    """Return how often the clock contradicted an honest time, and the widest it exceeded one by."""
    contradicted, judged, unbounded = 0, 0, 0
    beyond: list[float] = []
    for number, process in enumerate(evidence.raw.processes):
        if process.bounded is None:
            continue
        series = evidence.series(number, cell_name(process.bounded, 0))
        trust, _ = judge_claim(series, process.outside_us, evidence.device, checked=0, wrong=())
        if process.outside_us is None:
            unbounded += 1
            continue
        judged += 1
        contradicted += trust == "unverified"
        beyond.append(process.outside_us - series.net_p50_us)
    return Claims(
        contradicted=proportion(contradicted, judged),
        unbounded=unbounded,
        widest_us=max(beyond, default=None),
    )


def judge_control(control: Control) -> ControlVerdict:
    """Return what the product's quality gate and its second witness say of a control."""
    marker_us = control.marker_us or 0.0
    candidate = series_of(control.cell, marker_us, repeats=5)
    reference = series_of(control.reference, marker_us, repeats=5)
    found = list(judge_quality(candidate, reference, "cuda"))
    if control.kernel_us is not None:
        witness = KernelWitness(kernel_us=control.kernel_us, samples_us=(), marker_us=marker_us, kernels=())
        found += disagreement(candidate, witness)
    codes = [finding.code for finding in found] + (["GPU_SHARED"] if control.strangers else [])
    return ControlVerdict(
        name=control.name,
        kernel=control.kernel,
        flagged=bool(codes),
        codes=tuple(codes),
        p50_us=candidate.p50_us,
        robust_cv=candidate.robust_cv,
        strangers=control.stranger_names,
    )


def bars(
    false_fail: Proportion, power: Sequence[Rates], controls: Sequence[ControlVerdict]
) -> tuple[Bar, ...]:
    """Return the demands on the gate, each with what was found."""
    made = [
        Bar(
            demand="false FAIL at most 1 % (upper 95 % bound over disjoint processes)",
            found=f"{false_fail.events} of {false_fail.trials}, bound {false_fail.upper:.2%}",
            passed=false_fail.upper <= 0.01,
        )
    ]
    for level, least, text in ((8, 0.95, "FAIL"), (5, 0.95, "SLOWER or FAIL"), (3, 0.80, "SLOWER or FAIL")):
        rows = [row for row in power if row.level == level]
        shares = {row.kernel: (row.fail if level == 8 else row.slower_or_fail).rate for row in rows}
        lowest = min((share for share in shares.values() if share is not None), default=math.nan)
        made.append(
            Bar(
                demand=f"{text} on {level} % in at least {least:.0%} of the decisions, for every kernel",
                found=", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share is not None),
                passed=lowest >= least,
            )
        )
    judged = [control for control in controls if control.name != "clean"]
    made.append(
        Bar(
            demand="every negative control is unstable or contradicted",
            found=", ".join(
                f"{control.name} ({control.kernel}): {' '.join(control.codes) or 'NOT FLAGGED'}"
                for control in judged
            )
            or "none was measured",
            passed=bool(judged) and all(control.flagged for control in judged),
        )
    )
    return tuple(made)
