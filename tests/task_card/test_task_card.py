"""Every kind of bad card is refused with a sentence: file, line, key, what was found, what is allowed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from card_files import CARDS, VALID, edited, make_project, problems_of, write
from mini_kv.cli.validate_task import _candidate_folders
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import CaseKind
from mini_kv.task_card import LoadedCard, load_task_card
from mini_kv.task_card.loading import MAX_FILE_BYTES
from processor_time import least_ms, spent_ms

VALIDATE_LIMIT_MS = 250
# A card may be written before its candidate.
ABSENT = (
    "mini-kv: remark: tasks/x.yaml:7: candidate: found no folder 'candidates/scale/v0' yet; 'verify' needs "
    "it, or another one as --candidate\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


# ---------------------------------------------------------------------- what is accepted


def test_a_valid_card_gives_the_record_its_path_and_its_hash(project: Path) -> None:
    path = write(project, VALID)
    loaded = load_task_card(path)
    assert isinstance(loaded, LoadedCard)
    assert loaded.path == "tasks/x.yaml"
    assert loaded.raw == VALID
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [case.kind for case in loaded.card.cases] == [CaseKind.CORE, CaseKind.CORE, CaseKind.ILLEGAL]
    assert loaded.card.cases[2].params == {"shape": (2, 3), "dtype": "float64"}
    assert loaded.card.contract.gradcheck is False
    assert loaded.card.benchmark.iterations == 100


def test_an_exponent_without_a_point_is_a_number(project: Path) -> None:
    card = load_task_card(write(project, VALID), project).card
    assert card.cases[0].params["eps"] == card.cases[1].params["eps"] == 1e-5
    assert card.tolerances["float16"].rtol == 1e-3


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(project: Path) -> None:
    loaded = load_task_card(write(project, b"\xef\xbb\xbf" + VALID.replace("\n", "\r\n").encode()), project)
    assert loaded.card.task_id == "scale"
    assert hashlib.sha256(loaded.raw.encode()).hexdigest() == loaded.sha256


def test_a_card_written_as_json_is_accepted(project: Path) -> None:
    content = json.dumps(msgspec.to_builtins(load_task_card(write(project, VALID), project).card), indent=1)
    assert (
        load_task_card(write(project, content), project).card
        == load_task_card(write(project, VALID), project).card
    )


def test_an_alias_stands_for_its_anchor(project: Path) -> None:
    content = edited(
        "params: {rows: 31, hidden: 1025, dtype: float32, eps: 1e-5}", "params: &p {dtype: float32}"
    )
    content = content.replace("params: {rows: 32, hidden: 128, dtype: float16, eps: 1.0e-5}", "params: *p")
    card = load_task_card(write(project, content), project).card
    assert card.cases[0].params == card.cases[1].params == {"dtype": "float32"}


def test_a_minor_version_above_ours_is_read(project: Path) -> None:
    assert (
        load_task_card(write(project, edited('"1.0.0"', '"1.7.2"')), project).card.schema_version == "1.7.2"
    )


def test_a_candidate_folder_is_normalised(project: Path) -> None:
    content = edited("candidates/scale/v0", "./candidates//scale/v0/")
    assert load_task_card(write(project, content), project).card.candidate == "candidates/scale/v0"


def test_the_shipped_cards_are_valid(project_root: Path) -> None:
    cards = sorted((project_root / "tasks").glob("*.yaml"))
    for card in cards:
        assert load_task_card(card).path == f"tasks/{card.name}"


# ---------------------------------------------------------------------- one defect, one sentence


def defects() -> dict[str, dict[str, str]]:
    """name -> ``old`` of the valid card, its replacement ``new``, and how the sentence about it begins."""
    table: dict[str, dict[str, str]] = yaml.safe_load((CARDS / "defects.yaml").read_text("utf-8"))
    return table


DEFECTS = defects()


@pytest.mark.parametrize("name", DEFECTS)
def test_one_defect_gives_one_sentence(project: Path, name: str) -> None:
    defect = DEFECTS[name]
    found = problems_of(project, edited(defect["old"], defect["new"]))
    assert any(problem.startswith(f"tasks/x.yaml:{defect['problem']}") for problem in found), found
    # Defects that unmake what another key means may add that consequence; nothing may add noise.
    consequences = {"duplicate case id": 3, "unknown dtype of a tolerance": 2}
    assert len(found) <= consequences.get(name, 1), found


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (
            f"rows: {'9' * 5000}",
            "found 99999999999999999999... (5,000 characters), a number too large;",
        ),
        (f"rows: {'x' * 5000}", "found text of 5,000 characters; allowed: at most 4,096"),
        (f"rows: [{'1, ' * 1025}]", "found a list of 1025; allowed: lists of at most 1024"),
    ],
    ids=["digits", "letters", "items"],
)
def test_a_value_without_end_is_refused(project: Path, new: str, expected: str) -> None:
    (problem,) = problems_of(project, edited("rows: 31", new))
    assert problem.startswith(f"tasks/x.yaml:12: cases[0].params.rows: {expected}")


def test_all_errors_come_at_once_in_the_order_of_the_file(project: Path) -> None:
    content = VALID
    for name in (
        "bad identifier",
        "unknown device",
        "unknown dtype",
        "not a number",
        "duplicate key in a flow mapping",
        "illegal case without raises",
        "primary case that does not exist",
    ):
        content = content.replace(DEFECTS[name]["old"], DEFECTS[name]["new"], 1)
    found = problems_of(project, content)
    assert [int(problem.split(":")[1]) for problem in found] == [2, 8, 12, 15, 16, 20, 26], found


@pytest.mark.parametrize("name", ["profiles", "comparisons", "index.db", "index.lock", "artifact_index.json"])
def test_a_task_id_that_the_archive_needs_for_itself_was_taken(project: Path, name: str) -> None:
    (problem,) = problems_of(project, edited("task_id: scale", f"task_id: {name}"))
    assert problem.startswith(f"tasks/x.yaml:2: task_id: found '{name}'; allowed: "), problem


@pytest.mark.parametrize(
    "line",
    [
        "task_id: scale",
        "operator: scale",
        "operator_version: 1.0.0",
        "reference: scale_reference:scale",
        "input_factory: scale_reference:make_inputs",
        "candidate: candidates/scale/v0",
        "id: core_f32",
        "exception: RuntimeError",
        "rows: 31",
        "primary_case_id: core_f16",
    ],
)
def test_a_line_break_after_a_name_was_part_of_it(project: Path, line: str) -> None:
    key, _, value = line.partition(": ")
    broken = f'"{key}\\n": {value}' if key == "rows" else f'{key}: "{value}\\n"'
    assert problems_of(project, edited(line, broken))


def test_ten_thousand_errors_stay_readable(project: Path) -> None:
    content = VALID + "".join(f"key_{index}: 1\n" for index in range(10_000))
    with pytest.raises(ConfigurationError) as caught:
        load_task_card(write(project, content), project)
    assert caught.value.message == "tasks/x.yaml is no valid Task Card: more than 500 problems."
    assert len(caught.value.problems) == 501
    assert caught.value.problems[-1].startswith("tasks/x.yaml: found more problems")


# ---------------------------------------------------------------------- files, not text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "1: found an empty file; allowed: one YAML mapping"),
        (b" \n\n", "1: found an empty file; allowed: one YAML mapping"),
        (
            b"# nothing yet\n",
            "1: found no value (comments only) at the top; allowed: a mapping of keys to values",
        ),
        (b"- a\n- b\n", "1: found a list of 2 at the top; allowed: a mapping of keys to values"),
        (b"\njust text\n", "2: found 'just text' at the top; allowed: a mapping of keys to values"),
        (b"a: 1\nb: \xff\n", "2: found the byte 0xff; allowed: UTF-8 text"),
        (
            b"\x7fELF\x02\x01\x01\0\0",
            "1: found a NUL byte, as binary files and UTF-16 have; allowed: UTF-8 text",
        ),
        (VALID.encode("utf-16"), "1: found a NUL byte, as binary files and UTF-16 have; allowed: UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n", "1: found the byte 0x89; allowed: UTF-8 text"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(project: Path, content: bytes, expected: str) -> None:
    assert problems_of(project, content) == (f"tasks/x.yaml:{expected}",)


def refused_file(path: Path, project: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_task_card(path, project)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


def test_a_missing_file_a_directory_and_a_pipe_are_refused(project: Path) -> None:
    assert refused_file(project / "tasks/none.yaml", project) == (
        "tasks/none.yaml: found no such file; allowed: an existing file"
    )
    for name in ("scale.yaml", "mul.yaml", "add.yaml"):
        (project / "tasks" / name).touch()
    assert refused_file(project / "tasks/sclae.yaml", project).startswith(
        "tasks/sclae.yaml: found no such file; allowed: an existing file, such as tasks/scale.yaml, "
    )
    assert refused_file(project / "tasks", project) == "tasks: found a directory; allowed: a regular file"
    os.mkfifo(project / "tasks/pipe.yaml")
    assert "found a pipe, socket or device; allowed: a regular file" in refused_file(
        project / "tasks/pipe.yaml", project
    )
    assert "found a NUL byte in the path" in refused_file(Path("tasks/\0.yaml"), project)


def test_a_file_of_50_megabytes_is_refused_before_it_is_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project / "tasks/x.yaml"
    with open(path, "wb") as stream:
        stream.truncate(50_000_000)
    monkeypatch.setattr(os, "fdopen", lambda *_, **__: pytest.fail("the file was read"))
    assert refused_file(path, project) == (
        f"tasks/x.yaml: found a file of 50,000,000 bytes; allowed: at most {MAX_FILE_BYTES:,} bytes"
    )


def test_a_card_linked_out_of_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text(VALID)
    (project / "tasks/x.yaml").symlink_to(tmp_path / "outside.yaml")
    assert refused_file(project / "tasks/x.yaml", project).startswith(
        "tasks/x.yaml: found a file outside the project"
    )
    assert refused_file(tmp_path / "outside.yaml", project).count("found a file outside the project") == 1


def test_a_link_within_the_project_is_followed(project: Path) -> None:
    (project / "real.yaml").write_text(VALID)
    (project / "tasks/x.yaml").symlink_to("../real.yaml")
    assert load_task_card(project / "tasks/x.yaml").path == "tasks/x.yaml"


def test_a_candidate_linked_out_of_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere/v0").mkdir(parents=True)
    (project / "candidates").mkdir()
    (project / "candidates/scale").symlink_to(tmp_path / "elsewhere")
    (problem,) = problems_of(project, VALID)
    assert problem == (
        "tasks/x.yaml:7: candidate: found 'candidates/scale/v0', which a symbolic link leads out of "
        "the project; allowed: a relative path with '/' that stays inside the project"
    )


def test_a_candidate_that_is_a_file_is_refused(project: Path) -> None:
    (project / "candidates/scale").mkdir(parents=True)
    (project / "candidates/scale/v0").touch()
    (problem,) = problems_of(project, VALID)
    assert problem == (
        "tasks/x.yaml:7: candidate: found 'candidates/scale/v0', which is no folder; "
        "allowed: a candidate's folder"
    )


def test_an_id_that_would_break_the_line_is_escaped_where_it_is_listed(project: Path) -> None:
    found = problems_of(project, edited("case_ids: [core_f32, core_f16]", 'case_ids: [core_f32, "a\u2028b"]'))
    assert found[-1].endswith("which is not timed; allowed: one of a\\u2028b, core_f32")


def test_a_name_that_would_break_the_line_is_escaped(project: Path) -> None:
    path = project / "tasks/a\nb\udcff.yaml"
    assert refused_file(path, project) == (
        "tasks/a\\nb\\udcff.yaml: found no such file; allowed: an existing file"
    )


# ---------------------------------------------------------------------- the command


def test_validate_task_prints_one_line_a_card(
    project: Path, mini_kv: Callable[..., tuple[int, str, str]]
) -> None:
    write(project, VALID)
    code, out, err = mini_kv("validate-task", str(project / "tasks"))
    assert (code, out, err) == (0, "ok tasks/x.yaml  scale 1.0.0  3 cases (2 core, 1 illegal)\n", ABSENT)


def test_validate_task_names_every_problem_on_stderr(
    project: Path, mini_kv: Callable[..., tuple[int, str, str]]
) -> None:
    write(project, edited("device: auto", "device: tpu").replace("rows: 31", "rows: on"))
    (project / "tasks/good.yaml").write_text(VALID)
    code, out, err = mini_kv("validate-task", str(project / "tasks"))
    assert code == 2
    assert out.splitlines() == ["ok tasks/good.yaml  scale 1.0.0  3 cases (2 core, 1 illegal)"]
    assert err.splitlines()[1] == "mini-kv: tasks/x.yaml is not accepted: 2 problems."
    assert "  tasks/x.yaml:8: device: found 'tpu'; allowed: one of auto, cpu, cuda" in err.splitlines()


def test_validate_task_answers_in_json(project: Path, mini_kv: Callable[..., tuple[int, str, str]]) -> None:
    write(project, VALID)
    code, out, err = mini_kv("validate-task", "--json", str(project / "tasks/x.yaml"))
    answer = json.loads(out)
    assert (code, err, answer["ok"]) == (0, "", True)
    assert answer["cards"][0]["cases"] == {"core": 2, "illegal": 1}
    write(project, edited("device: auto", "device: tpu"))
    code, out, err = mini_kv("validate-task", "--json", str(project / "tasks/x.yaml"))
    assert (code, err) == (2, "")
    assert json.loads(out)["cards"][0]["problems"] == [
        "tasks/x.yaml:8: device: found 'tpu'; allowed: one of auto, cpu, cuda"
    ]


def test_validate_task_checks_the_default_candidate_where_it_exists(
    project: Path, mini_kv: Callable[..., tuple[int, str, str]]
) -> None:
    write(project, VALID)
    (project / "candidates/scale/v0").mkdir(parents=True)
    code, out, err = mini_kv("validate-task", str(project / "tasks/x.yaml"))
    assert (code, out) == (2, "")
    assert "candidates/scale/v0/candidate.yaml: found no such file; allowed: a candidate's folder" in err


NO_MODULE = (
    "5: reference: found 'scale_referenc:scale', and there is no module 'scale_referenc'; allowed: a module "
    "that is installed or lies in the project's folder, as scale_referenc.py would "
    "(did you mean 'scale_reference'?)"
)
NO_FUNCTION = (
    "6: input_factory: found 'scale_reference:make_input', which scale_reference.py does not define; "
    "allowed: one of make_inputs, scale (did you mean 'make_inputs'?)"
)
NO_EXCEPTION = (
    "19: cases[2].raises.exception: found 'RuntimError', which is no exception of Python's but nearly one; "
    "allowed: an exception's class name (did you mean 'RuntimeError'?)"
)
WRONG_NAMES = {
    "scale_reference:scale": ("scale_referenc:scale", NO_MODULE),
    "scale_reference:make_inputs": ("scale_reference:make_input", NO_FUNCTION),
    "exception: RuntimeError": ("exception: RuntimError", NO_EXCEPTION),
}


@pytest.mark.parametrize("right", WRONG_NAMES)
def test_a_name_that_leads_nowhere_was_ok_and_held_against_the_candidate_later(
    project: Path, mini_kv: Callable[..., tuple[int, str, str]], right: str
) -> None:
    wrong, problem = WRONG_NAMES[right]
    path = write(project, edited(right, wrong))
    code, out, err = mini_kv("validate-task", str(path))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"  tasks/x.yaml:{problem}"


@pytest.mark.parametrize("name", ["OutOfMemoryError", "MyError", "RuntimeErrorOfMine", "my.RuntimError"])
def test_an_exception_of_the_candidates_own_is_no_misspelt_one(project: Path, name: str) -> None:
    card = load_task_card(
        write(project, edited("exception: RuntimeError", f"exception: {name}")), project
    ).card
    assert card.cases[2].raises is not None and card.cases[2].raises.exception == name


def test_a_candidate_folder_that_is_not_there_was_passed_over(
    project: Path, mini_kv: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = mini_kv("validate-task", "--json", str(write(project, VALID)))
    (card,) = json.loads(out)["cards"]
    assert (code, err, card["ok"], card["candidate"]) == (0, "", True, None)
    assert [f"mini-kv: remark: {remark}\n" for remark in card["remarks"]] == [ABSENT]
    (project / "candidates/scale/v1").mkdir(parents=True)
    (project / "candidates/scale/v1/candidate.yaml").touch()
    _candidate_folders.cache_clear()
    _, _, err = mini_kv("validate-task", str(project / "tasks/x.yaml"))
    assert "found no folder 'candidates/scale/v0' yet (did you mean 'candidates/scale/v1'?); " in err


def test_validate_task_refuses_a_folder_without_cards(
    project: Path, mini_kv: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = mini_kv("validate-task", str(project / "tasks"))
    assert (code, out) == (2, "")
    assert "holds no Task Card" in err


def test_validate_task_answers_in_time(project: Path) -> None:
    path = write(project, VALID)

    def once() -> float:
        argv = [sys.executable, "-m", "mini_kv", "validate-task", str(path)]
        taken_ms, code = spent_ms(argv, stdout=subprocess.DEVNULL)
        assert code == 0
        return taken_ms

    assert least_ms(once, VALIDATE_LIMIT_MS) <= VALIDATE_LIMIT_MS


def big_card(number: int) -> str:
    """A card of 24 cases, all different."""
    cases = "".join(
        f"  - id: case_{index}\n    kind: core\n"
        f"    params: {{rows: {number + index}, hidden: {1024 + index}, dtype: float32, eps: 1e-5}}\n"
        for index in range(24)
    )
    head, _, tail = VALID.partition("  - id: core_f32\n")
    tail = tail[tail.index("tolerances:") :].replace("core_f32", "case_1").replace("core_f16", "case_2")
    return head.replace("task_id: scale", f"task_id: scale_{number}") + cases + tail


def test_a_thousand_cards_take_less_than_three_seconds(project: Path) -> None:
    """250 cards in CPU time, so that the test stays short and neighbours on the machine do not matter."""
    for number in range(250):
        (project / f"tasks/card_{number}.yaml").write_text(big_card(number))
    started = time.process_time()
    for number in range(250):
        assert len(load_task_card(project / f"tasks/card_{number}.yaml", project).card.cases) == 24
    assert time.process_time() - started < 3.0 / 4
