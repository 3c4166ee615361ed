"""The regression gate at work: the record first, then the baseline's own code against the candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mini_kv import benchmark, regression
from mini_kv.benchmark.pair_timing import pair_plan
from mini_kv.benchmark.telemetry import Watch
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.attempt import Baseline
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.regression import Regression
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.suite import suite_hash
from mini_kv.run import run_inputs
from mini_kv.run.baseline_rebuild import rebuilt_baseline
from mini_kv.run.crew import Crew, start_crew
from mini_kv.run.process_pairs import PairedSide, PairsRequest, run_pairs, verified_us
from mini_kv.run.run_inputs import RunInputs
from mini_kv.run.steps import device_state
from mini_kv.system.host import usable_cpus

BASELINE, CANDIDATE = "baseline", "candidate"
# Judge, oracle and candidate worker, and the one that imports.
MIN_CPUS_WHILE_IMPORTING = 4
# A CPU's sample lasts 1 ms or more, and its pairs disagree by more than their samples do.
PAIR_SAMPLES = {"cuda": {"repeats": 4, "iterations": 50}, "cpu": {"repeats": 2, "iterations": 20}}


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """What is compared with what. ``name`` and ``sha256`` are of the baseline's file."""

    baseline: Baseline
    name: str
    sha256: str
    build: Build
    policy: regression.Policy
    timeout_s: float


@dataclass(kw_only=True)
class Gated:
    """The decision, and what was measured for it."""

    regression: Regression
    pairs: PairSet | None = None
    more_pairs: PairSet | None = None
    confirmation: Benchmark | None = None
    retimed: Benchmark | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Gate:
    """One decision under way: whose times, taken by which crew, against what."""

    crew: Crew
    timed: Benchmark
    request: GateRequest
    progress: Progress

    def decide(self, *, retimed: Benchmark | None, second: Benchmark | None) -> Regression:
        """Decide by the record; ``second`` is another batch of the candidate, ``retimed`` of all."""
        return regression.decide(
            _measurement(self.crew.inputs, self.timed),
            self.request.baseline,
            self.request.policy,
            second,
            retimed=retimed,
            baseline_name=self.request.name,
            baseline_sha256=self.request.sha256,
        )


def times_while_importing(device: DeviceKind) -> bool:
    """Say whether times may be taken while the contract worker imports, for seconds, on one CPU core.

    It touches the device before or after, never during. On a GPU the host is hidden from a sample, and is
    not short of a core; on a CPU the import would be timed as well.
    """
    return device == "cuda" and usable_cpus() >= MIN_CPUS_WHILE_IMPORTING


def warn_of_incomparable(
    inputs: RunInputs, baseline: Baseline, name: str, *, required: bool, progress: Progress
) -> None:
    """Say before anything runs that the gate will have nothing to compare with, where that is so.

    The run goes on: whether the candidate builds and is right is another question, and comes first in the
    exit code even where a comparison is ``required``.
    """
    if why := regression.why_incomparable(_measurement(inputs, None), baseline):
        end = (
            "exit code 6 if nothing else is wrong" if required else "no failure without --require-comparable"
        )
        sentence = (
            f"{name} cannot be compared with: {why}; allowed is a baseline of the same task, version, "
            f"suite and environment, so the regression will be INCOMPARABLE ({end})."
        )
        progress(Event(stage="baseline", done=0, total=1, detail=sentence, warning=True))


def time_crew(crew: Crew, timeout_s: float, progress: Progress) -> Benchmark:
    """Take the card's whole benchmark with a crew whose candidate worker has opened its library."""
    inputs = crew.inputs
    with device_state(inputs, crew.nursery) as device:
        return benchmark.run_benchmark(
            crew.timed(timeout_s),
            run_inputs.device_lock(inputs.device, inputs.gpus),
            progress,
            read=device.read,
            own_processes=device.own_processes,
        )


def gate(crew: Crew, timed: Benchmark, request: GateRequest, progress: Progress) -> Gated:
    """Decide against the baseline. ``crew`` is the run's own: its oracle makes the pairs' inputs.

    Where the baseline's sources build here, its code and the candidate's are timed against each other in
    pairs of fresh processes, and a second set of pairs where the first leaves a doubt. A P50 over its limit
    that no pairs could judge is confirmed, or not, by a second batch of the candidate alone. Where the
    reference moved, the whole is timed once more in fresh processes before anything is decided.
    """
    at = _Gate(crew=crew, timed=timed, request=request, progress=progress)
    decision = at.decide(retimed=None, second=None)
    retimed = _another_batch(crew, request, progress) if regression.needs_retiming(decision) else None
    decision = at.decide(retimed=retimed, second=None)
    gated = Gated(regression=decision, retimed=retimed)
    names = regression.wants_pairs(decision)
    if names and request.policy.pairs >= regression.MIN_PAIRS:
        _pair_with_baseline(at, gated, names)
    if regression.needs_confirmation(gated.regression):
        gated.confirmation = _another_batch(crew, request, progress)
        if gated.confirmation is not None:
            confirmed = at.decide(retimed=retimed, second=gated.confirmation)
            gated.regression = _with_pairs(confirmed, gated, request.policy)
    return gated


def _measurement(inputs: RunInputs, timed: Benchmark | None) -> regression.CurrentMeasurement:
    card = inputs.card.card
    return regression.CurrentMeasurement(
        task_id=card.task_id,
        operator_version=card.operator_version,
        suite_sha256=suite_hash(card),
        environment_key=inputs.environment.key,
        benchmark=timed,
        environment=inputs.environment,
    )


def _pair_with_baseline(at: _Gate, gated: Gated, names: tuple[str, ...]) -> None:
    inputs, request = at.crew.inputs, at.request
    with rebuilt_baseline(inputs, request.baseline, at.progress) as (rebuilt, build, finding):
        if build is None:
            gated.findings += (finding,) if finding is not None else ()
            return
        pairs = _pairs_request(
            at,
            PairedSide(label=BASELINE, inputs=rebuilt, build=build),
            PairedSide(label=CANDIDATE, inputs=inputs, build=request.build),
            names,
        )
        decision = gated.regression
        gated.pairs = _run(at, gated, pairs)
        gated.regression = _with_pairs(decision, gated, request.policy)
        more = regression.needs_more_pairs(gated.regression, request.policy)
        if more:
            cases = [inputs.card.card.case(name) for name in more]
            gated.more_pairs = _run(at, gated, replace(pairs, cases=cases, pairs=request.policy.more_pairs))
            gated.regression = _with_pairs(decision, gated, request.policy)


def _pairs_request(at: _Gate, a: PairedSide, b: PairedSide, names: tuple[str, ...]) -> PairsRequest:
    inputs = at.crew.inputs
    cases = {case.case_id: case for case in at.timed.cases}
    return PairsRequest(
        a=a,
        b=b,
        cases=[inputs.card.card.case(name) for name in names],
        pairs=at.request.policy.pairs,
        plan=pair_plan(inputs.card.card.benchmark, **PAIR_SAMPLES[inputs.device]),
        empty_kernel_us={name: _empty_kernels_us(cases[name]) for name in names},
        verified_us={name: (None, verified_us(cases[name])) for name in names},
        timeout_s=at.request.timeout_s,
        lock=run_inputs.device_lock(inputs.device, inputs.gpus),
    )


def _run(at: _Gate, gated: Gated, pairs: PairsRequest) -> PairSet:
    with device_state(at.crew.inputs, at.crew.nursery) as device:
        watch = Watch(device.read, device.own_processes)
        taken = run_pairs(at.crew, pairs, watch, at.progress)
        gated.findings += watch.findings()
    return taken


def _empty_kernels_us(case: BenchmarkCase) -> tuple[float, float]:
    # Both sides are read with one value: it is the driver's and the GPU's, not the library's.
    marker_us = case.candidate_kernel.marker_us if case.candidate_kernel is not None else 0.0
    return marker_us, marker_us


def _with_pairs(decision: Regression, gated: Gated, policy: regression.Policy) -> Regression:
    """Add what the sets of pairs say; a set in which a case was lost, or the device shared, says nothing."""
    if gated.pairs is None:
        return decision
    lost: dict[str, str] = {}
    ratios: list[dict[str, tuple[float, ...]]] = []
    for taken in (gated.pairs, gated.more_pairs):
        if taken is None:
            continue
        ratios.append(taken.log_ratios())
        for loss in taken.losses:
            lost.setdefault(loss.case_id, f"the {loss.label}: {loss.finding.message}")
    if gated.findings:
        lost |= {name: finding.message for finding in gated.findings[:1] for name in ratios[0]}
    for one in ratios:
        for name in lost:
            one[name] = ()
    second = ratios[1] if len(ratios) == 2 else None
    return regression.add_pairs(decision, ratios[0], policy, second, lost=lost)


def _another_batch(crew: Crew, request: GateRequest, progress: Progress) -> Benchmark | None:
    with start_crew(crew.inputs, crew.nursery) as fresh:
        fresh.load_oracle()
        if fresh.load(request.build) is not None:
            return None
        return time_crew(fresh, request.timeout_s, progress)
