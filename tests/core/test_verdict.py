"""From stage records to axes and one exit code: only explicit evidence passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from attempt_factory import benchmark, benchmark_case, series
from mini_kv.core.errors import ExitCode
from mini_kv.core.records.benchmark import BenchmarkCase
from mini_kv.core.records.card import CaseKind
from mini_kv.core.records.correctness import CaseResult
from mini_kv.core.records.regression import Decision
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.verdict import exit_code_of, failed_checks, smallest_failure
from mini_kv.regression import Policy
from verdict_factory import (
    BUILD,
    FAULT,
    SOUND,
    TIMED,
    axes,
    axis,
    case,
    check,
    code_of,
    correctness,
    regression,
)

# ---------------------------------------------------------------------------- exit codes


def test_everything_sound_is_0() -> None:
    assert code_of() == 0
    assert code_of(gate=regression(Decision.PASS)) == 0
    assert code_of(timed=None, skipped=True) == 0


def test_no_stage_left_anything_is_not_0() -> None:
    assert code_of(None, None, None, None) == ExitCode.COMPILATION
    assert code_of(found=None, timed=None) == ExitCode.CORRECTNESS


def test_the_first_stage_that_failed_decides() -> None:
    broken = msgspec.structs.replace(BUILD, status=Status.FAIL, code="COMPILE_ERROR", message="no")
    wrong = correctness(case(status=Status.FAIL))
    unstable = benchmark(status=Status.FAIL)
    slower = regression(Decision.FAIL)
    assert code_of(broken, None, wrong, unstable, slower) == ExitCode.COMPILATION
    assert code_of(BUILD, FAULT, wrong, unstable, slower) == ExitCode.COMPILATION
    assert code_of(BUILD, None, wrong, unstable, slower) == ExitCode.CORRECTNESS
    assert code_of(BUILD, None, SOUND, unstable, slower) == ExitCode.BENCHMARK
    assert code_of(BUILD, None, SOUND, TIMED, slower) == ExitCode.REGRESSION


def test_a_fault_of_the_tool_and_an_interruption_outrank_the_stages() -> None:
    assert exit_code_of(axes(), ExitCode.INTERNAL, interrupted=False) == 70
    assert exit_code_of(axes(), ExitCode.CONFIGURATION, interrupted=False) == 2
    assert exit_code_of(axes(), ExitCode.INTERNAL, interrupted=True) == 130


def test_a_broken_contract_is_4() -> None:
    assert code_of(found=correctness(case(), checks=(check(status=Status.FAIL),))) == ExitCode.CORRECTNESS
    illegal = case("illegal", CaseKind.ILLEGAL, Status.FAIL)
    assert code_of(found=correctness(case(), illegal)) == ExitCode.CORRECTNESS


@pytest.mark.parametrize("status", [Status.FAIL, Status.ERROR, Status.UNVERIFIED])
def test_a_build_without_a_pass_is_3(status: Status) -> None:
    assert code_of(msgspec.structs.replace(BUILD, status=status)) == ExitCode.COMPILATION


# ---------------------------------------------------------------------------- axes


def test_a_stage_that_was_not_reached_is_unverified_and_never_passed() -> None:
    assert {found.name: found.status for found in axes(None, None, None, None)} == {
        "build": Status.UNVERIFIED,
        "numerics": Status.UNVERIFIED,
        "memory": Status.UNVERIFIED,
        "contract": Status.UNVERIFIED,
        "timing": Status.UNVERIFIED,
        "regression": Status.SKIPPED,
    }


def test_invalid_cases_prove_nothing_and_are_counted() -> None:
    invalid = case("bad", status=Status.INVALID)
    assert axis("numerics", found=correctness(invalid)).code == "NO_EVIDENCE"
    mixed = axis("numerics", found=correctness(case(), invalid))
    assert mixed.status is Status.PASS
    assert "1 INVALID case next to them" in str(mixed.message)


def test_no_cases_at_all_are_no_pass() -> None:
    assert axis("numerics", found=correctness()).status is Status.UNVERIFIED
    assert code_of(found=correctness()) == ExitCode.CORRECTNESS


def test_value_cases_alone_are_no_pass() -> None:
    assert axis("numerics", found=correctness(case("v", CaseKind.VALUE))).code == "NO_EVIDENCE"


def test_an_illegal_case_counts_for_the_contract_and_not_for_numerics() -> None:
    found = correctness(case(), case("illegal", CaseKind.ILLEGAL, Status.FAIL))
    assert axis("numerics", found=found).status is Status.PASS
    assert axis("contract", found=found).status is Status.FAIL


def test_skipped_checks_are_no_evidence() -> None:
    found = correctness(case(), checks=(check(status=Status.SKIPPED),))
    assert axis("contract", found=found).status is Status.SKIPPED


def failed(case_id: str, code: str) -> BenchmarkCase:
    finding = Finding(code=code, message="so it is")
    return benchmark_case(
        case_id, series(10.0), series(20.0), status=Status.FAIL, stable=False, findings=(finding,)
    )


def test_a_wrong_result_while_timed_is_4_whatever_else_failed() -> None:
    timed = benchmark(failed("a", "CRASHED"), failed("b", "TIMED_OUTPUT_WRONG"), status=Status.FAIL)
    assert axis("timing", timed=timed).code == "TIMED_OUTPUT_WRONG"
    assert code_of(timed=timed) == ExitCode.CORRECTNESS


@pytest.mark.parametrize("code", ["CRASHED", "IMPOSSIBLE_TIME", "SHORT_TRANSCRIPT", "NOT_A_TIME"])
def test_a_time_that_cannot_be_is_5(code: str) -> None:
    timed = benchmark(failed("a", code), status=Status.FAIL)
    assert axis("timing", timed=timed).code == code
    assert code_of(timed=timed) == ExitCode.BENCHMARK


def test_unstable_times_are_5_where_times_count_and_a_warning_elsewhere() -> None:
    unstable = benchmark_case("a", series(10.0), series(20.0), stable=False)
    on_gpu = benchmark(unstable, status=Status.FAIL, stable=False)
    on_cpu = benchmark(unstable, stable=False)
    assert axis("timing", timed=on_gpu).code == "UNSTABLE"
    assert code_of(timed=on_gpu) == ExitCode.BENCHMARK
    assert axis("timing", timed=on_cpu).status is Status.UNVERIFIED
    assert code_of(timed=on_cpu) == 0


@pytest.mark.parametrize(
    ("decision", "status", "code"),
    [
        (Decision.PASS, Status.PASS, 0),
        (Decision.PASS_WITH_WARNING, Status.PASS, 0),
        (Decision.SLOWER, Status.PASS, 0),
        (Decision.INCONCLUSIVE, Status.UNVERIFIED, 0),
        (Decision.INCOMPARABLE, Status.UNVERIFIED, 0),
        (Decision.NO_BASELINE, Status.UNVERIFIED, 0),
        (Decision.FAIL, Status.FAIL, 6),
    ],
)
def test_every_decision_of_the_gate_has_its_status(decision: Decision, status: Status, code: int) -> None:
    assert axis("regression", gate=regression(decision)).status is status
    assert code_of(gate=regression(decision)) == code


UNCOMPARED: tuple[tuple[tuple[Any, ...], str], ...] = (
    ((None, None, None, None), "the candidate was not built"),
    ((BUILD, FAULT, None, None), "the candidate was not loaded"),
    ((BUILD, None, None, None), "correctness was not judged"),
    ((BUILD, None, msgspec.structs.replace(SOUND, status=Status.FAIL), None), "correctness failed"),
    ((BUILD, None, msgspec.structs.replace(SOUND, status=Status.INVALID), TIMED), "correctness failed"),
    ((BUILD, None, SOUND, None), "nothing was timed"),
    ((BUILD, None, SOUND, TIMED), "the comparison did not end"),
)


@pytest.mark.parametrize(("stages", "why"), UNCOMPARED)
def test_a_baseline_that_was_not_reached_was_called_no_baseline(stages: tuple[Any, ...], why: str) -> None:
    message = f"not compared with the baseline: {why}"
    given = axis("regression", *stages, baseline_given=True)
    assert (given.status, given.code, given.message) == (Status.UNVERIFIED, "NOT_COMPARED", message)
    required = axis("regression", *stages, baseline_given=True, require_comparable=True)
    assert (required.status, required.code) == (Status.FAIL, "NOT_COMPARED")
    assert axis("regression", *stages).code == "NO_BASELINE"


def test_the_gate_s_policy_is_the_one_that_is_documented() -> None:
    assert (Policy().max_p50_slowdown, Policy().max_p95_slowdown) == (0.05, 0.10)


# ---------------------------------------------------------------------------- what to look at first


def sized(name: str, text: str, status: Status = Status.FAIL, kind: CaseKind = CaseKind.CORE) -> CaseResult:
    return case(name, kind, status, inputs=(text, "1e-06"))


def test_the_smallest_failing_input_counts_elements_whether_it_crashed_or_not() -> None:
    found = correctness(
        sized("passes", "float32[1] on cpu", Status.PASS),
        sized("large", "float32[4, 128] strides (1, 4) on cpu"),
        sized("small", "float16[3, 5] on cpu"),
        sized("invalid", "float16[1] on cpu", Status.INVALID),
        sized("refusal", "float16[1] on cpu", kind=CaseKind.ILLEGAL),
    )
    smallest = smallest_failure(found)
    assert smallest is not None
    assert smallest.case_id == "small"


def test_a_refusal_is_named_where_all_else_passed_and_nothing_where_all_did() -> None:
    refusal = sized("refusal", "float16[9] on cpu", kind=CaseKind.ILLEGAL)
    only = smallest_failure(correctness(case(), refusal))
    assert only is not None
    assert only.case_id == "refusal"
    assert smallest_failure(SOUND) is None


def test_a_scalar_and_an_empty_tensor_are_the_smallest() -> None:
    found = correctness(sized("one", "float32[1] on cpu"), sized("none", "float32[0, 7] on cpu"))
    smallest = smallest_failure(found)
    assert smallest is not None
    assert smallest.case_id == "none"


def test_failed_checks_are_those_that_were_asked_and_did_not_pass() -> None:
    found = correctness(
        checks=(check("a"), check("b", Status.FAIL), check("c", Status.SKIPPED), check("d", Status.ERROR))
    )
    assert [item.name for item in failed_checks(found)] == ["b", "d"]
