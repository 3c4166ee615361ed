"""The whole pipeline over fake workers: each way a run can end, its exit code and its archive."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import mini_kv
from fake_project import FakeProject, fake_project, press_ctrl_c_when
from fake_worker import doubled, inputs_of
from mini_kv import benchmark, compiler, correctness, pipeline
from mini_kv.artifacts import promote_baseline, read_index
from mini_kv.core import protocol as p
from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.record import from_json
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.correctness import CaseResult, Correctness
from mini_kv.core.records.regression import Decision
from mini_kv.core.records.results import Status
from mini_kv.pipeline import Verdict
from mini_kv.run import run_inputs
from mini_kv.system.modules import import_path
from mini_kv.system.processes import children
from mini_kv.system.workers import Nursery, Worker
from verdict_facts import SLOWER, WRONG, assert_archived, axis, baseline_of, codes

__all__ = ["fake_project"]

CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"


def case(verdict: Verdict, case_id: str) -> CaseResult:
    assert verdict.correctness is not None
    return next(case for case in verdict.correctness.cases if case.case_id == case_id)


@pytest.fixture(autouse=True)
def _no_process_stays(tmp_path: Path) -> Any:
    before = set(children(os.getpid()))
    yield
    assert set(children(os.getpid())) <= before
    assert not list(tmp_path.rglob("*.partial"))


def test_a_sound_candidate_is_accepted_and_archived(fake_project: FakeProject) -> None:
    verdict = fake_project.verify()
    attempt = assert_archived(verdict)
    assert (attempt.exit_code, attempt.accepted, attempt.complete) == (0, True, True), attempt.findings
    assert [case.status for case in verdict.correctness.cases] == [Status.PASS] * 6
    assert attempt.geomean_speedup == pytest.approx(2.0, rel=0.01)
    assert attempt.benchmark_stable is True
    assert {"compile.json", "correctness.json", "benchmark.json"} <= {file.path for file in attempt.files}
    assert from_json((verdict.folder / "correctness.json").read_bytes(), Correctness) == verdict.correctness
    assert from_json((verdict.folder / "benchmark.json").read_bytes(), Benchmark) == verdict.benchmark
    rows, _ = read_index(fake_project.root / "artifacts")
    assert [row.attempt_id for row in rows] == [attempt.attempt_id]


def test_a_skipped_benchmark_is_accepted_but_not_complete(fake_project: FakeProject) -> None:
    verdict = fake_project.verify(skip_benchmark=True)
    assert (verdict.attempt.exit_code, verdict.attempt.complete) == (0, False)
    assert axis(verdict, "timing") == (Status.SKIPPED, "SKIPPED")
    assert verdict.benchmark is None


def test_secret_seeds_differ_between_runs_and_are_archived(fake_project: FakeProject) -> None:
    one, two = (fake_project.verify(skip_benchmark=True).attempt.secret_seeds for _ in range(2))
    assert set(one) == {"core_3", "core_4", "core_5", "timed_a", "timed_b"}
    assert not set(one.values()) & set(two.values())


# ---------------------------------------------------------------------------- 2


def test_a_reference_that_cannot_be_imported_is_a_configuration_error_and_archived(
    fake_project: FakeProject,
) -> None:
    verdict = fake_project.verify(
        {"oracle/load_reference": "reply = p.Failed(code='ModuleNotFoundError', message='no module nowhere')"}
    )
    attempt = assert_archived(verdict)
    assert attempt.exit_code == ExitCode.CONFIGURATION
    assert codes(verdict) == ["REFERENCE_NOT_IMPORTABLE"]
    assert "no module nowhere" in attempt.findings[0].message


def test_a_device_that_cannot_be_opened_is_a_configuration_error(fake_project: FakeProject) -> None:
    for place in ("oracle/hello", "candidate/hello"):
        verdict = fake_project.verify({place: "reply = p.Failed(code='RuntimeError', message='no CUDA')"})
        assert (verdict.attempt.exit_code, codes(verdict)) == (2, ["DEVICE_UNUSABLE"]), place


def test_cuda_without_a_gpu_is_refused_before_anything_runs(
    fake_project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = run_inputs.read_gpus(os.environ)
    monkeypatch.setattr(run_inputs, "read_gpus", lambda _: msgspec.structs.replace(gpus, gpus=()))
    with pytest.raises(ConfigurationError) as caught:
        fake_project.verify(device="cuda")
    assert caught.value.code == "GPU_MISSING"
    assert "--device cpu" in caught.value.message
    assert not (fake_project.root / "artifacts").exists()


def test_auto_falls_back_to_the_cpu_where_no_gpu_is(
    fake_project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = run_inputs.read_gpus(os.environ)
    monkeypatch.setattr(run_inputs, "read_gpus", lambda _: msgspec.structs.replace(gpus, gpus=()))
    assert fake_project.verify(device="auto", skip_benchmark=True).attempt.device == "cpu"


def test_an_artifacts_folder_that_cannot_be_written_is_one_sentence(fake_project: FakeProject) -> None:
    blocked = fake_project.root / "blocked"
    blocked.write_text("a file where the folder should be")
    with pytest.raises(ConfigurationError) as caught:
        fake_project.verify(artifacts_root=blocked)
    assert caught.value.code == "ARTIFACTS_UNWRITABLE"
    assert "\n" not in caught.value.message


# ---------------------------------------------------------------------------- 3


def test_a_failed_build_ends_the_run_with_3(fake_project: FakeProject) -> None:
    fake_project.build_changes = {
        "status": Status.FAIL,
        "code": "COMPILE_ERROR",
        "message": "op.cpp does not compile",
        "library": None,
        "library_sha256": None,
    }
    verdict = fake_project.verify()
    assert assert_archived(verdict).exit_code == ExitCode.COMPILATION
    assert axis(verdict, "build") == (Status.FAIL, "COMPILE_ERROR")
    assert axis(verdict, "numerics") == (Status.UNVERIFIED, "NOT_REACHED")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("os._exit(0)", "LOAD_EXITED"),
        (CRASH, "LOAD_CRASHED"),
        ("wire.raw(bytes(64)); time.sleep(60)", "LOAD_PROTOCOL_VIOLATION"),
        (
            "reply = p.Failed(code='LIBRARY_DOES_NOT_LOAD', message='x: undefined symbol: y')",
            "LIBRARY_DOES_NOT_LOAD",
        ),
        ("reply = p.Done()", "PROTOCOL_VIOLATION"),
        ("reply = change(reply, kernels={'Meta': True})", "NOT_REGISTERED_FOR_DEVICE"),
        ("reply = change(reply, kernels={'CPU': True})", "NO_FAKE_KERNEL"),
        (
            "reply = change(reply, schema='fixture_double::double(Tensor x, int n) -> Tensor')",
            "SCHEMA_DIFFERS",
        ),
    ],
    ids=["exit-0", "crash", "forged", "undefined-symbol", "another-answer", "no-cpu", "no-meta", "schema"],
)
def test_a_library_that_cannot_be_used_ends_the_run_with_3(
    fake_project: FakeProject, fault: str, code: str
) -> None:
    verdict = fake_project.verify({"candidate/load_candidate": fault})
    assert assert_archived(verdict).exit_code == ExitCode.COMPILATION
    assert axis(verdict, "build") == (Status.FAIL, code)
    assert codes(verdict) == [code]
    assert verdict.correctness is None


def test_a_library_that_only_the_contract_worker_cannot_open_is_a_failed_check(
    fake_project: FakeProject,
) -> None:
    verdict = fake_project.verify(
        {"candidate/load_candidate": f"if state['role'] == 'contract': {CRASH}"}, skip_benchmark=True
    )
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    assert axis(verdict, "numerics")[0] is Status.PASS
    assert axis(verdict, "contract")[0] is Status.FAIL


# ---------------------------------------------------------------------------- 4


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (WRONG, "WRONG_VALUES"),
        (CRASH, "CRASHED"),
        ("os._exit(0)", "EXITED"),
        ("time.sleep(60)", "TIMEOUT"),
        ("reply = change(reply, outputs=())", "WRONG_OUTPUT_COUNT"),
        ("reply = change(reply, outputs=(change(reply.outputs[0], shape=(2, 2)),))", "WRONG_SHAPE"),
        ("reply = change(reply, outputs=(change(reply.outputs[0], dtype='float64'),))", "WRONG_DTYPE"),
        ("reply = change(reply, outputs=(change(reply.outputs[0], strides=(2,)),))", "WRONG_STRIDES"),
        (
            "reply = change(reply, outputs=(change(reply.outputs[0], device='meta', blob=None),))",
            "WRONG_DEVICE",
        ),
        ("reply = change(reply, outputs=(change(reply.outputs[0], aliases_input=0),))", "ALIASES_INPUT"),
        ("reply = change(reply, outputs=(change(reply.outputs[0], blob=7),))", "PROTOCOL_VIOLATION"),
        ("payloads = [payloads[0], bytes(len(payloads[1])), payloads[2]]", "INPUT_MUTATED"),
        ("reply = change(reply, input_blobs=())", "INPUTS_NOT_RETURNED"),
        ("reply = change(reply, guard_blobs=())", "GUARDS_NOT_RETURNED"),
        ("payloads[2] = payloads[2][:-1] + b'x'", "OUT_OF_BOUNDS_WRITE"),
        ("reply = change(reply, stray_writes=1)", "OUT_OF_BOUNDS_WRITE"),
        ("payloads = [payloads[0][:4], *payloads[1:]]", "NOT_COMPARABLE"),
        ("reply = p.Raised(types=('ValueError',), message='no', device_lost=False); payloads = []", "RAISED"),
        (
            "reply = p.Raised(types=('RuntimeError',), message='lost', device_lost=True); payloads = []",
            "RAISED",
        ),
        ("reply = p.Failed(code='TypeError', message='not me'); payloads = []", "WORKER_FAILED"),
        ("reply = p.Done(); payloads = []", "PROTOCOL_VIOLATION"),
        ("payloads = [*payloads, bytes(65 << 20)]", "PROTOCOL_VIOLATION"),
        ("if request.poison == 0x5A: payloads = [bytes(16), *payloads[1:]]", "NOT_DETERMINISTIC"),
    ],
    ids=lambda value: value if value.isupper() else "",
)
def test_a_fault_in_one_case_fails_that_case_alone(fake_project: FakeProject, fault: str, code: str) -> None:
    verdict = fake_project.verify({"candidate/run_case/core_4": fault}, timeout_s=2.0)
    assert assert_archived(verdict).exit_code == ExitCode.CORRECTNESS
    failed = case(verdict, "core_4")
    found = [finding.code for entry in failed.rounds for finding in entry.findings]
    assert failed.status is Status.FAIL
    assert code in found, (failed.code, found)
    others = [case for case in verdict.correctness.cases if case.case_id != "core_4"]
    assert [case.status for case in others] == [Status.PASS] * 5
    assert axis(verdict, "contract")[0] is Status.PASS
    assert verdict.benchmark is None


def test_the_wrong_one_of_two_outputs_is_named_with_its_own_dtype(fake_project: FakeProject) -> None:
    faults = {
        "oracle/make_case/core_4": "first = reply.expected[0]; "
        "reply = change(reply, expected=(first, change(first, dtype='int32')))",
        "oracle/compare/core_4": "from mini_kv.core.records.correctness import Mismatch; "
        "reply = change(reply, numerics=change(reply.numerics, mismatch_count=1, "
        "first_mismatches=(Mismatch(output=1, index=(2,), expected='5', actual='0'),)))",
        "candidate/run_case/core_4": "first = reply.outputs[0]; payloads = [*payloads, bytes(16)]; "
        "reply = change(reply, outputs=(first, change(first, dtype='int32', blob=3)))",
    }
    failed = case(fake_project.verify(faults, skip_benchmark=True), "core_4")
    assert failed.code == "WRONG_VALUES"
    assert failed.message == (
        "1 of 4 elements are wrong; the first at [2] of output 1: expected 5, got 0 (int32: exact)"
    )


def test_a_call_that_hangs_is_not_waited_for_a_second_time(fake_project: FakeProject) -> None:
    """The traced call of the same case hung in the contract worker too, for two minutes."""
    hang = "time.sleep(100)"
    faults = {"candidate/run_case/core_4": hang, "candidate/trace_calls": hang}
    began = time.monotonic()
    verdict = fake_project.verify(faults, timeout_s=1.0)
    assert time.monotonic() - began < 20.0
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    assert case(verdict, "core_4").code == "TIMEOUT"
    unasked = [check for check in verdict.correctness.contract if check.code == "ABANDONED"]
    assert unasked and {check.status for check in unasked} == {Status.UNVERIFIED}
    # The judge hung up: that is no failed check.
    assert axis(verdict, "contract") == (Status.UNVERIFIED, "ABANDONED")


def test_values_that_are_wrong_with_the_secret_seed_only_are_found(fake_project: FakeProject) -> None:
    fault = f"state['calls'] = state.get('calls', 0) + 1\nif state['calls'] == 3: {WRONG}"
    verdict = fake_project.verify({"candidate/run_case/core_4": fault})
    assert case(verdict, "core_4").code == "WRONG_VALUES"
    assert [entry.name for entry in case(verdict, "core_4").rounds] == ["fixed", "repeat", "secret"]
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (
            "reply = p.Ran(outputs=(), input_blobs=(), guard_blobs=(), stray_writes=0)",
            "ILLEGAL_INPUT_ACCEPTED",
        ),
        ("reply = change(reply, message='something else')", "WRONG_MESSAGE"),
        ("reply = change(reply, message='')", "WRONG_MESSAGE"),
        ("reply = change(reply, types=('ValueError', 'Exception'))", "WRONG_EXCEPTION"),
        (CRASH, "CRASHED"),
        ("reply = change(reply, device_lost=True)", "DEVICE_LOST"),
    ],
    ids=["accepted", "message", "no-message", "exception", "crash", "device-lost"],
)
def test_an_illegal_input_must_be_refused_as_the_card_says(
    fake_project: FakeProject, fault: str, code: str
) -> None:
    verdict = fake_project.verify({"candidate/run_case/illegal_odd": fault}, skip_benchmark=True)
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    assert (case(verdict, "illegal_odd").status, case(verdict, "illegal_odd").code) == (Status.FAIL, code)
    assert axis(verdict, "numerics")[0] is Status.PASS
    assert axis(verdict, "contract") == (Status.FAIL, code)


def test_a_process_that_a_refusal_spoiled_is_found(fake_project: FakeProject) -> None:
    spoil = {
        "candidate/run_case/illegal_odd": "state['spoiled'] = True",
        "candidate/run_case/core_3": f"if state.get('spoiled'): {WRONG}",
    }
    verdict = fake_project.verify(spoil, skip_benchmark=True)
    assert case(verdict, "core_3").status is Status.PASS
    assert case(verdict, "illegal_odd").code == "UNUSABLE_AFTER_ILLEGAL"


def test_a_refusal_is_not_blamed_for_a_core_case_that_failed_before_it(fake_project: FakeProject) -> None:
    verdict = fake_project.verify({"candidate/run_case/core_3": WRONG}, skip_benchmark=True)
    assert case(verdict, "core_3").status is Status.FAIL
    assert case(verdict, "illegal_odd").status is Status.PASS


def test_a_third_worker_imports_only_for_what_is_judged_there(fake_project: FakeProject) -> None:
    """A worker in which nothing was judged cost every run a third of its CPU time."""
    fake_project.edit("tasks/double.yaml", "opcheck: true", "opcheck: false")
    lean = fake_project.verify(skip_benchmark=True)
    assert (lean.attempt.exit_code, lean.correctness.workers_started) == (0, 1)
    assert fake_project.verify().correctness.workers_started == 1
    fake_project.edit("tasks/double.yaml", "opcheck: false", "opcheck: false, allow_workspace: false")
    judged = fake_project.verify(skip_benchmark=True)
    assert judged.correctness.workers_started == 2
    assert "policies" in [check.name for check in judged.correctness.contract]


def test_times_are_taken_in_a_worker_that_was_not_traced_yet(fake_project: FakeProject) -> None:
    fake_project.edit("tasks/double.yaml", "opcheck: true", "opcheck: false")
    too_early = "reply = p.Failed(code='TRACED', message='a traced worker is timed')"
    traced = {"candidate/trace_calls": "state['traced'] = True"}
    timed = {
        f"candidate/{tag}": f"if state.get('traced'): {too_early}" for tag in ("time_batch", "run_repeats")
    }
    verdict = fake_project.verify(traced | timed)
    assert verdict.benchmark.status is Status.PASS


def test_a_candidate_that_crashed_is_not_made_to_crash_again_for_a_trace(fake_project: FakeProject) -> None:
    fake_project.edit("tasks/double.yaml", "opcheck: true", "opcheck: false")
    lost = fake_project.verify({"candidate/run_case/core_4": CRASH}, skip_benchmark=True)
    assert_archived(lost)
    assert (lost.correctness.trace, lost.correctness.workers_lost) == (None, 1)
    assert axis(lost, "numerics") == (Status.FAIL, "CRASHED")


def test_every_case_may_crash_and_the_run_still_ends(fake_project: FakeProject) -> None:
    verdict = fake_project.verify({"candidate/run_case": CRASH}, skip_benchmark=True)
    assert_archived(verdict)
    assert [case.code for case in verdict.correctness.cases] == ["CRASHED"] * 6
    assert verdict.correctness.workers_lost == 6


# ---------------------------------------------------------------------------- contract answers


@pytest.mark.parametrize(
    ("fault", "name", "code"),
    [
        ("reply = p.ContractAnswer(results={})", "opcheck.test_schema", "UNANSWERED"),
        ("reply.results.pop('opcheck.test_faketensor')", "opcheck.test_faketensor", "UNANSWERED"),
        ("reply.results['opcheck.test_schema'] = 'no'", "opcheck.test_schema", "OPCHECK_TEST_SCHEMA"),
        ("reply = p.Failed(code='KeyError', message='opcheck')", "opcheck", "CHECK_FAILED_TO_RUN"),
        ("reply = p.Done()", "opcheck", "CHECK_FAILED_TO_RUN"),
        (CRASH, "opcheck", "CRASHED"),
    ],
    ids=["nothing", "short", "broken", "failed", "another-answer", "crash"],
)
def test_a_contract_check_passes_only_when_it_is_answered_whole(
    fake_project: FakeProject, fault: str, name: str, code: str
) -> None:
    source = f"if request.check == 'opcheck': {fault}"
    verdict = fake_project.verify({"candidate/check_contract": source}, skip_benchmark=True)
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    checks = {check.name: check for check in verdict.correctness.contract}
    assert (checks[name].status, checks[name].code) == (Status.FAIL, code)
    assert checks["dynamic_shapes"].status is Status.PASS
    assert axis(verdict, "numerics")[0] is Status.PASS


# ---------------------------------------------------------------------------- the card's fault


def test_a_reference_that_raises_makes_its_case_invalid_and_no_other(fake_project: FakeProject) -> None:
    fault = "reply = p.Failed(code='ValueError', message='cannot'); payloads = []"
    verdict = fake_project.verify({"oracle/make_case/core_4": fault}, skip_benchmark=True)
    assert (case(verdict, "core_4").status, case(verdict, "core_4").code) == (
        Status.INVALID,
        "CASE_NOT_MAKEABLE",
    )
    assert verdict.attempt.exit_code == 0
    numerics = next(axis for axis in verdict.attempt.axes if axis.name == "numerics")
    assert "1 INVALID case next to them" in str(numerics.message)


def test_a_case_that_can_be_made_once_the_candidate_is_gone_is_no_fault_of_the_card(
    fake_project: FakeProject,
) -> None:
    """A candidate that held all memory made the cases that it fails INVALID, and was accepted."""
    no_room = "state['asked'] = state.get('asked', 0) + 1\n"
    # Not while the contract's samples are taken, nor when the case is made again at the end.
    no_room += (
        "if state['asked'] == 2: reply = p.Failed(code='OutOfMemoryError', message='CUDA out of memory')"
    )
    verdict = fake_project.verify({"oracle/make_case/core_4": no_room})
    assert case(verdict, "core_4").status is Status.FAIL
    assert case(verdict, "core_4").code == "ORACLE_HINDERED"
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS


def test_a_reference_outside_the_cards_own_tolerance_makes_its_case_invalid(
    fake_project: FakeProject,
) -> None:
    fault = "reply = change(reply, reference_within_tolerance=False)"
    verdict = fake_project.verify({"oracle/make_case/core_4": fault}, skip_benchmark=True)
    assert case(verdict, "core_4").status is Status.INVALID
    assert case(verdict, "core_4").code == "REFERENCE_OUTSIDE_TOLERANCE"


@pytest.mark.parametrize(
    "expected", ["()", "(change(reply.expected[0], dtype='complex64'),)"], ids=["nothing", "complex"]
)
def test_a_reference_that_returns_what_cannot_be_judged_is_the_cards_fault(
    fake_project: FakeProject, expected: str
) -> None:
    fault = f"if request.expect_values: reply = change(reply, expected={expected})"
    verdict = fake_project.verify({"oracle/make_case/core_4": fault}, skip_benchmark=True)
    assert case(verdict, "core_4").code == "CASE_NOT_MAKEABLE"
    assert verdict.attempt.exit_code == 0


def test_a_card_whose_core_cases_are_all_invalid_proves_nothing(fake_project: FakeProject) -> None:
    fault = "reply = change(reply, reference_within_tolerance=False)"
    faults = {f"oracle/make_case/core_{n}": fault for n in (3, 4, 5)}
    verdict = fake_project.verify(faults, skip_benchmark=True)
    assert axis(verdict, "numerics") == (Status.UNVERIFIED, "NO_EVIDENCE")
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS


def test_a_case_that_a_null_candidate_passes_is_invalid_and_gives_no_evidence(
    fake_project: FakeProject,
) -> None:
    passes = "reply = p.CaseAudited(element_count=4, passed=('zeros',))"
    verdict = fake_project.verify({"oracle/audit_case/core_4": passes}, skip_benchmark=True)
    found = case(verdict, "core_4")
    assert (found.status, found.code, found.proves) == (Status.INVALID, "NULL_PASSES", "nothing")
    assert "zeros would pass too" in (found.message or "")
    assert case(verdict, "core_3").proves == "values" and case(verdict, "illegal_odd").proves == "refusal"
    assert verdict.attempt.exit_code == 0
    numerics = next(axis for axis in verdict.attempt.axes if axis.name == "numerics")
    assert "1 INVALID case next to them" in (numerics.message or "")


def test_a_card_whose_every_case_a_null_passes_gives_no_verdict(fake_project: FakeProject) -> None:
    passes = "reply = p.CaseAudited(element_count=4, passed=('zeros',))"
    verdict = fake_project.verify({"oracle/audit_case": passes}, skip_benchmark=True)
    assert axis(verdict, "numerics") == (Status.UNVERIFIED, "NO_EVIDENCE")
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS


def test_a_degenerate_case_excuses_no_failure(fake_project: FakeProject) -> None:
    passes = "reply = p.CaseAudited(element_count=4, passed=('zeros',))"
    verdict = fake_project.verify({"oracle/audit_case": passes, "candidate/run_case/core_4": CRASH})
    assert case(verdict, "core_4").status is Status.FAIL


def test_an_empty_case_proves_form_only(fake_project: FakeProject) -> None:
    empty = "reply = p.CaseAudited(element_count=0, passed=('zeros', 'input 0'))"
    verdict = fake_project.verify({"oracle/audit_case/core_5": empty}, skip_benchmark=True)
    assert (case(verdict, "core_5").status, case(verdict, "core_5").proves) == (Status.PASS, "form")


# ---------------------------------------------------------------------------- 5 and wrong while timed


@pytest.mark.parametrize(
    ("place", "fault", "code"),
    [
        ("time_batch", CRASH, "CRASHED"),
        ("prepare_timing", CRASH, "CRASHED"),
        ("prepare_timing", "reply = p.Failed(code='RuntimeError', message='no memory')", "NOT_TIMED"),
        ("time_batch", "reply = p.Failed(code='RuntimeError', message='no')", "NOT_TIMED"),
        ("time_batch", "reply = change(reply, samples_us=reply.samples_us[1:])", "SHORT_TRANSCRIPT"),
        ("time_batch", "reply = change(reply, kept=())", "SHORT_TRANSCRIPT"),
        ("time_batch", "reply = change(reply, kept=(5,))", "SHORT_TRANSCRIPT"),
        ("time_batch", "reply = change(reply, kept=(10 ** 30,))", "SHORT_TRANSCRIPT"),
        ("time_batch", "reply = change(reply, kept=(-1,))", "SHORT_TRANSCRIPT"),
        ("time_batch", "reply = change(reply, calls_per_sample=0)", "SHORT_TRANSCRIPT"),
        ("time_batch", "reply = change(reply, calls_per_sample=10 ** 30)", "SHORT_TRANSCRIPT"),
        (
            "time_batch",
            "reply = change(reply, calls_per_sample=reply.calls_per_sample + state['count'])",
            "SHORT_TRANSCRIPT",
        ),
        ("time_batch", "reply = change(reply, samples_us=(-1.0,) * 5)", "NOT_A_TIME"),
        ("time_batch", "reply = change(reply, samples_us=(0.0,) * 5)", "NOT_A_TIME"),
        ("time_batch", "reply = change(reply, samples_us=(1e-320,) * 5)", "NOT_A_TIME"),
        ("time_batch", "reply = change(reply, samples_us=(1e300,) * 5)", "NOT_A_TIME"),
        ("time_batch", "reply = change(reply, launch_exposed=tuple(range(50)))", "NOT_A_TIME"),
        ("fetch_timed_output", CRASH, "CRASHED"),
        ("fetch_timed_output", "reply = p.Done(); payloads = []", "NOT_TIMED"),
        ("fetch_timed_output", "payloads = [bytes(2 << 20)]", "PROTOCOL_VIOLATION"),
    ],
)
def test_a_candidate_that_cannot_be_timed_ends_with_5(
    fake_project: FakeProject, place: str, fault: str, code: str
) -> None:
    verdict = fake_project.verify({f"candidate/{place}/timed_a": fault})
    assert assert_archived(verdict).exit_code == ExitCode.BENCHMARK
    assert axis(verdict, "timing") == (Status.FAIL, code)
    first, second = verdict.benchmark.cases
    assert (first.status, first.stable) == (Status.FAIL, False)
    # A worker that was lost is replaced: the other case is timed all the same.
    assert (second.case_id, second.status) == ("timed_b", Status.PASS)
    assert verdict.attempt.geomean_speedup is None or first.speedup is not None


def test_a_timed_case_that_the_card_cannot_make_is_no_fault_of_the_tool(fake_project: FakeProject) -> None:
    fault = (
        "if request.key.startswith('timed/'): "
        "reply = p.Failed(code='ValueError', message='cannot'); payloads = []"
    )
    verdict = fake_project.verify({"oracle/make_case": fault})
    assert verdict.attempt.exit_code == ExitCode.BENCHMARK
    assert axis(verdict, "timing") == (Status.FAIL, "CASE_NOT_MAKEABLE")


@pytest.mark.parametrize(
    "fault",
    [
        "payloads = [bytes(len(payloads[0]))]",
        "payloads = [payloads[0][:-4]]",
        "reply = change(reply, outputs=())",
        "reply = change(reply, outputs=(change(reply.outputs[0], dtype='float16'),))",
        "reply = change(reply, outputs=(change(reply.outputs[0], blob=9),))",
        "reply = change(reply, outputs=(change(reply.outputs[0], blob=None),))",
    ],
    ids=["values", "short", "nothing", "dtype", "missing-blob", "no-blob"],
)
def test_a_result_that_is_wrong_while_timed_ends_with_4(fake_project: FakeProject, fault: str) -> None:
    verdict = fake_project.verify({"candidate/fetch_timed_output/timed_b": fault})
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    assert axis(verdict, "timing") == (Status.FAIL, "TIMED_OUTPUT_WRONG")


def test_a_wrong_timed_result_outweighs_an_earlier_crash(fake_project: FakeProject) -> None:
    verdict = fake_project.verify(
        {
            "candidate/time_batch/timed_a": CRASH,
            "candidate/fetch_timed_output/timed_b": "payloads = [bytes(len(payloads[0]))]",
        }
    )
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS


def test_unstable_times_are_a_warning_on_the_cpu(fake_project: FakeProject) -> None:
    fault = "reply = change(reply, samples_us=tuple(s * state['count'] for s in reply.samples_us))"
    verdict = fake_project.verify({"candidate/time_batch": fault})
    assert verdict.attempt.exit_code == 0
    assert verdict.attempt.benchmark_stable is False
    assert axis(verdict, "timing") == (Status.UNVERIFIED, "UNSTABLE_ON_CPU")


# ---------------------------------------------------------------------------- 6 and baselines


def test_equal_times_pass_the_gate(fake_project: FakeProject) -> None:
    verdict = fake_project.verify(baseline=baseline_of(fake_project))
    assert verdict.attempt.exit_code == 0
    assert verdict.regression is not None
    assert verdict.regression.decision is Decision.PASS
    assert axis(verdict, "regression")[0] is Status.PASS
    assert_archived(verdict)


def test_a_confirmed_slowdown_ends_with_6(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    verdict = fake_project.verify({"candidate/time_batch": SLOWER}, baseline=baseline, pairs=0)
    attempt = assert_archived(verdict)
    assert attempt.exit_code == ExitCode.REGRESSION
    assert verdict.regression is not None
    assert verdict.regression.decision is Decision.FAIL
    assert "confirmation_benchmark.json" in {file.path for file in attempt.files}


def test_a_slowdown_that_the_second_batch_does_not_show_is_a_warning(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    # Only the first batch's process has run the cases before.
    faults = {
        "candidate/run_case": "state['first'] = True",
        "candidate/time_batch": f"if state.get('first'): {SLOWER}",
    }
    verdict = fake_project.verify(faults, baseline=baseline, pairs=0)
    assert verdict.regression is not None
    assert verdict.regression.decision is Decision.PASS_WITH_WARNING
    assert verdict.attempt.exit_code == 0


def test_another_suite_is_incomparable_and_that_is_no_pass(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    fake_project.edit("tasks/double.yaml", "rtol: 1.0e-6", "rtol: 2.0e-6")
    verdict = fake_project.verify(baseline=baseline)
    assert verdict.regression is not None
    assert verdict.regression.decision is Decision.INCOMPARABLE
    assert axis(verdict, "regression")[0] is Status.UNVERIFIED
    assert verdict.attempt.exit_code == 0
    strict = fake_project.verify(baseline=baseline, require_comparable=True)
    assert axis(strict, "regression")[0] is Status.FAIL
    assert strict.attempt.exit_code == ExitCode.REGRESSION


def test_a_baseline_that_can_never_be_compared_is_told_before_anything_runs(
    fake_project: FakeProject,
) -> None:
    baseline = baseline_of(fake_project)
    fake_project.events.clear()
    fake_project.verify(baseline=baseline)
    assert not any(event.warning for event in fake_project.events)
    fake_project.edit("tasks/double.yaml", "operator_version: 1.0.0", "operator_version: 1.0.1")
    for required, end in (
        (False, "no failure without --require-comparable"),
        (True, "exit code 6 if nothing else is wrong"),
    ):
        fake_project.events.clear()
        verdict = fake_project.verify(baseline=baseline, require_comparable=required)
        first, *later = fake_project.events
        assert first.warning and not any(event.warning for event in later)
        assert (
            f"{baseline} cannot be compared with: operator version is 1.0.1, the baseline's is 1.0.0; "
            in (first.detail)
        )
        assert "allowed is a baseline of the same task" in first.detail and f"({end})." in first.detail
        assert verdict.regression is not None
        assert verdict.regression.decision is Decision.INCOMPARABLE
        assert verdict.attempt.exit_code == (ExitCode.REGRESSION if required else 0)


def test_wrong_results_come_before_a_baseline_that_cannot_be_compared(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    fake_project.edit("tasks/double.yaml", "operator_version: 1.0.0", "operator_version: 1.0.1")
    wrong = {"candidate/run_case/core_4": WRONG}
    verdict = fake_project.verify(wrong, baseline=baseline, require_comparable=True)
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    assert axis(fake_project.verify(wrong, baseline=baseline), "regression") == (
        Status.UNVERIFIED,
        "NOT_COMPARED",
    )


def test_a_baseline_that_was_changed_by_hand_is_refused(fake_project: FakeProject) -> None:
    from mini_kv.core.errors import IntegrityError, MiniKvError

    baseline = baseline_of(fake_project)
    text = baseline.read_text()
    baseline.write_text(text.replace('"p50_us": 10', '"p50_us": 11', 1))
    assert baseline.read_text() != text
    with pytest.raises(MiniKvError) as caught:
        fake_project.verify(baseline=baseline)
    assert isinstance(caught.value, IntegrityError | ConfigurationError)


# ---------------------------------------------------------------------------- 70


@pytest.mark.parametrize(
    ("module", "stage"),
    [(compiler, "build"), (correctness, "check"), (benchmark, "run_benchmark")],
    ids=["build", "correctness", "benchmark"],
)
def test_a_stage_that_raises_is_archived_as_the_tools_own_fault(
    fake_project: FakeProject, monkeypatch: pytest.MonkeyPatch, module: ModuleType, stage: str
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("surprise")

    monkeypatch.setattr(module, stage, broken)
    verdict = fake_project.verify()
    attempt = assert_archived(verdict)
    assert attempt.exit_code == ExitCode.INTERNAL
    assert not attempt.accepted
    assert codes(verdict) == ["INTERNAL"]
    assert "surprise" in attempt.findings[0].message
    assert "Traceback" in attempt.findings[0].evidence[0]


def test_a_lost_oracle_ends_the_run_at_once_with_70(fake_project: FakeProject) -> None:
    # The contract worker is busy for a minute then; nobody waits for it.
    begun = time.monotonic()
    verdict = fake_project.verify(
        {"oracle/make_case/core_5": CRASH, "candidate/check_contract": "time.sleep(60)"}
    )
    assert assert_archived(verdict).exit_code == ExitCode.INTERNAL
    assert codes(verdict) == ["ORACLE_LOST"]
    assert "SIGSEGV" in verdict.attempt.findings[0].message
    assert time.monotonic() - begun < 20.0


# ---------------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_during_correctness_leaves_an_archive_at_once(fake_project: FakeProject) -> None:
    press_ctrl_c_when(fake_project, lambda event: event.stage == "correctness" and event.detail == "core_4")
    begun = time.monotonic()
    verdict = fake_project.verify(
        {"candidate/run_case/core_4": "time.sleep(60)", "candidate/check_contract": "time.sleep(60)"},
        timeout_s=60.0,
    )
    attempt = assert_archived(verdict)
    assert (attempt.exit_code, attempt.accepted, attempt.complete) == (130, False, False)
    assert codes(verdict) == ["INTERRUPTED"]
    assert time.monotonic() - begun < 20.0
    # The archive says how far it came: one case had been judged before the one that never ended.
    assert verdict.correctness is not None
    assert (verdict.correctness.status, verdict.correctness.complete) == (Status.UNVERIFIED, False)
    assert [one.case_id for one in verdict.correctness.cases] == ["core_3"]
    assert axis(verdict, "numerics") == (Status.UNVERIFIED, "INCOMPLETE")
    assert axis(verdict, "contract") == (Status.UNVERIFIED, "INCOMPLETE")
    assert "correctness.json" in {file.path for file in attempt.files}


def test_cases_that_were_judged_before_a_ctrl_c_are_not_thrown_away(fake_project: FakeProject) -> None:
    """All cases had passed and the contract worker was busy: the verdict said that no case was run."""
    press_ctrl_c_when(fake_project, lambda event: event.detail == "all cases answered")
    verdict = fake_project.verify({"candidate/check_contract": "time.sleep(60)"}, skip_benchmark=True)
    attempt = assert_archived(verdict)
    assert (attempt.exit_code, attempt.complete) == (130, False)
    assert verdict.correctness is not None
    assert len(verdict.correctness.cases) == verdict.correctness.planned_cases
    assert axis(verdict, "numerics")[0] is Status.PASS
    assert axis(verdict, "contract") == (Status.UNVERIFIED, "INCOMPLETE")


def test_ctrl_c_during_the_benchmark_keeps_the_correctness_and_does_not_wait_for_the_batch(
    fake_project: FakeProject,
) -> None:
    press_ctrl_c_when(fake_project, lambda event: event.stage == "benchmark")
    begun = time.monotonic()
    verdict = fake_project.verify({"candidate/time_batch": "time.sleep(60)"}, timeout_s=60.0)
    attempt = assert_archived(verdict)
    assert (attempt.exit_code, attempt.complete) == (130, False)
    assert verdict.correctness is not None
    assert verdict.correctness.status is Status.PASS
    assert "correctness.json" in {file.path for file in attempt.files}
    assert time.monotonic() - begun < 20.0


# ---------------------------------------------------------------------------- what leaves the judge


def test_expected_values_and_secrets_never_enter_the_candidates_process(
    fake_project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, bytes] = {}
    roles: dict[int, str] = {}
    start, send = Nursery.start, Worker._send

    def started(nursery: Nursery, role: str) -> Worker:
        worker = start(nursery, role)
        roles[worker.pid] = role
        return worker

    def watched(worker: Worker, message: p.Request, payloads: Any, deadline: float) -> None:
        role = roles[worker.pid]
        sent[role] = sent.get(role, b"") + p.encode_message(message) + b"".join(payloads)
        send(worker, message, payloads, deadline)

    monkeypatch.setattr(Nursery, "start", started)
    monkeypatch.setattr(Worker, "_send", watched)
    verdict = fake_project.verify()
    assert set(sent) == {"oracle", "candidate", "contract"}
    assert all(seed.encode() in sent["oracle"] for seed in verdict.attempt.secret_seeds.values())
    told = sent["candidate"] + sent["contract"]
    assert b"fixture_reference" not in told
    for case_id, seed in verdict.attempt.secret_seeds.items():
        assert seed.encode() not in told
        assert doubled(inputs_of(seed, {"core_3": 3, "core_4": 4, "core_5": 5}.get(case_id, 40))) not in told


def test_the_packages_own_folder_is_first_on_a_workers_path(tmp_path: Path) -> None:
    path = import_path(tmp_path)
    assert path[0] == str(Path(mini_kv.__file__).resolve().parent.parent)
    assert str(tmp_path) in path


# ---------------------------------------------------------------------------- times while the checks import


@pytest.fixture
def timed_meanwhile(fake_project: FakeProject, monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    """A project whose times are taken as on a GPU: while the contract worker still imports."""
    monkeypatch.setattr(pipeline, "times_while_importing", lambda _: True)
    return fake_project


def test_times_and_contract_checks_take_turns_on_the_device(
    timed_meanwhile: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, float, float]] = []
    request, start = Worker.request, Nursery.start

    def named(nursery: Nursery, role: str) -> Worker:
        worker = start(nursery, role)
        worker.role = role  # type: ignore[attr-defined]
        return worker

    def logged(worker: Worker, message: p.Request, *rest: Any, **options: Any) -> Any:
        begun = time.monotonic()
        outcome = request(worker, message, *rest, **options)
        asked.append((worker.role, type(message).__name__, begun, time.monotonic()))  # type: ignore[attr-defined]
        return outcome

    monkeypatch.setattr(Nursery, "start", named)
    monkeypatch.setattr(Worker, "request", logged)
    verdict = timed_meanwhile.verify()
    assert verdict.attempt.accepted and verdict.attempt.complete
    timing = [one for one in asked if one[1] in {"MeasureTimer", "TimeBatch", "RunRepeats", "DropTiming"}]
    first, last = min(one[2] for one in timing), max(one[3] for one in timing)
    checks = [one for one in asked if one[0] == "contract" and one[1] != "Rouse"]
    assert {"Hello", "LoadCandidate", "CheckContract"} <= {one[1] for one in checks}
    assert all(end <= first or begun >= last for _, _, begun, end in checks)
    elapsed = verdict.attempt.stage_elapsed_s
    assert elapsed["correctness"] + elapsed["benchmark"] <= verdict.attempt.elapsed_s


def test_a_contract_that_is_broken_after_the_times_were_taken_ends_with_4(
    timed_meanwhile: FakeProject,
) -> None:
    fault = "if request.check == 'opcheck': reply.results['opcheck.test_schema'] = 'no'"
    verdict = timed_meanwhile.verify({"candidate/check_contract": f"time.sleep(0.5)\n{fault}"})
    assert (verdict.attempt.exit_code, verdict.attempt.accepted) == (ExitCode.CORRECTNESS, False)
    assert axis(verdict, "contract")[0] is Status.FAIL
    with pytest.raises(ConfigurationError):
        promote_baseline(
            verdict.folder, timed_meanwhile.root / "b.json", now=datetime(2026, 1, 1, tzinfo=UTC)
        )


def test_a_candidate_with_a_wrong_case_is_not_timed_meanwhile(timed_meanwhile: FakeProject) -> None:
    verdict = timed_meanwhile.verify({"candidate/run_case/core_4": WRONG})
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    assert verdict.benchmark is None


def test_ctrl_c_while_times_are_taken_early_keeps_the_cases(timed_meanwhile: FakeProject) -> None:
    press_ctrl_c_when(timed_meanwhile, lambda event: event.stage == "benchmark")
    verdict = timed_meanwhile.verify({"candidate/time_batch": "time.sleep(60)"}, timeout_s=60.0)
    attempt = assert_archived(verdict)
    assert (attempt.exit_code, attempt.complete) == (130, False)
    assert verdict.correctness is not None and verdict.correctness.status is Status.UNVERIFIED
    assert verdict.correctness.passed_cases == 6
