"""Runs the card's cases through oracle and candidate and grades the plan, not the replies."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.card import Case, CaseKind, TaskCard
from mini_kv.core.records.correctness import CaseResult
from mini_kv.core.records.results import Status
from mini_kv.correctness.illegal_cases import run_illegal
from mini_kv.correctness.legal_cases import run_legal
from mini_kv.correctness.subject import Subject


def run_cases(
    subject: Subject, progress: Progress, so_far: list[CaseResult] | None = None
) -> tuple[CaseResult, ...]:
    """Run every case of the card, benchmark shapes included; one result for each, in card order.

    ``so_far`` gets each as soon as it is known: what there is when the run is interrupted.
    """
    results = so_far if so_far is not None else []
    total = len(subject.card.cases)
    for case in subject.card.cases:
        progress(Event(stage="correctness", done=len(results), total=total, detail=case.id))
        started = time.monotonic()
        if case.kind is CaseKind.ILLEGAL:
            result = run_illegal(subject, case, recovery_case(subject.card, results))
        else:
            result = run_legal(subject, case)
        elapsed_s = round(time.monotonic() - started, 4)
        results.append(msgspec.structs.replace(result, elapsed_s=elapsed_s))
    progress(Event(stage="correctness", done=total, total=total, detail="all cases answered"))
    return tuple(results)


def recovery_case(card: TaskCard, results: Sequence[CaseResult]) -> Case | None:
    """Return the core case that must still pass after a refusal: one that passed, or was not run yet.

    A case that failed by itself would be blamed on the refusal.
    """
    core = [case for case in card.cases if case.kind is CaseKind.CORE]
    known = {result.case_id: result.status for result in results}
    passed = [case for case in core if known.get(case.id) is Status.PASS]
    unknown = [case for case in core if case.id not in known]
    return next(iter(passed or unknown), None)
