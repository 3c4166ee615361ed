"""Decisions over measured processes, made by the product's own gate.

One decision takes processes that no other part of it uses: one was the baseline, one is the candidate,
and ``pairs`` more of each are compared in turn; where the gate asks for a second set of pairs, those come
from the groups that follow. The reference that must not move is a cell of two of the pairs' processes that
the decision does not look at otherwise. A record is read from the first batch of its cell: a benchmark's
inputs stay where they are, and a pair's batches here lie each elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mini_kv.benchmark.pair_timing import side_times
from mini_kv.benchmark.samples import CaseLost
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase, Series
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.pairs import PairResult, PairSide
from mini_kv.core.records.regression import CaseComparison, Decision
from mini_kv.core.records.results import Status
from mini_kv.core.rules.quality import judge_quality
from mini_kv.core.rules.statistics import summarize
from mini_kv.regression import Policy, add_pairs, compare_benchmarks, needs_more_pairs
from mini_kv.regression.decisions import sum_up
from research.gate_study.records import Cell, Raw, cell_name


def us(values_ns: Sequence[int]) -> tuple[float, ...]:
    """Return nanoseconds as microseconds."""
    return tuple(value / 1e3 for value in values_ns)


def series_of(cell: Cell, empty_kernel_us: float, repeats: int = 0) -> Series:
    """Return a cell as the product's series; batches too few to judge are cut into ``repeats``."""
    batches = [us(batch) for batch in cell.samples_ns]
    if repeats > len(batches):
        parts = repeats // len(batches)
        size = len(batches[0]) // parts
        batches = [batch[i * size : (i + 1) * size] for batch in batches for i in range(parts)]
    floors = sorted(us(cell.floors_ns))
    floor_us = 0.5 * (floors[(len(floors) - 1) // 2] + floors[len(floors) // 2])
    return summarize(
        batches,
        calls_per_sample=cell.calls_per_sample,
        launch_exposed=cell.exposed,
        floor_us=max(floor_us - empty_kernel_us, 0.0),
        tick_us=max(cell.tick_ns / 1e3, 1e-6),
    )


def case_of(name: str, candidate: Series, reference: Series, device: DeviceKind) -> BenchmarkCase:
    """Return a timed case as the benchmark stage would have left it."""
    findings = judge_quality(candidate, reference, device)
    return BenchmarkCase(
        case_id=name,
        status=Status.PASS,
        stable=not findings,
        findings=findings,
        params={},
        candidate=candidate,
        reference=reference,
        speedup=None,
        bytes_moved=None,
        flops=None,
        gb_per_s=None,
        gflop_per_s=None,
        percent_of_copy_bandwidth=None,
        floor_bound_us=None,
        candidate_kernel=None,
        reference_kernel=None,
        kernel_speedup=None,
        outside_us=None,
        timing_trust="bounded",
        checked_outputs=0,
        tries=1,
        batch_order=(),
    )


def benchmark_of(cases: Sequence[BenchmarkCase], device: DeviceKind) -> Benchmark:
    """Return the benchmark record around cases."""
    return Benchmark(
        schema_version="1.0.0",
        status=Status.PASS,
        device=device,
        timer="study",
        cache="cold",
        stable=all(case.stable for case in cases),
        cases=tuple(cases),
        primary_case_id=cases[0].case_id,
        geomean_speedup=None,
        copy_gb_per_s=None,
        peak_gb_per_s=None,
        l2_bytes=None,
        telemetry=(),
        elapsed_s=0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared: ``kernel`` at ``candidate`` percent against itself at ``baseline`` percent."""

    kernel: str
    baseline: int
    candidate: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the gate said: the whole gate, and by the record and one further batch alone."""

    plan: Plan
    decision: Decision
    code: str
    record_only: Decision
    pairs: int


class Evidence:
    """The study's cells as the product's records, made once each."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.device: DeviceKind = "cpu" if raw.device == "cpu" else "cuda"
        self._series: dict[tuple[int, str], Series] = {}
        self._sides: dict[tuple[int, str], PairSide | None] = {}

    def series(self, process: int, cell: str) -> Series:
        """Return one process's cell as a series."""
        key = (process, cell)
        if key not in self._series:
            measured = self.raw.processes[process].cells[cell]
            first = msgspec.structs.replace(
                measured, samples_ns=measured.samples_ns[:1], floors_ns=measured.floors_ns[:1]
            )
            self._series[key] = series_of(first, self.raw.pilot.empty_kernel_us, repeats=2)
        return self._series[key]

    def side(self, process: int, cell: str) -> PairSide | None:
        """Return one process's cell as a pair's side; ``None`` where the product would refuse it."""
        key = (process, cell)
        if key not in self._sides:
            measured = self.raw.processes[process].cells[cell]
            try:
                self._sides[key] = side_times(
                    "a",
                    [us(batch) for batch in measured.samples_ns],
                    us(measured.floors_ns),
                    tick_us=measured.tick_ns / 1e3,
                    launch_exposed=measured.exposed,
                    calls_per_sample=measured.calls_per_sample,
                    empty_kernel_us=self.raw.pilot.empty_kernel_us,
                )
            except CaseLost:
                self._sides[key] = None
        return self._sides[key]

    def log_ratios(self, a: Sequence[int], b: Sequence[int], plan: Plan) -> tuple[float, ...]:
        """Return ``log(candidate / baseline)`` of pairs of processes."""
        found: list[float] = []
        for number, (left, right) in enumerate(zip(a, b, strict=True)):
            one = self.side(left, cell_name(plan.kernel, plan.baseline))
            other = self.side(right, cell_name(plan.kernel, plan.candidate))
            if one is not None and other is not None:
                result = PairResult(case_id=plan.kernel, pair=number, first="a", a=one, b=other)
                found.append(result.log_ratio)
        return tuple(found)


def processes_needed(policy: Policy) -> tuple[int, int]:
    """Return how many processes a decision takes at first, and for a second set of pairs."""
    return 2 + 2 * policy.pairs, 2 * policy.more_pairs


def decide(
    evidence: Evidence, plans: Sequence[Plan], first: Sequence[int], spare: Sequence[int], policy: Policy
) -> list[Outcome]:
    """Let the gate decide over ``plans`` as the cases of one card, from the processes given."""
    pairs = policy.pairs
    record, current, *rest = first
    a, b = rest[:pairs], rest[pairs : 2 * pairs]
    device = evidence.device
    then = benchmark_of([_case(evidence, plan, record, a[0], plan.baseline) for plan in plans], device)
    now = benchmark_of([_case(evidence, plan, current, b[0], plan.candidate) for plan in plans], device)
    again = benchmark_of([_case(evidence, plan, b[-1], b[1], plan.candidate) for plan in plans], device)
    alone = compare_benchmarks(now, then, policy, retimed=again)
    confirmed = compare_benchmarks(now, then, policy, confirmation=again, retimed=again)
    regression = sum_up(alone, "study", None)
    sets = {plan.kernel: evidence.log_ratios(a, b, plan) for plan in plans}
    decided = add_pairs(regression, sets, policy)
    more = needs_more_pairs(decided, policy)
    used = pairs
    if more and len(spare) >= 2 * policy.more_pairs:
        more_a, more_b = spare[: policy.more_pairs], spare[policy.more_pairs : 2 * policy.more_pairs]
        second = {
            plan.kernel: evidence.log_ratios(more_a, more_b, plan) for plan in plans if plan.kernel in more
        }
        decided = add_pairs(regression, sets, policy, second)
        used += policy.more_pairs
    return [
        _outcome(plan, case, other, used)
        for plan, case, other in zip(plans, decided.cases, confirmed, strict=True)
    ]


def _outcome(plan: Plan, case: CaseComparison, record_only: CaseComparison, pairs: int) -> Outcome:
    return Outcome(
        plan=plan, decision=case.decision, code=case.code, record_only=record_only.decision, pairs=pairs
    )


def _case(evidence: Evidence, plan: Plan, process: int, other: int, level: int) -> BenchmarkCase:
    busy = {plan.baseline, plan.candidate}
    free = [one for one in evidence.raw.levels if one not in busy] or [plan.baseline]
    reference = evidence.series(other, cell_name(plan.kernel, free[-1]))
    candidate = evidence.series(process, cell_name(plan.kernel, level))
    return case_of(plan.kernel, candidate, reference, evidence.device)


def disjoint_groups(
    evidence: Evidence, policy: Policy, seed: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield groups of processes that share none; a second set of pairs comes from the groups that follow."""
    order = list(range(len(evidence.raw.processes)))
    random.Random(seed).shuffle(order)
    size, more = processes_needed(policy)
    for start in range(0, len(order) - size + 1, size):
        others = order[start + size :] + order[:start]
        yield tuple(order[start : start + size]), tuple(others[:more])


def with_pairs(pairs: int, second_set: int) -> Policy:
    """Return the product's policy with other numbers of pairs."""
    return msgspec.structs.replace(Policy(), pairs=pairs, second_set=second_set)


def count(outcomes: Sequence[Outcome], *decisions: Decision) -> int:
    """Return how many outcomes are one of the decisions."""
    return sum(outcome.decision in decisions for outcome in outcomes)


def by_decision(outcomes: Sequence[Outcome]) -> Mapping[str, int]:
    """Return the number of outcomes by decision."""
    return {decision.value: found for decision in Decision if (found := count(outcomes, decision))}
