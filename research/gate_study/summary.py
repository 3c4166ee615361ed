"""From raw times to the study's tables: spreads, achieved slowdowns, error rates with exact bounds, bars."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mini_kv.core.record import Record
from mini_kv.core.records.regression import Decision
from mini_kv.core.rules.statistics import mean
from mini_kv.regression import Policy
from research.gate_study.bounds import Proportion, proportion
from research.gate_study.decisions import (
    Evidence,
    Outcome,
    Plan,
    by_decision,
    count,
    decide,
    disjoint_groups,
    with_pairs,
)
from research.gate_study.honesty import Claims, ControlVerdict, claims, judge_control
from research.gate_study.records import KERNELS
from research.gate_study.sessions import Session, Share, described
from research.gate_study.spreads import Spread, spread

__all__ = ["Proportion", "Rates", "Summary", "bars", "proportion", "rates", "scan", "summarise"]

REGROUPINGS = 20
POLICY_REGROUPINGS = 6
SCANNED_PAIRS = ((3, 3), (4, 3), (5, 1), (5, 2), (5, 3), (6, 3))


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
    sessions: tuple[Session, ...] = ()


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


def summarise(shares: Sequence[Share], regroupings: int = REGROUPINGS) -> Summary:
    """Return the study's tables over what its sessions contribute."""
    policy, seeds = Policy(), range(regroupings)
    owners = {name: share for share in shares for name in share.kernels}
    kernels = sorted(owners, key=_rank)
    levels = shares[0].evidence.raw.levels
    equal = [Plan(kernel=name, baseline=level, candidate=level) for name in kernels for level in levels]
    slower = [Plan(kernel=name, baseline=0, candidate=level) for name in kernels for level in levels if level]
    alarms = [one for share in shares for one in outcomes(share.evidence, own(equal, share), policy, seeds)]
    hits = [one for share in shares for one in outcomes(share.evidence, own(slower, share), policy, seeds)]
    disjoint = [outcome for seed, outcome in alarms if seed == 0]
    power = tuple(
        rates(plan.kernel, plan.candidate, [one for one in hits if one[1].plan == plan]) for plan in slower
    )
    false_fail = proportion(count(disjoint, Decision.FAIL), len(disjoint))
    sessions = tuple(described(share, policy) for share in shares)
    raws = [share.evidence.raw for share in shares]
    processes = [process for raw in raws for process in raw.processes]
    controls = tuple(judge_control(control) for raw in raws for control in raw.controls)
    return Summary(
        schema_version=raws[-1].schema_version,
        device_name=raws[-1].device_name,
        torch=raws[-1].torch,
        processes=len(processes),
        disjoint_groups=sum(session.disjoint_groups for session in sessions),
        policy=policy,
        sessions=sessions,
        spreads=tuple(spread(owners[name].evidence, name) for name in kernels),
        false_alarms=tuple(
            rates(name, 0, [one for one in alarms if one[1].plan.kernel == name]) for name in kernels
        ),
        false_fail=false_fail,
        false_slower=proportion(count(disjoint, Decision.SLOWER), len(disjoint)),
        power=power,
        policies=tuple(scan(shares, *pairs) for pairs in SCANNED_PAIRS),
        controls=controls,
        bars=bars(false_fail, power, controls),
        claims=claims([share.evidence for share in shares]),
        shared=sum(bool(process.strangers) for process in processes),
        throttled=sum(bool(process.throttled) for process in processes),
        lost=tuple(lost for raw in raws for lost in raw.lost),
    )


def own(plans: Sequence[Plan], share: Share) -> list[Plan]:
    """Return those of the plans whose kernel counts as it was measured here."""
    return [plan for plan in plans if plan.kernel in share.kernels]


def _rank(kernel: str) -> tuple[int, str]:
    known = list(KERNELS)
    return (known.index(kernel) if kernel in KERNELS else len(known), kernel)


def scan(shares: Sequence[Share], pairs: int, second_set: int) -> PolicyRates:
    """Return the worst kernel's rates with other numbers of pairs."""
    policy = with_pairs(pairs, second_set)

    def outcomes_at(level: int) -> dict[str, list[Outcome]]:
        found: dict[str, list[Outcome]] = {}
        for share in shares:
            seeds = range(POLICY_REGROUPINGS if level in share.evidence.raw.levels else 0)
            plans = [Plan(kernel=name, baseline=0, candidate=level) for name in share.kernels]
            for _, outcome in outcomes(share.evidence, plans, policy, seeds):
                found.setdefault(outcome.plan.kernel, []).append(outcome)
        return found

    def shares_of_decisions(found: dict[str, list[Outcome]], *decisions: Decision) -> list[float]:
        return [count(made, *decisions) / len(made) for made in found.values()]

    equal = outcomes_at(0)
    taken = [float(one.pairs) for made in equal.values() for one in made]
    at_5, at_3, seen = outcomes_at(5), outcomes_at(3), (Decision.FAIL, Decision.SLOWER)
    return PolicyRates(
        pairs=pairs,
        more_pairs=policy.more_pairs,
        mean_pairs_taken=mean(taken) if taken else None,
        false_fail=max(shares_of_decisions(equal, Decision.FAIL), default=None),
        false_slower=max(shares_of_decisions(equal, Decision.SLOWER), default=None),
        fail_at_8=min(shares_of_decisions(outcomes_at(8), Decision.FAIL), default=None),
        seen_at_5=min(shares_of_decisions(at_5, *seen), default=None),
        seen_at_3=min(shares_of_decisions(at_3, *seen), default=None),
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
    told = Counter(
        f"{control.name} ({control.kernel}): {' '.join(control.codes) or 'NOT FLAGGED'}" for control in judged
    )
    made.append(
        Bar(
            demand="every negative control is unstable or contradicted",
            found=", ".join(text + (f", {times} times" if times > 1 else "") for text, times in told.items())
            or "none was measured",
            passed=bool(judged) and all(control.flagged for control in judged),
        )
    )
    return tuple(made)
