"""What never gets as far as a case: code that does not compile, libraries that cannot be used."""

from __future__ import annotations

import pytest

from e2e.harness import Project, rehash


def test_a_compile_error_shows_the_first_error_and_archives_the_whole_log(project: Project) -> None:
    run = project.verify("sound", candidate="does_not_compile")
    attempt = rehash(run)
    assert (run.code, attempt.exit_code) == (3, 3)
    assert run.axis("build") == ("FAIL", "COMPILE_ERROR")
    assert run.axis("numerics") == ("UNVERIFIED", "NOT_REACHED")
    assert "the compiler's first error:" in run.stdout
    assert "'Tensr' does not name a type" in run.stdout or "Tensr" in run.stdout
    assert "op.cpp" in run.record("compile.json")["first_error"]
    assert "Tensr" in (run.folder / "compile_stderr.log").read_text()
    assert (run.folder / "sources" / "op.cpp").is_file()


def test_an_undefined_symbol_is_named(project: Project) -> None:
    run = project.verify("unchecked", candidate="does_not_link")
    rehash(run)
    assert run.code == 3
    assert run.axis("build") == ("FAIL", "LINK_ERROR")
    assert "defined_nowhere" in run.stdout


LOAD_FAULTS = {
    "exits_when_opened": ("LOAD_EXITED", "exit code 0"),
    "throws_when_opened": ("LOAD_CRASHED", "SIGABRT"),
    "tls_too_large": ("LIBRARY_DOES_NOT_LOAD", "TLS"),
    "no_cpu": ("NOT_REGISTERED_FOR_DEVICE", "CPU"),
    "no_fake": ("NO_FAKE_KERNEL", "add torch.library.register_fake to the candidate's Python file"),
    "no_operator": ("OPERATOR_NOT_REGISTERED", "'fixture_no_operator::twice'; it registers none at all"),
    "other_schema": ("SCHEMA_DIFFERS", "twice(Tensor x, int n=1) -> Tensor"),
    "python_raises": (
        "PYTHON_FILE_FAILED",
        "registration.py:1: the candidate's Python file raised LookupError: not today",
    ),
    "python_leaves": (
        "PYTHON_FILE_FAILED",
        "registration.py:2: the candidate's Python file raised SystemExit",
    ),
    "python_is_none": (
        "PYTHON_FILE_FAILED",
        "registration.py:1: the candidate's Python file raised SyntaxError",
    ),
}


# The self-test demands LOAD_EXITED of such a library, tests/worker/test_load_faults.py each sentence about
# a Python file; python_raises shows that it reaches the report.
TOLD_ELSEWHERE = {"exits_when_opened", "python_leaves", "python_is_none"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidate",
    [pytest.param(one, marks=[pytest.mark.nightly] * (one in TOLD_ELSEWHERE)) for one in LOAD_FAULTS],
)
def test_a_library_that_cannot_be_used_is_told_why(project: Project, candidate: str) -> None:
    code, part = LOAD_FAULTS[candidate]
    # A contract worker would import for longer than all the rest takes, and is asked nothing; once is enough.
    run = project.verify("sound" if candidate == "no_fake" else "unchecked", candidate=candidate)
    attempt = rehash(run)
    assert run.code == 3, run.stdout + run.stderr
    assert run.axis("build") == ("FAIL", code), attempt.findings
    assert part in attempt.findings[0].message
    assert run.axis("numerics") == ("UNVERIFIED", "NOT_REACHED")
    assert "Traceback" not in run.stderr


def test_a_name_of_torchs_own_is_refused_before_anything_runs(project: Project) -> None:
    run = project.verify("sound", candidate="names_that_are_torchs")
    assert run.code == 2
    assert "aten" in run.stderr
    assert not run.artifacts.exists()


def test_a_reference_that_cannot_be_imported_is_the_cards_fault(project: Project) -> None:
    run = project.verify("nowhere")
    attempt = rehash(run)
    assert (run.code, attempt.exit_code) == (2, 2)
    assert [finding.code for finding in attempt.findings] == ["REFERENCE_NOT_IMPORTABLE"]
    assert "no_such_module_at_all" in run.stdout


def test_a_missing_compiler_is_one_sentence(project: Project) -> None:
    run = project.verify("sound", environ={"CXX": "no-such-compiler"})
    assert run.code == 2
    assert "No C++ compiler was found" in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_cuda_without_a_gpu_is_one_sentence(project: Project) -> None:
    run = project.verify("sound", "--device", "cuda", environ={"CUDA_VISIBLE_DEVICES": ""})
    assert run.code == 2
    assert "--device cpu" in run.stderr
    assert run.stderr.count("\n") == 1
    assert not run.artifacts.exists()


def test_a_candidate_for_another_operator_is_refused(project: Project) -> None:
    run = project.verify("sound", candidate="no_such_candidate")
    assert run.code == 2
    assert "candidate.yaml" in run.stderr
    assert not run.artifacts.exists()
