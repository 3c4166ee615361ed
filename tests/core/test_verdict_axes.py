"""What each axis says of a run: every way in which one passed on too little, by its name."""

from __future__ import annotations

import msgspec
import pytest

from attempt_factory import benchmark, benchmark_case, series
from mini_kv.core.errors import ExitCode
from mini_kv.core.records.card import CaseKind
from mini_kv.core.records.isolation import Isolation, IsolationLevel, MissingFeature
from mini_kv.core.records.pairs import PairLoss, PairSet
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.verdict import caught_in_pairs, isolation_axis
from verdict_factory import axis, case, check, code_of, correctness


def test_one_call_that_crashed_left_memory_intact() -> None:
    """Only a second crash was told, although a write past a result ends a process in the first."""
    crashed = case("crash", status=Status.FAIL, code="CRASHED", rounds=())
    for dead, told in ((1, "1 call ended the process"), (2, "2 calls ended the process")):
        found = axis("memory", found=correctness(case(), *[crashed] * dead))
        assert (found.status, found.code, told in str(found.message)) == (Status.UNVERIFIED, "CRASHED", True)


def test_memory_passed_though_no_call_returned() -> None:
    raised = msgspec.structs.replace(case().rounds[0], outputs=(), status=Status.FAIL)
    found = correctness(case(status=Status.FAIL, rounds=(raised,)), case("b", rounds=()))
    memory = axis("memory", found=found)
    assert (memory.status, memory.code, memory.message) == (
        Status.UNVERIFIED,
        "NO_EVIDENCE",
        "no call returned",
    )
    refusal = case("illegal", CaseKind.ILLEGAL)
    assert axis("memory", found=correctness(refusal)).code == "NO_EVIDENCE"
    one = axis("memory", found=correctness(case(), case("b", rounds=(raised,)), refusal))
    assert (one.status, one.message) == (
        Status.PASS,
        "inputs, guard zones and fill patterns intact in 1 cases",
    )


@pytest.mark.parametrize("unasked", [1, 2])
def test_the_contract_passed_with_one_check_not_asked(unasked: int) -> None:
    lost = msgspec.structs.replace(check(status=Status.UNVERIFIED), code="ABANDONED", message="hung up")
    found = correctness(case(), checks=(check("opcheck"), *[lost] * unasked))
    contract = axis("contract", found=found)
    assert (contract.status, contract.code) == (Status.UNVERIFIED, "ABANDONED")
    assert contract.message == f"{unasked} of {unasked + 1} checks were not made: hung up"
    assert code_of(found=found) == ExitCode.CORRECTNESS


@pytest.mark.parametrize(
    ("trusts", "code", "said"),
    [
        (("verified", "verified"), None, "2 cases stable, times verified"),
        (("verified", "bounded"), None, "2 cases stable, times bounded"),
        (("verified", "unverified"), "TIME_UNVERIFIED", "no clock outside"),
        (("unverified", "bounded"), "TIME_UNVERIFIED", "no clock outside"),
        (("unverified", "unverified"), "TIME_UNVERIFIED", "no clock outside"),
    ],
)
def test_times_were_verified_next_to_a_case_that_no_clock_bounds(
    trusts: tuple[str, str], code: str | None, said: str
) -> None:
    cases = [benchmark_case(trust, series(10.0), series(20.0), timing_trust=trust) for trust in trusts]
    timing = axis("timing", timed=benchmark(*cases))
    assert (timing.status, timing.code) == (Status.UNVERIFIED if code else Status.PASS, code)
    assert said in str(timing.message)


@pytest.mark.parametrize(
    ("level", "status"),
    [
        (IsolationLevel.NONE, Status.UNVERIFIED),
        (IsolationLevel.PROCESS, Status.UNVERIFIED),
        (IsolationLevel.RESTRICTED, Status.UNVERIFIED),
        (IsolationLevel.CONFINED, Status.PASS),
        (IsolationLevel.ISOLATED, Status.PASS),
    ],
)
def test_a_cage_that_reads_archives_and_home_was_shown_as_a_pass(
    level: IsolationLevel, status: Status
) -> None:
    missing = (MissingFeature(name="own_user", reason="no newuidmap"),)
    found = isolation_axis(Isolation(level=level, features=(), missing=missing))
    assert (found.name, found.status) == ("isolation", status)
    assert found.code == (None if status is Status.PASS else "WEAK_ISOLATION")
    assert str(found.message).startswith(f"{level.value}: ")
    assert str(found.message).endswith("; no own_user (no newuidmap)")


def loss(label: str, code: str) -> PairLoss:
    return PairLoss(case_id="large", pair=0, label=label, finding=Finding(code=code, message="so it is"))


def pair_set(*losses: PairLoss) -> PairSet:
    return PairSet(
        schema_version="1.0.0",
        label_a="baseline",
        label_b="candidate",
        pairs=5,
        results=(),
        losses=losses,
        elapsed_s=1.0,
    )


def test_the_baselines_wrong_result_in_a_pair_failed_the_candidate() -> None:
    fault = loss("baseline", "TIMED_OUTPUT_WRONG")
    assert caught_in_pairs((pair_set(fault), pair_set(fault)), "candidate") == ()
    assert caught_in_pairs((None, pair_set(fault)), "baseline") == (fault,)


def test_what_the_candidate_did_wrong_in_a_pair_is_its_own_and_more_than_a_missing_time() -> None:
    own, other = loss("candidate", "TIMED_OUTPUT_WRONG"), loss("candidate", "REPEATED_INPUTS_FASTER")
    late = loss("candidate", "CRASHED")
    sets = (pair_set(late, own, loss("baseline", "LIBRARY_CALL")), None, pair_set(other))
    assert caught_in_pairs(sets, "candidate") == (own, other)
    timing = axis("timing", caught=(own,))
    assert (timing.status, timing.code) == (Status.FAIL, "TIMED_OUTPUT_WRONG")
    assert timing.message == "'large': so it is"
    assert code_of(caught=(own,)) == ExitCode.CORRECTNESS
    assert code_of(caught=(other,)) == ExitCode.INTEGRITY
