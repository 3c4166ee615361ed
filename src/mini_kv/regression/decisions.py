"""The gate's limits, its inputs, and how the cases' decisions become one."""

from __future__ import annotations

import functools
from typing import assert_never

from mini_kv.core.codes import Code
from mini_kv.core.errors import ExitCode
from mini_kv.core.record import Record
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.environment import Environment
from mini_kv.core.records.regression import CaseComparison, Decision, Regression

# The first of these that any case has is the decision of the whole.
_GRAVEST_FIRST = (
    Decision.FAIL,
    Decision.INCOMPARABLE,
    Decision.INCONCLUSIVE,
    Decision.SLOWER,
    Decision.PASS_WITH_WARNING,
    Decision.PASS,
)


class Policy(Record, frozen=True, kw_only=True):
    """The gate's limits, as fractions.

    ``min_paired_slowdown`` is half of the 2 % from which SLOWER is meant to be reported: at 2 % itself
    every second estimate of a true 2 % would fall short. ``max_floor_shift`` is how far the empty-call
    floors of two processes may lie apart to be taken for their timers' offset. ``min_p50_shift_us`` (CUDA)
    is the least difference of P50s that counts between two single processes. Pairs of fresh processes come
    in a first set of ``pairs`` and, where it leaves a doubt (``min_doubt``), a second that is ``second_set``
    times as large; ``paired_alpha`` is split between the two looks at them, so that both together keep it.
    The reasons and the measured error rates stand in docs/method.md.
    """

    max_p50_slowdown: float = 0.05
    max_p95_slowdown: float = 0.10
    max_reference_shift: float = 0.02
    max_floor_shift: float = 0.15
    min_p50_shift_us: float = 0.2
    min_paired_slowdown: float = 0.01
    min_doubt: float = 0.005
    pairs: int = 5
    second_set: int = 3
    paired_alpha: float = 0.05
    first_look_share: float = 0.4

    @property
    def more_pairs(self) -> int:
        """How many pairs the second set has."""
        return self.pairs * self.second_set


class CurrentMeasurement(Record, frozen=True, kw_only=True):
    """What is compared with the baseline. ``environment`` only serves to name what differs."""

    task_id: str
    operator_version: str
    suite_sha256: str
    environment_key: str | None
    benchmark: Benchmark | None
    environment: Environment | None = None


def exit_code(regression: Regression) -> ExitCode:
    """Return 6 for FAIL and 0 for everything else: what is unclear is reported, not punished."""
    match regression.decision:
        case Decision.FAIL:
            return ExitCode.REGRESSION
        case (
            Decision.PASS
            | Decision.PASS_WITH_WARNING
            | Decision.SLOWER
            | Decision.INCONCLUSIVE
            | Decision.INCOMPARABLE
            | Decision.NO_BASELINE
        ):
            return ExitCode.ACCEPTED
        case _:
            assert_never(regression.decision)


def needs_confirmation(regression: Regression) -> tuple[str, ...]:
    """Return the cases that a second, independent batch in fresh processes must decide."""
    return tuple(case.case_id for case in regression.cases if case.code == Code.NEEDS_CONFIRMATION)


def needs_retiming(regression: Regression) -> tuple[str, ...]:
    """Return the cases whose reference moved: a second batch in fresh processes may show it still."""
    return tuple(case.case_id for case in regression.cases if case.code == Code.REFERENCE_MOVED)


def conclude(
    decision: Decision,
    code: str,
    message: str,
    cases: tuple[CaseComparison, ...],
    *,
    baseline: str | None = None,
    baseline_sha256: str | None = None,
) -> Regression:
    """Return the record of a decision."""
    return Regression(
        schema_version=SCHEMA_VERSION,
        decision=decision,
        code=code,
        message=message,
        baseline=baseline,
        baseline_sha256=baseline_sha256,
        cases=cases,
    )


def sum_up(cases: tuple[CaseComparison, ...], baseline: str | None, sha256: str | None) -> Regression:
    """Return the gravest of the cases' decisions, with the reasons of those that share it."""
    named = functools.partial(conclude, baseline=baseline, baseline_sha256=sha256)
    if not cases:
        message = "The baseline times no case, so nothing was compared."
        return named(Decision.INCONCLUSIVE, Code.NO_CASES, message, cases)
    gravest = min((case.decision for case in cases), key=_GRAVEST_FIRST.index)
    deciding = [case for case in cases if case.decision is gravest]
    shown = "; ".join(f"{case.case_id}: {case.message.rstrip('.')}" for case in deciding[:3])
    more = f"; and {len(deciding) - 3} more" if len(deciding) > 3 else ""
    count = f"{len(deciding)} of {len(cases)} case(s) {gravest.value}"
    return named(gravest, deciding[0].code, f"{count}. {shown}{more}.", cases)
