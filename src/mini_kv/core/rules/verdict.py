"""From stage records to axes and one exit code. Pure; only explicit evidence gives PASS."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from mini_kv.core.codes import Code, Fault
from mini_kv.core.errors import ExitCode
from mini_kv.core.records.attempt import Axis
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import CaseKind
from mini_kv.core.records.correctness import CaseResult, ContractCheck, Correctness
from mini_kv.core.records.isolation import LEVEL_MEANING, Isolation, IsolationLevel
from mini_kv.core.records.pairs import PairLoss, PairSet
from mini_kv.core.records.regression import Decision, Regression
from mini_kv.core.records.results import Finding, Status

# A timed call that gave a wrong result is no benchmark problem; a claim that the judge's own clock
# contradicts is no honest time.
TIMING_EXIT_CODES: Mapping[str, ExitCode] = {
    code: code.facts.exit_code
    for code in Code
    if "timing" in code.facts.axes and code.facts.exit_code in (ExitCode.CORRECTNESS, ExitCode.INTEGRITY)
}

# What a case can show about memory. The first group says nothing of the values, which are judged apart.
MEMORY_ONLY_CODES = frozenset(code for code in Code if code.facts.axes == ("memory",))
MEMORY_CODES = frozenset(
    code
    for code in Code
    if code.facts.fault is Fault.CANDIDATE and {"memory"} <= {*code.facts.axes} <= {"memory", "numerics"}
)


def axes_of(
    build: Build | None,
    load_fault: Finding | None,
    correctness: Correctness | None,
    benchmark: Benchmark | None,
    *,
    regression: Regression | None,
    benchmark_skipped: bool,
    baseline_given: bool = False,
    require_comparable: bool = False,
    caught: Sequence[PairLoss] = (),
) -> tuple[Axis, ...]:
    """Return one axis a question, each for itself; a stage that left no record is UNVERIFIED.

    With ``require_comparable`` a regression gate that could not or would not judge has failed.
    ``baseline_given`` tells a gate that was not reached from one that nobody asked for. ``caught`` is what
    :func:`caught_in_pairs` found.
    """
    uncompared = _why_uncompared(build, load_fault, correctness, benchmark) if baseline_given else None
    return (
        _build_axis(build, load_fault),
        _cases_axis("numerics", correctness, illegal=False),
        _memory_axis(correctness, benchmark),
        _contract_axis(correctness),
        _timing_axis(benchmark, benchmark_skipped, caught),
        _regression_axis(regression, uncompared, require_comparable),
    )


def exit_code_of(axes: Sequence[Axis], fault: ExitCode | None, interrupted: bool) -> int:
    """Return the first failed stage's exit code, in the order in which stages depend on each other."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if fault is not None:
        return fault
    status = {axis.name: axis for axis in axes}
    if status["build"].status is not Status.PASS:
        return ExitCode.COMPILATION
    for name in ("numerics", "memory", "contract"):
        if status[name].status not in (Status.PASS, Status.SKIPPED):
            return ExitCode.CORRECTNESS
    timing = status["timing"]
    if timing.status is Status.FAIL:
        return TIMING_EXIT_CODES.get(timing.code or "", ExitCode.BENCHMARK)
    if status["regression"].status is Status.FAIL:
        return ExitCode.REGRESSION
    return ExitCode.ACCEPTED


def isolation_axis(isolation: Isolation) -> Axis:
    """Return how far the candidate was shut off; PASS where it could read nothing of the judge's."""
    missing = "; ".join(f"no {one.name} ({one.reason})" for one in isolation.missing)
    message = f"{isolation.level.value}: {LEVEL_MEANING[isolation.level]}" + (
        f"; {missing}" if missing else ""
    )
    if isolation.level.reaches(IsolationLevel.CONFINED):
        return _axis("isolation", Status.PASS, None, message)
    return _axis("isolation", Status.UNVERIFIED, Code.WEAK_ISOLATION, message)


def _build_axis(build: Build | None, load_fault: Finding | None) -> Axis:
    if build is None:
        return _axis("build", Status.UNVERIFIED, Code.NOT_REACHED, "the build was not reached")
    if build.status is not Status.PASS:
        return _axis("build", build.status, build.code, build.message)
    if load_fault is not None:
        return _axis("build", Status.FAIL, load_fault.code, load_fault.message)
    return _axis("build", Status.PASS, None, None)


def _cases_axis(name: str, correctness: Correctness | None, *, illegal: bool) -> Axis:
    if correctness is None:
        return _axis(name, Status.UNVERIFIED, Code.NOT_REACHED, "no case was run")
    cases = [case for case in correctness.cases if (case.kind is CaseKind.ILLEGAL) is illegal]
    counted = [case for case in cases if case.status is not Status.INVALID]
    failed = [case for case in counted if case.status is not Status.PASS and not _memory_only(case)]
    if failed:
        first = failed[0]
        return _axis(
            name,
            Status.FAIL,
            first.code,
            f"{len(failed)} of {len(counted)} cases failed; the first is '{first.case_id}': {first.message}",
        )
    if not correctness.complete and len(correctness.cases) < correctness.planned_cases:
        done = f"{len(counted)} of {correctness.planned_cases} cases had passed when the run ended"
        return _axis(name, Status.UNVERIFIED, Code.INCOMPLETE, done)
    if not any(case.kind is CaseKind.CORE for case in counted) and not illegal:
        return _axis(name, Status.UNVERIFIED, Code.NO_EVIDENCE, "no core case that proves anything was run")
    invalid = len(cases) - len(counted)
    form = sum(case.proves == "form" for case in counted)
    remark = f", {form} of them empty (form only)" if form else ""
    spoiled = sum(case.status is not Status.PASS for case in counted)
    remark += f", {spoiled} of them failed on memory alone" if spoiled else ""
    remark += f"; {_counted(invalid, 'INVALID case')} next to them, proving nothing" if invalid else ""
    return _axis(name, Status.PASS, None, f"{len(counted)} cases passed{remark}")


def _memory_findings(case: CaseResult, codes: Collection[str]) -> list[Finding]:
    return [finding for one in case.rounds for finding in one.findings if finding.code in codes]


def _memory_only(case: CaseResult) -> bool:
    """Say whether all that a failed case showed concerns memory: its values were compared and right."""
    found = [finding for one in case.rounds for finding in one.findings]
    return bool(found) and len(_memory_findings(case, MEMORY_ONLY_CODES)) == len(found)


def _memory_axis(correctness: Correctness | None, benchmark: Benchmark | None) -> Axis:
    """Inputs and guard zones intact, results the same under both fill patterns; see docs/method.md."""
    if correctness is None:
        return _axis("memory", Status.UNVERIFIED, Code.NOT_REACHED, "no case was run")
    legal = [case for case in correctness.cases if case.kind is not CaseKind.ILLEGAL]
    broken = [
        (case, found[0]) for case in correctness.cases if (found := _memory_findings(case, MEMORY_CODES))
    ]
    if broken:
        case, finding = broken[0]
        return _axis(
            "memory",
            Status.FAIL,
            finding.code,
            f"{len(broken)} of {len(legal)} cases; the first is '{case.case_id}': {finding.message}",
        )
    for timed in benchmark.cases if benchmark is not None else ():
        for finding in timed.findings:
            if finding.code == Code.INPUT_MUTATED_WHILE_TIMED:
                message = f"'{timed.case_id}': {finding.message}"
                return _axis("memory", Status.FAIL, finding.code, message)
    # A call that did not return left nothing to look at, and is the numerics axis's matter.
    looked_at = sum(any(one.outputs for one in case.rounds) for case in legal)
    if not looked_at:
        return _axis("memory", Status.UNVERIFIED, Code.NO_EVIDENCE, "no call returned")
    intact = f"inputs, guard zones and fill patterns intact in {looked_at} cases"
    died = sum(case.code == Code.CRASHED for case in correctness.cases)
    if died:
        # A write past a result shows in no guard zone, but in the allocator's own check, which aborts.
        message = f"{intact}; {_counted(died, 'call')} ended the process, as a write out of bounds can"
        return _axis("memory", Status.UNVERIFIED, Code.CRASHED, message)
    return _axis("memory", Status.PASS, None, intact)


def _contract_axis(correctness: Correctness | None) -> Axis:
    if correctness is None:
        return _axis("contract", Status.UNVERIFIED, Code.NOT_REACHED, "no contract check was run")
    refused = _cases_axis("contract", correctness, illegal=True)
    if refused.status is Status.FAIL:
        return refused
    wanted = [check for check in correctness.contract if check.status is not Status.SKIPPED]
    asked = [check for check in wanted if check.status is not Status.UNVERIFIED]
    broken = [check for check in asked if check.status is not Status.PASS]
    if broken:
        first = broken[0]
        return _axis(
            "contract",
            Status.FAIL,
            first.code,
            f"{len(broken)} of {len(asked)} checks failed; the first is {first.name} "
            f"on '{first.case_id}': {first.message}",
        )
    if refused.status is Status.UNVERIFIED or not correctness.complete:
        message = f"{_counted(len(asked), 'check')} had passed when the run ended"
        return _axis("contract", Status.UNVERIFIED, Code.INCOMPLETE, message)
    if len(asked) < len(wanted):
        first = next(check for check in wanted if check.status is Status.UNVERIFIED)
        message = f"{len(wanted) - len(asked)} of {len(wanted)} checks were not made: {first.message}"
        return _axis("contract", Status.UNVERIFIED, first.code, message)
    illegal = sum(case.kind is CaseKind.ILLEGAL for case in correctness.cases)
    if not wanted and not illegal:
        return _axis("contract", Status.SKIPPED, Code.NOTHING_DEMANDED, "the card demands no contract check")
    done = f"{_counted(len(asked), 'check')}, {_counted(illegal, 'illegal input')} refused as demanded"
    return _axis("contract", Status.PASS, None, done)


def caught_in_pairs(sets: Sequence[PairSet | None], label: str) -> tuple[PairLoss, ...]:
    """Return what the side ``label`` did wrong in fresh processes, where that is more than a missing time."""
    losses = [loss for one in sets if one is not None for loss in one.losses]
    return tuple(loss for loss in losses if loss.label == label and loss.finding.code in TIMING_EXIT_CODES)


def _timing_axis(benchmark: Benchmark | None, skipped: bool, caught: Sequence[PairLoss]) -> Axis:
    if benchmark is None:
        if skipped:
            return _axis("timing", Status.SKIPPED, Code.SKIPPED, "the benchmark was skipped on request")
        return _axis("timing", Status.UNVERIFIED, Code.NOT_REACHED, "nothing was timed")
    faults = [
        (case.case_id, finding)
        for case in benchmark.cases
        if case.status is not Status.PASS
        for finding in case.findings
    ]
    faults += [(loss.case_id, loss.finding) for loss in caught]
    if faults:
        # A wrong result weighs more than a time that cannot be trusted, whichever came first.
        wrong = [fault for fault in faults if fault[1].code in TIMING_EXIT_CODES]
        case_id, finding = (wrong or faults)[0]
        return _axis("timing", Status.FAIL, finding.code, f"'{case_id}': {finding.message}")
    unstable = [case for case in benchmark.cases if not case.stable]
    if benchmark.status is not Status.PASS:
        names = ", ".join(case.case_id for case in unstable) or "every case"
        return _axis("timing", Status.FAIL, Code.UNSTABLE, f"the quality gate was missed by {names}")
    if unstable:
        message = f"{len(unstable)} of {len(benchmark.cases)} cases are unstable (a warning on the CPU)"
        return _axis("timing", Status.UNVERIFIED, Code.UNSTABLE_ON_CPU, message)
    levels = {case.timing_trust for case in benchmark.cases}
    if "unverified" in levels:
        message = "no clock outside the candidate's process could bound the times"
        return _axis("timing", Status.UNVERIFIED, Code.TIME_UNVERIFIED, message)
    level = "bounded" if "bounded" in levels else "verified"
    return _axis(
        "timing", Status.PASS, None, f"{_counted(len(benchmark.cases), 'case')} stable, times {level}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _why_uncompared(
    build: Build | None,
    load_fault: Finding | None,
    correctness: Correctness | None,
    benchmark: Benchmark | None,
) -> str:
    """Return what kept a given baseline from being compared with, where the gate left no record."""
    if build is None or build.status is not Status.PASS:
        return "the candidate was not built"
    if load_fault is not None:
        return "the candidate was not loaded"
    if correctness is None:
        return "correctness was not judged"
    if correctness.status is not Status.PASS:
        return "correctness failed"
    return "nothing was timed" if benchmark is None else "the comparison did not end"


def _regression_axis(regression: Regression | None, uncompared: str | None, require_comparable: bool) -> Axis:
    if regression is None and uncompared is None:
        return _axis("regression", Status.SKIPPED, Code.NO_BASELINE, "no baseline was given")
    if regression is None:
        status = Status.FAIL if require_comparable else Status.UNVERIFIED
        return _axis("regression", status, Code.NOT_COMPARED, f"not compared with the baseline: {uncompared}")
    failed = regression.decision is Decision.FAIL
    passed = regression.decision in (Decision.PASS, Decision.PASS_WITH_WARNING, Decision.SLOWER)
    status = Status.FAIL if failed else Status.PASS if passed else Status.UNVERIFIED
    if require_comparable and status is Status.UNVERIFIED:
        status = Status.FAIL
    return _axis("regression", status, regression.code, regression.message)


def _axis(name: str, status: Status, code: str | None, message: str | None) -> Axis:
    return Axis(name=name, status=status, code=code, message=message)


def smallest_failure(correctness: Correctness) -> CaseResult | None:
    """Return the failed legal case with the fewest input elements: the one to start debugging with.

    Only where every legal case passed is it an illegal one.
    """
    failed = [case for case in correctness.cases if case.status not in (Status.PASS, Status.INVALID)]
    return min(failed, key=lambda case: (case.kind is CaseKind.ILLEGAL, _input_elements(case)), default=None)


def _input_elements(case: CaseResult) -> int:
    # Inputs stand as text: "float32[4, 128] strides (1, 4) on cpu"; what has no brackets is no tensor.
    total = 0
    for text in case.inputs:
        extents = re.search(r"\[([0-9, ]*)\]", text)
        if extents is not None:
            total += math.prod(int(extent) for extent in extents[1].split(",") if extent.strip())
    return total


def failed_checks(correctness: Correctness) -> tuple[ContractCheck, ...]:
    """Return the contract checks that were made and did not pass."""
    fine = (Status.PASS, Status.SKIPPED, Status.UNVERIFIED)
    return tuple(check for check in correctness.contract if check.status not in fine)
