"""Every way a capture can end is told apart and archived whole, and believed only while unchanged."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_ncu import calls, make_ncu
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import ConfigurationError, IntegrityError
from mini_kv.core.records.profile import EXTRA_METRICS, SECTIONS, Profile, TargetPlan
from mini_kv.core.records.results import Finding, Status
from mini_kv.profiling import ProfileRequest, profile_case
from mini_kv.profiling.ncu import (
    Capture,
    CaptureRequest,
    Ncu,
    ProfileArchive,
    capture,
    find_ncu,
    load_profile,
)
from mini_kv.system.files import sha256_file
from profile_factory import BEFORE

RunMiniKv = Callable[..., tuple[int, str, str]]
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/ncu"
PAGE = FIXTURES / "rmsnorm_v1.csv"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


# --------------------------------------------------------------------------- finding the profiler


def test_the_named_profiler_tells_its_version(tmp_path: Path) -> None:
    found = find_ncu(make_ncu(tmp_path, "good", PAGE), None, {})
    assert isinstance(found, Ncu)
    assert found.version == "2025.3.1.0"


def test_a_profiler_is_found_on_path(tmp_path: Path) -> None:
    make_ncu(tmp_path, "good", PAGE)
    found = find_ncu(None, None, {"PATH": str(tmp_path)})
    assert isinstance(found, Ncu)
    assert found.path == str(tmp_path / "ncu")


@pytest.mark.parametrize("behaviour", ["no version", None])
def test_a_profiler_that_does_not_answer_is_missing(tmp_path: Path, behaviour: str | None) -> None:
    path = make_ncu(tmp_path, behaviour, PAGE) if behaviour else str(tmp_path / "none")
    found = find_ncu(path, None, {})
    assert isinstance(found, Finding)
    assert found.code == "NCU_MISSING"


# --------------------------------------------------------------------------- capturing


@pytest.fixture
def take(tmp_path: Path) -> Callable[..., Capture]:
    """Capture with a stand-in of the given behaviour; the target is not run."""

    def run(behaviour: str, *, page: Path = PAGE, timeout_s: float = 20.0, **changes: Any) -> Capture:
        tool = tmp_path / "tool"
        tool.mkdir(exist_ok=True)
        scratch = tmp_path / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        request = CaptureRequest(
            ncu=Ncu(path=make_ncu(tool, behaviour, page), version="2025.3.1.0"),
            plan=TargetPlan(
                device="cuda",
                library=str(tmp_path / "made.so"),
                library_sha256="0" * 64,
                python=None,
                dispatcher="space::op",
                schema="op(Tensor x) -> Tensor",
                input_factory="module:factory",
                params={"shape": (2, 3)},
                seed="0" * 16,
                warmup_calls=5,
                output_folder=str(scratch / "target"),
            ),
            kernel_name_regex="rmsnorm_block_kernel",
            flush_caches=True,
            import_path=("/nowhere",),
            scratch=scratch,
            places={str(tmp_path): "{project}", str(scratch): "{scratch}"},
            environ=os.environ | {"LD_PRELOAD": "", "MINI_KV_SECRET": "1", "PYTHONPATH": "/elsewhere"},
            timeout_s=timeout_s,
        )
        for name, value in changes.items():
            object.__setattr__(request, name, value)
        return capture(request)

    return run


def test_a_good_capture_leaves_report_page_outputs_and_logs(take: Callable[..., Capture]) -> None:
    taken = take("good")
    assert taken.failure is None
    assert taken.report == b"NVR\0 a report"
    assert taken.raw_csv == PAGE.read_bytes()
    assert taken.outputs == (b"1234",)
    assert sorted(taken.logs) == ["import_stderr.log", "ncu.log", "target_stderr.log", "target_stdout.log"]
    assert (taken.run.returncode, taken.run.version) == (0, "2025.3.1.0")


def test_the_profiler_is_asked_for_one_launch_after_the_warm_up(
    take: Callable[..., Capture], tmp_path: Path
) -> None:
    take("good")
    argv = calls(tmp_path / "tool")[0]["argv"]
    assert isinstance(argv, list)
    assert [argv[n + 1] for n, word in enumerate(argv) if word == "--section"] == list(SECTIONS)
    options = dict(itertools.pairwise(argv))
    assert options["--clock-control"] == "none"
    assert options["--cache-control"] == "all"
    assert options["--kernel-name"] == "regex:^.*(rmsnorm_block_kernel).*$"
    assert (options["--launch-skip"], options["--launch-count"]) == ("5", "2")
    assert options["--metrics"].split(",") == list(EXTRA_METRICS)
    assert "-I" in argv


def test_a_hot_benchmark_is_profiled_with_warm_caches(take: Callable[..., Capture]) -> None:
    assert take("good", flush_caches=False).run.cache_control == "none"


def test_nothing_of_the_callers_environment_reaches_the_target(
    take: Callable[..., Capture], tmp_path: Path
) -> None:
    take("good")
    environ = calls(tmp_path / "tool")[0]["environ"]
    assert isinstance(environ, dict)
    assert not {"LD_PRELOAD", "MINI_KV_SECRET", "PYTHONPATH"} & set(environ)
    assert (environ["HOME"], environ["LC_ALL"]) == (str(tmp_path / "scratch"), "C")


def test_no_folder_of_this_machine_stands_in_logs_and_record(
    take: Callable[..., Capture], tmp_path: Path
) -> None:
    taken = take("good")
    text = b"".join(taken.logs.values()).decode() + " ".join(taken.run.command)
    assert str(tmp_path) not in text
    assert "{scratch}/report" in text and "{project}/made.so" in text


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("no permission", "NCU_NO_PERMISSION"),
        ("no permission, no log", "NCU_NO_PERMISSION"),
        ("target fails", "TARGET_FAILED"),
        ("target lies", "TARGET_FAILED"),
        ("no kernel", "KERNEL_NOT_FOUND"),
        ("unknown metric", "METRIC_MISSING"),
        ("no report", "NCU_FAILED"),
        ("broken", "NCU_FAILED"),
        ("bad exit", "NCU_FAILED"),
        ("import fails", "REPORT_DOES_NOT_IMPORT"),
    ],
)
def test_each_failure_has_its_own_code_and_evidence(
    take: Callable[..., Capture], behaviour: str, code: str
) -> None:
    taken = take(behaviour)
    assert taken.failure is not None
    assert taken.failure.code == code
    assert taken.failure.message.endswith(".")
    assert taken.failure.evidence
    assert taken.raw_csv is None
    assert "ncu.log" in taken.logs


def test_the_targets_last_words_are_evidence(take: Callable[..., Capture]) -> None:
    failure = take("target fails").failure
    assert failure is not None
    assert "no kernel image" in failure.evidence[-1]


def test_a_capture_that_hangs_is_ended(take: Callable[..., Capture]) -> None:
    taken = take("hangs", timeout_s=0.5)
    assert taken.failure is not None
    assert taken.failure.code == "TIMEOUT"
    assert taken.run.elapsed_s < 10.0


def test_an_import_that_hangs_is_ended(take: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_kv.profiling.ncu.capturing.NCU_IMPORT_TIMEOUT_S", 0.5)
    failure = take("import hangs").failure
    assert failure is not None
    assert failure.code == "REPORT_DOES_NOT_IMPORT"


def test_a_gpu_that_lacks_an_extra_metric_is_profiled_without_them(take: Callable[..., Capture]) -> None:
    taken = take("unknown extra metric")
    assert taken.failure is None
    assert taken.run.extra_metrics == ()
    assert "refused_ncu.log" in taken.logs


def test_a_profiler_that_cannot_be_started_is_no_crash(take: Callable[..., Capture], tmp_path: Path) -> None:
    taken = take("good", ncu=Ncu(path=str(tmp_path / "gone"), version="1"))
    assert taken.failure is not None
    assert taken.failure.code == "NCU_FAILED"
    assert "cannot be started" in taken.failure.evidence[0]


def test_a_report_of_an_earlier_try_is_not_taken_for_this_one(
    take: Callable[..., Capture], tmp_path: Path
) -> None:
    failure = take("no report").failure
    assert failure is not None and not (tmp_path / "scratch/report.ncu-rep").exists()


# --------------------------------------------------------------------------- the archive


def claim(root: Path, number: int = 1) -> ProfileArchive:
    return ProfileArchive(
        root, "rmsnorm", clock=lambda: NOW, random_bytes=lambda n: number.to_bytes(n, "big")
    )


def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    archive = claim(tmp_path)
    archive.add_tree({"b.log": b"2", "a.log": b"1"}, "logs")
    assert not archive.folder.exists()
    sealed = archive.finish(msgspec.structs.replace(BEFORE, profile_id=archive.profile_id))
    assert [file.path for file in sealed.files] == ["logs/a.log", "logs/b.log"]
    assert sealed.files[0].sha256 == sha256_bytes(b"1")
    assert not archive.partial_folder.exists()
    assert archive.folder.parent == tmp_path / "profiles" / "rmsnorm"


def test_two_profiles_never_share_a_folder(tmp_path: Path) -> None:
    claim(tmp_path).finish(BEFORE)
    numbers = iter((1, 2))
    again = ProfileArchive(
        tmp_path, "rmsnorm", clock=lambda: NOW, random_bytes=lambda n: next(numbers).to_bytes(n, "big")
    )
    assert again.profile_id.endswith("-00000002")


def test_an_archive_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        claim(tmp_path)


def test_a_file_that_something_else_changed_is_no_evidence(tmp_path: Path) -> None:
    archive = claim(tmp_path)
    archive.add_bytes("raw.csv", b"1")
    (archive.partial_folder / "raw.csv").write_bytes(b"2")
    with pytest.raises(IntegrityError, match=r"raw\.csv"):
        archive.finish(BEFORE)
    assert not archive.folder.exists()
    archive.discard()
    assert list(archive.folder.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "/abs", "a/../b", "logs//x"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Exception, match="cannot be added"):
        claim(tmp_path).add_bytes(name, b"")


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"schema_version": "1.0.0"}'])
def test_what_is_no_profile_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="not the folder of a profile"):
        load_profile(tmp_path)
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(ConfigurationError, match="cannot be read as a profile"):
        load_profile(tmp_path)


# --------------------------------------------------------------------------- end to end on the CPU


@dataclass(frozen=True, kw_only=True)
class Profiled:
    root: Path
    profile: Profile
    folder: Path


def small_project(project_root: Path, root: Path) -> Path:
    """Copy one candidate and its card: a project of its own, whose build takes two seconds."""
    shutil.copytree(project_root / "candidates/vector_add/v0_naive", root / "candidates/vector_add/v0_naive")
    (root / "tasks").mkdir()
    card = (project_root / "tasks/vector_add.yaml").read_text()
    (root / "tasks/vector_add.yaml").write_text(card)
    for marker in ("pyproject.toml", "mini_kv.toml"):
        (root / marker).touch()
    return root


def run_profile(
    root: Path, behaviour: str, page: Path, case_id: str = "core_31_f32", **changes: Any
) -> Profiled:
    tool = root / f"tool-{behaviour.replace(' ', '-')}"
    tool.mkdir(exist_ok=True)
    request = ProfileRequest(
        task=root / "tasks/vector_add.yaml",
        candidate=None,
        case_id=case_id,
        artifacts_root=None,
        timeout_s=60.0,
        ncu=make_ncu(tool, behaviour, page),
        device="cpu",
    )
    for name, value in changes.items():
        object.__setattr__(request, name, value)
    profile, folder = profile_case(request, lambda _: None)
    return Profiled(root=root, profile=profile, folder=folder)


def a_core_case(project_root: Path) -> str:
    import yaml

    card = yaml.safe_load((project_root / "tasks/vector_add.yaml").read_text())
    return str(next(case["id"] for case in card["cases"] if case["kind"] == "core"))


@pytest.fixture(scope="module")
def add_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "add.csv"
    page.write_text(PAGE.read_text().replace("rmsnorm_block_kernel", "add_kernel"))
    return page


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory, add_page: Path) -> Profiled:
    project_root = Path(__file__).resolve().parents[2]
    root = small_project(project_root, tmp_path_factory.mktemp("project"))
    return run_profile(root, "run", add_page, a_core_case(project_root))


@pytest.mark.slow
def test_a_case_is_gated_captured_checked_and_archived(profiled: Profiled) -> None:
    profile = profiled.profile
    assert profile.failure is None
    assert (profile.status, profile.exit_code, profile.stage) == (Status.PASS, 0, "analysis")
    assert profile.gate is not None and profile.gate.status is Status.PASS
    assert [entry.name for entry in profile.gate.rounds] == ["fixed", "repeat", "secret", "gradients"]
    assert profile.numerics is not None and profile.numerics.mismatch_count == 0
    assert profile.facts is not None and profile.facts.function == "add_kernel"
    paths = {file.path for file in profile.files}
    assert {"report.ncu-rep", "raw.csv", "logs/ncu.log", "sources/kernel.cu", "compile.json"} <= paths
    assert load_profile(profiled.folder)[0] == profile
    assert load_profile(profiled.folder / "profile.json")[0] == profile
    assert not list(profiled.folder.parent.glob("*.partial"))


def tampered(profiled: Profiled, tmp_path: Path) -> Path:
    return Path(shutil.copytree(profiled.folder, tmp_path / profiled.folder.name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["raw.csv", "report.ncu-rep", "compile.json", "sources/kernel.cu", "logs/ncu.log"]
)
def test_a_file_changed_after_archiving_is_found(profiled: Profiled, tmp_path: Path, name: str) -> None:
    folder = tampered(profiled, tmp_path)
    path = folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(IntegrityError, match=name) as caught:
        load_profile(folder)
    assert caught.value.exit_code == 7
    path.unlink()
    with pytest.raises(IntegrityError, match=name):
        load_profile(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value", "noun"),
    [
        ("build_key", "0" * 64, "build"),
        ("library_sha256", "0" * 64, "library"),
        ("suite_sha256", "0" * 64, "suite"),
        ("environment_key", "0" * 64, "environment"),
        ("candidate_id", "other", "candidate"),
        ("case_id", "other", "seed"),
        ("source_sha256", {}, "sources"),
        ("files", [], "hold"),
    ],
)
def test_a_record_that_is_bound_to_other_evidence_is_found(
    profiled: Profiled, tmp_path: Path, field: str, value: object, noun: str
) -> None:
    folder = tampered(profiled, tmp_path)
    document = json.loads((folder / "profile.json").read_text())
    document[field] = value
    (folder / "profile.json").write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match=noun):
        load_profile(folder)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["profile.json", "raw.csv", "environment.json"])
def test_a_pipe_in_a_profile_was_waited_for(profiled: Profiled, tmp_path: Path, name: str) -> None:
    folder = tampered(profiled, tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises((IntegrityError, ConfigurationError)):
        load_profile(folder)


@pytest.mark.slow
def test_a_profile_of_another_machine_kept_the_key_of_this_one(profiled: Profiled, tmp_path: Path) -> None:
    folder = tampered(profiled, tmp_path)
    path = folder / "environment.json"
    path.write_text(path.read_text().replace('"timer_plan": "', '"timer_plan": "x'))
    document = json.loads((folder / "profile.json").read_text())
    for file in document["files"]:
        if file["path"] == path.name:
            file |= {"sha256": sha256_file(path), "size_bytes": path.stat().st_size}
    (folder / "profile.json").write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match="does not follow from its environment"):
        load_profile(folder)


@pytest.mark.slow
def test_profiles_are_compared_from_the_command_line(
    profiled: Profiled, tmp_path: Path, mini_kv: RunMiniKv
) -> None:
    code, out, _ = mini_kv("compare-profiles", str(profiled.folder), str(profiled.folder))
    assert code == 0
    assert "achieved occupancy" in out and "never stand in for benchmark times" in out
    code, out, _ = mini_kv("compare-profiles", str(profiled.folder), str(profiled.folder), "--json")
    assert (code, json.loads(out)["before"]["candidate_id"]) == (0, profiled.profile.candidate_id)
    folder = tampered(profiled, tmp_path)
    document = json.loads((folder / "profile.json").read_text())
    document["facts"]["achieved_occupancy_percent"] = 99.9
    (folder / "profile.json").write_text(json.dumps(document))
    code, _, err = mini_kv("compare-profiles", str(profiled.folder), str(folder))
    assert (code, "raw page" in err) == (7, True)
    code, _, err = mini_kv("compare-profiles", str(profiled.folder), str(tmp_path))
    assert (code, "not the folder of a profile" in err) == (2, True)
    code, _, err = mini_kv(
        "compare-profiles", str(profiled.folder), str(profiled.folder), "--comparison", str(tmp_path / "none")
    )
    assert (code, "cannot be read" in err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "page", "code", "exit_code"),
    [
        ("no version", "add", "NCU_MISSING", 2),
        ("no permission", "add", "NCU_NO_PERMISSION", 2),
        ("run", "two_launches.csv", "SEVERAL_KERNELS", 5),
        ("good", "add", "PROFILED_OUTPUT_WRONG", 4),
    ],
)
def test_a_failure_is_archived_with_its_reason_and_exit_code(
    profiled: Profiled, add_page: Path, tmp_path: Path, behaviour: str, page: str, code: str, exit_code: int
) -> None:
    text = add_page.read_text() if page == "add" else (FIXTURES / page).read_text()
    shown = tmp_path / "page.csv"
    shown.write_text(text.replace("rmsnorm_block_kernel", "add_kernel"))
    failed = run_profile(profiled.root, behaviour, shown, profiled.profile.case_id)
    assert failed.profile.failure is not None
    assert (failed.profile.failure.code, failed.profile.exit_code) == (code, exit_code)
    assert load_profile(failed.folder)[0] == failed.profile
    assert failed.profile.facts is None


@pytest.mark.slow
def test_a_wrong_candidate_is_not_profiled(project_root: Path, tmp_path: Path, add_page: Path) -> None:
    root = small_project(project_root, tmp_path / "project")
    binding = root / "candidates/vector_add/v0_naive/binding.cpp"
    text = binding.read_text()
    assert "a_data[i] + b_data[i]" in text
    binding.write_text(text.replace("a_data[i] + b_data[i]", "a_data[i] - b_data[i]"))
    failed = run_profile(root, "run", add_page, a_core_case(project_root))
    assert (failed.profile.stage, failed.profile.exit_code) == ("correctness", 4)
    assert failed.profile.gate is not None and failed.profile.gate.status is Status.FAIL
    assert failed.profile.profiler is None


@pytest.mark.slow
def test_a_candidate_that_does_not_build_is_archived_with_the_compilers_error(
    project_root: Path, tmp_path: Path, add_page: Path
) -> None:
    root = small_project(project_root, tmp_path / "project")
    binding = root / "candidates/vector_add/v0_naive/binding.cpp"
    binding.write_text(binding.read_text() + "\nint broken = nothing_of_that_name;\n")
    failed = run_profile(root, "run", add_page, a_core_case(project_root))
    assert (failed.profile.stage, failed.profile.exit_code) == ("build", 3)
    assert failed.profile.failure is not None
    assert "nothing_of_that_name" in failed.profile.failure.evidence[0]
    assert load_profile(failed.folder)[0] == failed.profile


def test_an_unknown_or_illegal_case_is_refused(project_root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no legal case 'nothing'"):
        run_profile(small_project(project_root, tmp_path / "p"), "good", PAGE, "nothing")


def test_without_a_gpu_the_command_says_so(
    project_root: Path, mini_kv: RunMiniKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, _, err = mini_kv("profile", "--task", str(project_root / "tasks/rmsnorm.yaml"))
    assert (code, "no GPU" in err) == (2, True)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_timeout_must_be_a_time(project_root: Path, mini_kv: RunMiniKv, value: str) -> None:
    code, _, err = mini_kv("profile", "--task", str(project_root / "tasks/rmsnorm.yaml"), "--timeout", value)
    assert (code, "--timeout" in err) == (2, True)


def test_the_script_profiles_the_fixed_case(project_root: Path) -> None:
    script = project_root / "scripts/profile_rmsnorm.sh"
    assert script.stat().st_mode & stat.S_IXUSR
    assert "bench_1024x4096_f16" in script.read_text()
    assert "bench_1024x4096_f16" in (project_root / "tasks/rmsnorm.yaml").read_text()
