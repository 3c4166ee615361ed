"""A legal case: its rounds in turn, its results looked at again, and whether it proves anything."""

from __future__ import annotations

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.records.card import Case
from mini_kv.core.records.correctness import CaseResult, Round
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.null_candidates import judge_audits
from mini_kv.correctness.calls import Call, case_result, forget, make_case, play
from mini_kv.correctness.grading import describe_argument
from mini_kv.correctness.kept_outputs import look_again
from mini_kv.correctness.rounds import plan_rounds, wants_gradients
from mini_kv.correctness.subject import Subject
from mini_kv.system.oracle_client import MadeCase


def run_legal(subject: Subject, case: Case) -> CaseResult:
    """Run the rounds of a case up to the first that fails; one that a null candidate passes is INVALID."""
    dtype = case.params.get("dtype")
    if isinstance(dtype, str) and dtype not in subject.manifest.dtypes:
        finding = Finding(
            code=Code.DTYPE_NOT_CLAIMED,
            message=f"the card demands {dtype}; the candidate's manifest claims only "
            f"{', '.join(subject.manifest.dtypes)}",
        )
        return case_result(subject, case, Status.FAIL, finding)
    rounds: list[Round] = []
    made_by_seed: dict[str, MadeCase] = {}
    secret_seed = subject.secret_seeds[case.id]
    gradients = wants_gradients(subject.card, subject.manifest, case)
    for plan in plan_rounds(subject.card, subject.manifest, case, secret_seed):
        known = made_by_seed.get(plan.seed)
        made = known or make_case(
            subject,
            case,
            plan.seed,
            expect_values=True,
            expect_gradients=gradients and plan.seed == secret_seed,
        )
        if isinstance(made, Finding):
            return case_result(subject, case, Status.INVALID, made, rounds=rounds)
        made_by_seed[plan.seed] = made
        if not plan.expected(made.reply):
            continue  # a reference without gradients, or none that are within tolerance themselves
        rounds.append(play(subject, Call(case=case, plan=plan, made=made, before=rounds)))
        if rounds[-1].status is not Status.PASS:
            break
    rounds = look_again(subject.seat, case, rounds, subject.timeout_s)
    last = rounds[-1]
    audits = (
        [subject.oracle.audit(f"{case.id}/{seed}") for seed in made_by_seed]
        if last.status is Status.PASS
        else []
    )
    for seed in made_by_seed:
        forget(subject, case, seed)
    described = tuple(map(describe_argument, next(iter(made_by_seed.values())).reply.arguments))
    if audits:
        proves, degenerate = judge_audits(audits)
        status = Status.PASS if degenerate is None else Status.INVALID
        passed = case_result(subject, case, status, degenerate, rounds=rounds, inputs=described)
        return msgspec.structs.replace(passed, proves=proves)
    reason = last.findings[0] if last.findings else None
    return case_result(subject, case, last.status, reason, rounds=rounds, inputs=described)
