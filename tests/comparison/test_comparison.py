"""``compare`` over fake workers: both gated, both timed, the interval from pairs, one sealed folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_project import FakeProject, fake_project, press_ctrl_c_when
from fake_worker import use_cast
from mini_kv.cli import comparison_text
from mini_kv.cli.main import main
from mini_kv.comparison import CompareRequest, ComparisonVerdict, compare
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.record import from_json
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.comparison import ComparedCase, Comparison
from mini_kv.core.records.correctness import Correctness
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.profile import KernelFacts
from mini_kv.core.records.results import Status
from mini_kv.profiling.analysis import analyse, compare_profiles
from mini_kv.system.processes import children
from profile_factory import profile

__all__ = ["fake_project"]

WHO = {"candidate/load_candidate": "state['who'] = request.dispatcher"}
OF_B = "if state.get('who', '').startswith('fixture_second'): "
CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"


def slower(factor: float) -> str:
    return OF_B + f"reply = change(reply, samples_us=tuple({factor} * s for s in reply.samples_us))"


@pytest.fixture(autouse=True)
def _no_process_stays(tmp_path: Path) -> Any:
    before = set(children(os.getpid()))
    yield
    assert set(children(os.getpid())) <= before
    assert not list(tmp_path.rglob("*.partial"))


@pytest.fixture
def project(fake_project: FakeProject) -> FakeProject:
    """Two candidates of one operator: A is v0, B is v1."""
    one = fake_project.root / "candidates/double/v0"
    two = fake_project.root / "candidates/double/v1"
    two.mkdir()
    manifest = (one / "candidate.yaml").read_text()
    manifest = manifest.replace("double_v0", "double_v1").replace(
        "fixture_double::double", "fixture_second::double"
    )
    (two / "candidate.yaml").write_text(manifest)
    (two / "op.cpp").write_text("// nothing to compile\n")
    return fake_project


def run(project: FakeProject, faults: dict[str, str] | None = None, **changes: Any) -> ComparisonVerdict:
    use_cast(project.monkeypatch, WHO | (faults or {}))
    request: dict[str, Any] = {
        "task": project.root / "tasks/double.yaml",
        "a": project.root / "candidates/double/v0",
        "b": project.root / "candidates/double/v1",
        "device": "cpu",
        "artifacts_root": None,
        "timeout_s": 5.0,
        "pairs": 3,
    }
    return compare(CompareRequest(**(request | changes)), project.events.append)


def case_of(compared: ComparisonVerdict, case_id: str) -> ComparedCase:
    return next(case for case in compared.comparison.cases if case.case_id == case_id)


def assert_sealed(compared: ComparisonVerdict) -> Comparison:
    raw = (compared.folder / "comparison.json").read_bytes()
    record = from_json(raw, Comparison)
    assert record == compared.comparison
    found = {
        path.relative_to(compared.folder).as_posix(): sha256_bytes(path.read_bytes())
        for path in compared.folder.rglob("*")
        if path.is_file() and path.name != "comparison.json"
    }
    assert {file.path: file.sha256 for file in record.files} == found
    return record


# ---------------------------------------------------------------------------- the plain story


def test_two_equal_candidates_show_no_difference(project: FakeProject) -> None:
    compared = run(project)
    record = assert_sealed(compared)
    assert (record.exit_code, record.accepted, record.complete) == (0, True, True), record.findings
    assert record.word == "no_difference"
    assert record.ratio is not None and record.ratio.pairs == 3
    assert record.ratio.lower <= 1.0 <= record.ratio.upper


def test_a_slower_candidate_is_called_slower_with_an_interval(project: FakeProject) -> None:
    compared = run(project, {"candidate/time_batch": slower(1.5)})
    record = compared.comparison
    assert (record.word, record.exit_code) == ("slower", 0)
    assert record.ratio is not None
    assert record.ratio.lower == pytest.approx(1.5, rel=0.01) == record.ratio.upper
    for case in record.cases:
        assert case.word == "slower"
        assert case.sample_ratio == pytest.approx(1.5, rel=0.02)
        assert case.ratio is not None and len(case.ratio.log_ratios) == 3


def test_a_faster_candidate_is_called_faster(project: FakeProject) -> None:
    record = run(project, {"candidate/time_batch": slower(0.5)}).comparison
    assert record.word == "faster"
    assert "B is faster by" in record.message and "over 2 cases" in record.message


def test_both_sides_pass_the_whole_gate_and_give_the_plans_samples(project: FakeProject) -> None:
    compared = run(project)
    assert_sealed(compared)
    for side in ("a", "b"):
        gate = from_json((compared.folder / side / "correctness.json").read_bytes(), Correctness)
        assert gate.status is Status.PASS and gate.passed_cases == 6
        assert {check.name for check in gate.contract} >= {"opcheck.test_schema"}
        timed = from_json((compared.folder / side / "benchmark.json").read_bytes(), Benchmark)
        for case in timed.cases:
            assert case.candidate is not None and case.reference is not None
            assert [len(repeat) for repeat in case.candidate.samples_us] == [5, 5]
            assert [len(repeat) for repeat in case.reference.samples_us] == [5, 5]
            assert case.batch_order == ("a", "b", "reference", "b", "a", "reference") * case.tries
            assert (case.checked_outputs == 2 and case.outside_us is not None) or case.timing_trust
        assert (compared.folder / side / "sources/op.cpp").is_file()
    pairs = from_json((compared.folder / "pairs.json").read_bytes(), PairSet)
    assert pairs.losses == () and len(pairs.results) == 6
    assert [result.first for result in pairs.results] == ["a", "a", "b", "b", "a", "a"]


def test_both_sides_get_equal_inputs(project: FakeProject) -> None:
    from mini_kv.core import protocol as p
    from mini_kv.system.workers import Worker

    sent: list[tuple[str, str, str]] = []
    send = Worker._send

    def watched(worker: Worker, message: p.Request, payloads: Any, deadline: float) -> None:
        if isinstance(message, p.PrepareTiming):
            sent.append((str(worker.pid), message.case_id, sha256_bytes(b"".join(payloads))))
        send(worker, message, payloads, deadline)

    project.monkeypatch.setattr(Worker, "_send", watched)
    run(project)
    processes = {pid for pid, _, _ in sent}
    assert len(processes) == 2 + 2 * 3, "one pair for the plan's samples, three fresh ones"
    for case_id in ("timed_a", "timed_b"):
        assert len({digest for _, name, digest in sent if name == case_id}) == 1


def test_the_record_binds_builds_sources_suite_environment_and_seeds(project: FakeProject) -> None:
    from mini_kv.core.rules.suite import suite_hash
    from mini_kv.task_card import load_task_card

    project.build_changes = {"source_sha256": {"op.cpp": "c" * 64}}
    record = run(project).comparison
    card = load_task_card(project.root / "tasks/double.yaml").card
    assert record.suite_sha256 == suite_hash(card)
    assert set(record.secret_seeds) == {"core_3", "core_4", "core_5", "timed_a", "timed_b"}
    for side, name in ((record.a, "double_v0"), (record.b, "double_v1")):
        assert (side.candidate_id, side.build_key) == (name, "b" * 64)
        assert side.source_sha256 == {"op.cpp": "c" * 64}
        assert side.library_sha256 is not None
        assert [time.case_id for time in side.times] == ["timed_a", "timed_b"]
    assert len(record.environment_key) == 64 and record.reference_sha256 == "a" * 64


def test_a_candidate_can_be_compared_with_itself(project: FakeProject) -> None:
    record = run(project, b=project.root / "candidates/double/v0").comparison
    assert (record.exit_code, record.word) == (0, "no_difference")


def test_profiles_of_both_sides_agree_with_the_comparison(project: FakeProject) -> None:
    project.build_changes = {"source_sha256": {"op.cpp": "c" * 64}}
    compared = run(project, {"candidate/time_batch": slower(1.5)})
    record = compared.comparison
    page = (Path(__file__).resolve().parents[1] / "fixtures/ncu/rmsnorm_v1.csv").read_text()
    facts = analyse(page, "rmsnorm")
    assert isinstance(facts, KernelFacts)
    before, after = (
        profile(
            side.candidate_id,
            task_id=record.task_id,
            case_id="timed_b",
            suite_sha256=record.suite_sha256,
            environment_key=record.environment_key,
            facts=facts,
        )
        for side in (record.a, record.b)
    )
    before, after = (
        msgspec.structs.replace(one, build_key="b" * 64, source_sha256={"op.cpp": "c" * 64})
        for one in (before, after)
    )
    raw = (compared.folder / "comparison.json").read_bytes()
    timed = compare_profiles((before, "1" * 64), (after, "2" * 64), (raw, sha256_bytes(raw))).timed
    assert timed is not None
    assert timed.before.p50_us == pytest.approx(10.0, rel=0.01)
    assert timed.after.p50_us == pytest.approx(15.0, rel=0.01)
    other = msgspec.structs.replace(after, source_sha256={"op.cpp": "d" * 64})
    with pytest.raises(ConfigurationError, match="sources"):
        compare_profiles((before, "1" * 64), (other, "2" * 64), (raw, sha256_bytes(raw)))


# ---------------------------------------------------------------------------- what goes wrong


def test_a_wrong_candidate_ends_with_4_and_nothing_is_timed(project: FakeProject) -> None:
    fault = OF_B + "payloads = [bytes(len(payloads[0])), *payloads[1:]]"
    compared = run(project, {"candidate/run_case/core_4": fault})
    record = assert_sealed(compared)
    assert (record.exit_code, record.complete, record.word) == (ExitCode.CORRECTNESS, False, "undecided")
    assert (record.a.exit_code, record.b.exit_code) == (0, ExitCode.CORRECTNESS)
    assert record.cases == () and record.a.times == ()
    assert not (compared.folder / "a/benchmark.json").exists()
    assert (compared.folder / "a/correctness.json").is_file()


def test_a_build_that_fails_ends_with_3(project: FakeProject) -> None:
    project.build_changes = {"status": Status.FAIL, "code": "COMPILE_ERROR", "message": "no", "library": None}
    record = assert_sealed(run(project))
    assert record.exit_code == ExitCode.COMPILATION
    assert record.a.axes[0].code == "COMPILE_ERROR"


def test_a_library_that_does_not_load_is_the_fault_of_its_side(project: FakeProject) -> None:
    fault = WHO["candidate/load_candidate"] + "\n" + OF_B
    fault += "reply = p.Failed(code='LIBRARY_DOES_NOT_LOAD', message='x')"
    record = run(project, {"candidate/load_candidate": fault}).comparison
    assert (record.a.exit_code, record.b.exit_code, record.exit_code) == (0, 3, 3)
    assert [finding.code for finding in record.b.findings] == ["LIBRARY_DOES_NOT_LOAD"]


def test_a_side_that_crashes_while_timed_ends_with_5_and_names_itself(project: FakeProject) -> None:
    compared = run(project, {"candidate/time_batch/timed_a": OF_B + CRASH})
    record = assert_sealed(compared)
    assert record.exit_code == ExitCode.BENCHMARK
    a, b = (side.benchmark for side in (compared.a, compared.b))
    assert a is not None and b is not None
    assert [finding.code for finding in b.cases[0].findings] == ["CRASHED"]
    assert [finding.code for finding in a.cases[0].findings] == ["OTHER_SIDE_LOST"]
    assert case_of(compared, "timed_a").word == "undecided"
    assert case_of(compared, "timed_b").word == "no_difference"
    assert record.word == "undecided"


def test_a_result_that_is_wrong_while_timed_ends_with_4(project: FakeProject) -> None:
    fault = OF_B + "payloads = [bytes(len(payloads[0]))]"
    record = run(project, {"candidate/fetch_timed_output/timed_b": fault}).comparison
    assert record.exit_code == ExitCode.CORRECTNESS
    assert (record.a.exit_code, record.b.exit_code) == (0, ExitCode.CORRECTNESS)


WRITES = "payloads = [bytes(len(payloads[0]))]"


def test_a_side_that_writes_to_its_inputs_only_while_compare_times_it_ends_with_4(
    project: FakeProject,
) -> None:
    compared = run(project, {"candidate/fetch_timed_inputs/timed_b": OF_B + WRITES})
    record = assert_sealed(compared)
    assert (record.a.exit_code, record.b.exit_code) == (0, ExitCode.CORRECTNESS)
    assert compared.b.benchmark is not None
    assert [one.code for one in compared.b.benchmark.cases[1].findings] == ["INPUT_MUTATED_WHILE_TIMED"]
    assert case_of(compared, "timed_b").word == "undecided"


def test_a_side_that_writes_to_its_inputs_only_in_a_fresh_pair_gives_no_ratio(project: FakeProject) -> None:
    faults = {
        "candidate/run_case": "state['gated'] = True",
        "candidate/fetch_timed_inputs/timed_b": f"if not state.get('gated'): {WRITES}",
    }
    lost = case_of(run(project, faults), "timed_b")
    assert (lost.word, lost.ratio) == ("undecided", None)
    assert {finding.code for finding in lost.findings} == {"INPUT_MUTATED_WHILE_TIMED"}


def test_a_pair_that_is_lost_leaves_the_whole_undecided(project: FakeProject) -> None:
    # The fresh processes have run no case before.
    fault = "if not state.get('gated'): " + CRASH
    faults = {"candidate/run_case": "state['gated'] = True", "candidate/time_batch/timed_b": fault}
    compared = run(project, faults)
    record = assert_sealed(compared)
    assert case_of(compared, "timed_a").word == "no_difference"
    lost = case_of(compared, "timed_b")
    assert (lost.word, lost.ratio) == ("undecided", None)
    assert {finding.code for finding in lost.findings} == {"CRASHED"}
    assert record.word == "undecided" and record.exit_code == 0


def test_a_reference_that_moves_is_named(project: FakeProject) -> None:
    fault = (
        "state['warm'] = 1.1 * state.get('warm', 1.0)\n"
        "reply = change(reply, samples_us=tuple(s * state['warm'] for s in reply.samples_us))"
    )
    compared = run(project, {"oracle/time_batch": fault})
    assert "REFERENCE_MOVED" in {finding.code for finding in case_of(compared, "timed_a").findings}


def test_ctrl_c_leaves_a_readable_archive(project: FakeProject) -> None:
    press_ctrl_c_when(project, lambda event: event.stage == "pairs")
    compared = run(project, {"candidate/hello": "time.sleep(1)"})
    record = assert_sealed(compared)
    assert (record.exit_code, record.accepted, record.complete) == (130, False, False)
    assert (compared.folder / "b/benchmark.json").is_file()


def test_a_lost_oracle_is_the_tools_own_fault(project: FakeProject) -> None:
    record = assert_sealed(run(project, {"oracle/time_batch": CRASH}))
    assert record.exit_code == ExitCode.INTERNAL
    assert [finding.code for finding in record.findings] == ["ORACLE_LOST"]


# ---------------------------------------------------------------------------- command line


def test_the_command_prints_a_table_and_json(
    project: FakeProject, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = run(project)
    text = comparison_text.as_text(compared.comparison, compared.folder)
    assert (
        "B (double_v1) compared with A (double_v0): over 2 cases, no difference within the interval" in text
    )
    assert "exit code 0" in text and str(compared.folder) in text
    said = msgspec.structs.replace(compared.comparison, message="slower\n\x1b[2JACCEPTED   exit code 0")
    told = comparison_text.as_text(said, compared.folder)
    assert "\x1b" not in told
    assert "\nACCEPTED   exit code 0\n" not in told.replace(text[text.rindex("ACCEPTED") :], "")
    use_cast(project.monkeypatch, WHO)
    argv = [
        "compare",
        "--task",
        str(project.root / "tasks/double.yaml"),
        "--device",
        "cpu",
        "--pairs",
        "2",
        "--json",
    ]
    for name in ("v0", "v1"):
        argv += ["--candidate", str(project.root / "candidates/double" / name)]
    assert main(argv) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["comparison"]["word"] == "no_difference"
    assert Path(document["folder"], "comparison.json").is_file()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--candidate", "a"], "not once"),
        (["--candidate", "a", "--candidate", "b", "--candidate", "c"], "not 3 time"),
        (["--candidate", "a", "--candidate", "b", "--pairs", "1"], "--pairs takes 2 to 50, not 1"),
        (["--candidate", "a", "--candidate", "b", "--timeout", "nan"], "--timeout takes a positive number"),
    ],
)
def test_wrong_usage_is_one_sentence(
    changes: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--task", "t.yaml", *changes]) == ExitCode.CONFIGURATION
    assert said in capsys.readouterr().err


def test_a_candidate_of_another_operator_is_refused_before_anything_runs(project: FakeProject) -> None:
    project.edit("candidates/double/v1/candidate.yaml", "operator: double", "operator: other")
    with pytest.raises(ConfigurationError):
        run(project)
    assert not (project.root / "artifacts").exists()


def test_the_script_hands_two_candidates_on(project_root: Path) -> None:
    script = (project_root / "scripts/compare_rmsnorm.sh").read_text()
    assert "v0_naive v1_block_reduce" in script
    checked = subprocess.run(["bash", "-n", str(project_root / "scripts/compare_rmsnorm.sh")], check=False)
    assert checked.returncode == 0 and os.access(project_root / "scripts/compare_rmsnorm.sh", os.X_OK)
