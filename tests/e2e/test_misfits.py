"""One run over a candidate that goes wrong in every way: each case for itself, and all are reported."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.harness import FIXTURES, Project, Run, rehash

# What each case must be told for; None where it must pass.
VERDICTS = {
    "sound_first": None,
    "segfault": "CRASHED",
    "aborts": "CRASHED",
    "exits_0": "EXITED",
    "hangs": "TIMEOUT",
    "floods": "OUTPUT_FLOOD",
    "stack_overflow": "CRASHED",
    "forges_its_verdict": "PROTOCOL_VIOLATION",
    "leaves_the_channel": "CHANNEL_CLOSED",
    "stops_itself": "TIMEOUT",
    "sound_between": None,
    "throws": "RAISED",
    "throws_a_number": "RAISED",
    "throws_no_text": "RAISED",
    "leaves_a_daemon": None,
    "mutates": "INPUT_MUTATED",
    "aliases": "ALIASES_INPUT",
    "wrong_shape": "WRONG_SHAPE",
    "wrong_dtype": "WRONG_DTYPE",
    "one_element": "WRONG_VALUES",
    "unwritten_tail": "WRONG_VALUES",
    "first_calls_only": "WRONG_VALUES",
    "chance": "NOT_DETERMINISTIC",
    "not_contiguous": "WRONG_STRIDES",
    "reference_raises": "CASE_NOT_MAKEABLE",
    "reference_exits": "CASE_NOT_MAKEABLE",
    "reference_inexact": "REFERENCE_OUTSIDE_TOLERANCE",
    "reference_writes": None,
    "factory_raises": "CASE_NOT_MAKEABLE",
    "refused": None,
    "accepted": "ILLEGAL_INPUT_ACCEPTED",
    "other_words": "WRONG_MESSAGE",
    "other_exception": "WRONG_EXCEPTION",
    "spoils": "UNUSABLE_AFTER_ILLEGAL",
    "crashes": "CRASHED",
    "sound_last": None,
}
INVALID = {"reference_raises", "reference_exits", "reference_inexact", "factory_raises"}
MESSAGES = {
    "segfault": "SIGSEGV",
    "aborts": "SIGABRT",
    "exits_0": "exit code 0",
    "hangs": "3 s",
    "stack_overflow": "SIGSEGV",
    "throws": "thrown on purpose",
    "mutates": "argument 0 ('x'), first at element",
    "aliases": "input 0",
    "wrong_shape": "[133]",
    "wrong_dtype": "float64",
    "one_element": "[77]",
    "unwritten_tail": "[136]",
    "not_contiguous": "(2,)",
    "reference_raises": "refuses 301",
    "factory_raises": "input factory refuses",
    "other_words": "I do not like this",
}


# The worker is lost, and the next case meets a fresh one.
LOSSES = {"CRASHED", "EXITED", "TIMEOUT", "OUTPUT_FLOOD", "PROTOCOL_VIOLATION", "CHANNEL_CLOSED"}


@pytest.mark.slow
def test_every_case_is_told_its_own_cause_and_the_others_still_run(project: Project) -> None:
    run = project.verify("misfits", "--timeout", "3")
    assert run.code == 4, run.stderr
    record = run.record("correctness.json")
    cases = {case["case_id"]: case for case in record["cases"]}
    assert {name: case["code"] for name, case in cases.items()} == VERDICTS
    for name, case in cases.items():
        status = "INVALID" if name in INVALID else "FAIL" if case["code"] else "PASS"
        assert case["status"] == status, case
        assert MESSAGES.get(name, "") in (case["message"] or "")
    assert record["planned_cases"] == len(VERDICTS)
    # The run that lists the dispatcher's calls has a worker of its own, and may meet a misfit too; another is
    # ended to see whether a case that could not be made can be made without it.
    losses = sum(code in LOSSES for code in VERDICTS.values())
    assert losses <= record["workers_lost"] <= losses + 2
    assert_rounds_say_which_call_went_wrong(cases)
    assert_the_text_helps(run)
    assert_the_archive_is_whole(run)


def assert_rounds_say_which_call_went_wrong(cases: dict[str, Any]) -> None:
    names = {name: [entry["name"] for entry in case["rounds"]] for name, case in cases.items()}
    assert names["first_calls_only"] == ["fixed", "repeat", "secret"]
    assert names["chance"] == ["fixed", "repeat"]
    assert [entry["status"] for entry in cases["sound_last"]["rounds"]] == ["PASS"] * 3
    evidence = cases["segfault"]["rounds"][0]["findings"][0]["evidence"]
    assert any("Segmentation fault" in text for text in evidence)


def assert_the_text_helps(run: Run) -> None:
    assert run.axis("build") == ("PASS", None)
    assert run.axis("numerics")[0] == "FAIL"
    assert run.axis("contract")[0] == "FAIL"
    assert "smallest failing input: segfault: float32[101]" in run.stdout
    assert "NOT ACCEPTED" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr


def assert_the_archive_is_whole(run: Run) -> None:
    attempt = rehash(run)
    assert not attempt.accepted
    names = {file.path for file in attempt.files}
    assert {"correctness.json", "compile.json", "compile_stderr.log", "sources/op.cpp"} <= names
    assert (run.folder / "sources" / "op.cpp").read_bytes() == (FIXTURES / "op.cpp").read_bytes()
