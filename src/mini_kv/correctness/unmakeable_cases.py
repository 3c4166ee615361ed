"""The card is blamed for a case that cannot be made only if making it fails without the candidate as well."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mini_kv.core.canonical import fixed_seed
from mini_kv.core.codes import Code
from mini_kv.core.records.card import CaseKind
from mini_kv.core.records.correctness import CaseResult
from mini_kv.core.records.results import Finding, Status
from mini_kv.correctness.calls import forget, make_case
from mini_kv.correctness.rounds import seed_text
from mini_kv.correctness.subject import Subject
from mini_kv.system.seats import CandidateSeat


def confirm_invalid(
    subject: Subject, contract_seat: CandidateSeat | None, cases: Sequence[CaseResult]
) -> tuple[CaseResult, ...]:
    """Have the oracle make such cases again once the candidate's processes are gone.

    A candidate that holds a machine's memory could turn the cases that it fails into INVALID ones, which are
    counted against nobody. ``contract_seat`` is the contract worker's, where there is one; its work is
    done.
    Raises ``InternalError`` when the oracle is lost.
    """
    if not any(case.code == Code.CASE_NOT_MAKEABLE for case in cases):
        return tuple(cases)
    if contract_seat is not None:
        contract_seat.close()
    subject.seat.retire()
    return tuple(_confirmed(subject, case) if case.code == Code.CASE_NOT_MAKEABLE else case for case in cases)


def _confirmed(subject: Subject, result: CaseResult) -> CaseResult:
    case = subject.card.case(result.case_id)
    legal = case.kind is not CaseKind.ILLEGAL
    seeds = [seed_text(fixed_seed(subject.card.task_id, case.id))]
    seeds += [subject.secret_seeds[case.id]] if legal else []
    for seed in seeds:
        made = make_case(subject, case, seed, expect_values=legal)
        forget(subject, case, seed)
        if isinstance(made, Finding):
            return result
    return msgspec.structs.replace(
        result,
        status=Status.FAIL,
        code=Code.ORACLE_HINDERED,
        message="the oracle could make this case only once the candidate's processes had ended: they left it "
        "no room",
    )
