from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import attempt_factory as make
from mini_kv.artifacts import baselines, load_baseline, promote_baseline
from mini_kv.core.errors import ConfigurationError, ExitCode, IntegrityError
from mini_kv.core.records.archived_files import (
    BENCHMARK_FILE,
    CARD_FILE,
    ENVIRONMENT_FILE,
    MANIFEST_FILE,
)
from mini_kv.core.records.attempt import Axis, Baseline
from mini_kv.core.records.card import BenchmarkPlan
from mini_kv.core.records.results import Status

MiniKv = Callable[..., tuple[int, str, str]]
WANTED: Any = (BENCHMARK_FILE, CARD_FILE, ENVIRONMENT_FILE, MANIFEST_FILE)
PASSED = ("build", "numerics", "contract")


def promote(folder: Path, output: Path, *, replace: bool = False) -> Baseline:
    return promote_baseline(folder, output, now=make.START, replace=replace)


@pytest.fixture
def attempt_folder(tmp_path: Path) -> Path:
    return make.write_attempt(tmp_path / "artifacts")[1].folder


@pytest.fixture
def baseline_file(attempt_folder: Path, tmp_path: Path) -> Path:
    output = tmp_path / "baselines" / "vector_add.json"
    promote(attempt_folder, output)
    return output


# ---------------------------------------------------------------------------- promotion


def test_a_baseline_carries_samples_sources_and_hashes(baseline_file: Path) -> None:
    baseline = load_baseline(baseline_file)
    assert baseline.sources == {name: raw.decode() for name, raw in make.SOURCES.items()}
    assert baseline.benchmark == make.benchmark()
    assert baseline.candidate_manifest == make.manifest()
    assert baseline.environment.key == baseline.attempt.environment_key
    assert baseline.promoted_at == "2026-03-01T12:00:00.000000Z"
    assert list(baseline_file.parent.iterdir()) == [baseline_file], "no temporary file stays behind"


def test_a_baseline_is_never_silently_overwritten(attempt_folder: Path, baseline_file: Path) -> None:
    before = baseline_file.read_bytes()
    with pytest.raises(ConfigurationError, match="exists already"):
        promote(attempt_folder, baseline_file)
    assert baseline_file.read_bytes() == before
    promote_baseline(attempt_folder, baseline_file, now=make.START.replace(year=2027), replace=True)
    assert load_baseline(baseline_file).promoted_at.startswith("2027")


def test_a_name_that_appears_meanwhile_is_not_overwritten(
    attempt_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "late.json"
    monkeypatch.setattr("mini_kv.artifacts.baselines.os.path.lexists", lambda path: False)
    output.write_text("someone else's")
    with pytest.raises(ConfigurationError, match="exists already"):
        promote(attempt_folder, output)
    assert output.read_text() == "someone else's"


@pytest.mark.parametrize("dangling", ["link", "folder"])
def test_an_output_that_is_no_file_is_refused(attempt_folder: Path, tmp_path: Path, dangling: str) -> None:
    output = tmp_path / "output.json"
    if dangling == "link":
        output.symlink_to(tmp_path / "absent")
    else:
        output.mkdir()
    with pytest.raises(ConfigurationError):
        promote(attempt_folder, output)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"complete": False}, "not complete"),
        ({"accepted": False}, "not accepted"),
        ({"exit_code": 4}, "exit code 4"),
        ({"exit_code": 6, "accepted": False}, "exit code 6"),
        ({"axes": ()}, "do not show a correct candidate"),
        (
            {"axes": tuple(Axis(name=n, status=Status.UNVERIFIED, code=None, message=None) for n in PASSED)},
            "do not show a correct candidate",
        ),
        ({"benchmark_stable": False}, "not stable"),
        ({"benchmark_stable": None}, "no benchmark"),
        ({"environment_key": None}, "which environment"),
        ({"device": None}, "which environment"),
        ({"files": {}}, "no sources"),
        ({"files": {"a.cpp": b"\xff\xfe"}}, "not UTF-8"),
    ],
)
def test_only_a_complete_correct_stable_attempt_qualifies(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    _, writer = make.write_attempt(tmp_path / "artifacts", **changes)
    with pytest.raises(ConfigurationError, match=why) as refused:
        promote(writer.folder, tmp_path / "b.json")
    assert refused.value.exit_code is ExitCode.CONFIGURATION
    assert "\n" not in refused.value.message
    assert not (tmp_path / "b.json").exists()


LARGE, SMALL = make.benchmark().cases


@pytest.mark.parametrize(
    "timed",
    [
        make.benchmark(stable=False),
        make.benchmark(status=Status.FAIL),
        make.benchmark(LARGE),
        make.benchmark(LARGE, LARGE),
        make.benchmark(LARGE, msgspec.structs.replace(SMALL, stable=False)),
        make.benchmark(LARGE, msgspec.structs.replace(SMALL, candidate=None)),
        make.benchmark(LARGE, make.benchmark_case("small", make.series(10.0, repeats=1), make.series(20.0))),
    ],
)
def test_the_benchmark_itself_must_be_whole_and_stable(tmp_path: Path, timed: Any) -> None:
    _, writer = make.write_attempt(tmp_path / "artifacts", timed=timed)
    with pytest.raises(ConfigurationError):
        promote(writer.folder, tmp_path / "b.json")


def test_figures_that_do_not_follow_from_the_samples_are_tampering(tmp_path: Path) -> None:
    better = msgspec.structs.replace(LARGE.candidate, p50_us=5.0)
    timed = make.benchmark(msgspec.structs.replace(LARGE, candidate=better), SMALL)
    _, writer = make.write_attempt(tmp_path / "artifacts", timed=timed)
    with pytest.raises(IntegrityError, match="do not follow from its samples"):
        promote(writer.folder, tmp_path / "b.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"suite_sha256": "0" * 64},
        {"environment_key": "0" * 64},
        {"operator_version": "2.0.0"},
        {"device": "cuda"},
    ],
)
def test_an_attempt_that_contradicts_its_records_is_tampering(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    _, writer = make.write_attempt(tmp_path / "artifacts", **changes)
    with pytest.raises(IntegrityError, match="its records say"):
        promote(writer.folder, tmp_path / "b.json")


def test_a_card_that_plans_other_cases_is_refused(tmp_path: Path) -> None:
    task = make.card(benchmark=BenchmarkPlan(case_ids=("large",), primary_case_id="large"))
    _, writer = make.write_attempt(tmp_path / "artifacts", task=task)
    with pytest.raises(ConfigurationError, match="not what the card plans"):
        promote(writer.folder, tmp_path / "b.json")


@pytest.mark.parametrize("name", ["benchmark.json", "sources/binding.cpp", "environment.json"])
def test_a_changed_file_is_an_integrity_error_that_names_it(
    attempt_folder: Path, tmp_path: Path, name: str
) -> None:
    path = attempt_folder / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(IntegrityError, match=name) as refused:
        promote(attempt_folder, tmp_path / "b.json")
    assert refused.value.exit_code is ExitCode.INTEGRITY


def test_an_edited_attempt_json_is_caught_by_the_index(attempt_folder: Path, tmp_path: Path) -> None:
    path = attempt_folder / "attempt.json"
    path.write_text(path.read_text().replace('"elapsed_s": 2.5', '"elapsed_s": 1.5'))
    with pytest.raises(IntegrityError, match="not what the index recorded"):
        promote(attempt_folder, tmp_path / "b.json")


def test_what_is_no_attempt_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "x.partial"):
        with pytest.raises(ConfigurationError):
            promote(folder, tmp_path / "b.json")


# ---------------------------------------------------------------------------- reading


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    parts = json.loads(path.read_bytes())
    change(parts)
    path.write_text(json.dumps(parts))


def test_white_space_and_escapes_are_no_edit(baseline_file: Path) -> None:
    edit(baseline_file, lambda parts: None)
    assert load_baseline(baseline_file).attempt.task_id == "vector_add"


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "attempt": lambda parts: parts["attempt"].update(elapsed_s=9.0),
    "benchmark": lambda parts: parts["benchmark"]["cases"][0]["candidate"].update(p50_us=99.0),
    "environment": lambda parts: parts["environment"].update(driver="999"),
    "candidate_manifest": lambda parts: parts["candidate_manifest"].update(autograd=True),
    "sources/binding.cpp": lambda parts: parts["sources"].update({"binding.cpp": "// other"}),
    "sources/extra.cpp": lambda parts: parts["sources"].update({"extra.cpp": ""}),
    "sources/kernels/add.cu": lambda parts: parts["sources"].pop("kernels/add.cu"),
    "sources_sha256": lambda parts: parts["sources_sha256"].update({"binding.cpp": "0" * 64}),
}


@pytest.mark.parametrize("part", EDITS)
def test_an_edited_baseline_is_an_integrity_error_that_names_the_part(baseline_file: Path, part: str) -> None:
    edit(baseline_file, EDITS[part])
    with pytest.raises(IntegrityError, match=part) as refused:
        load_baseline(baseline_file)
    assert refused.value.exit_code is ExitCode.INTEGRITY


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts.pop(key)


@pytest.mark.parametrize(
    "change",
    [
        drop("benchmark"),
        lambda parts: parts.update(surprise=1),
        lambda parts: parts.update(schema_version="2.0.0"),
        lambda parts: parts["benchmark"]["cases"][0]["candidate"].update(p50_us=None),
    ],
)
def test_what_is_no_baseline_of_this_version_is_refused(
    baseline_file: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    edit(baseline_file, change)
    with pytest.raises(ConfigurationError) as refused:
        load_baseline(baseline_file)
    assert str(baseline_file) in refused.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"p50": NaN}'])
def test_garbage_is_refused_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is not a baseline"):
        load_baseline(path)


def test_a_missing_baseline_is_refused_and_a_link_is_followed(baseline_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_baseline(tmp_path / "absent.json")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_baseline(tmp_path)
    (tmp_path / "link.json").symlink_to(baseline_file)
    assert load_baseline(tmp_path / "link.json") == load_baseline(baseline_file)


# ---------------------------------------------------------------------------- command


def test_command_promotes_once(attempt_folder: Path, tmp_path: Path, mini_kv: MiniKv) -> None:
    output = tmp_path / "b.json"
    argv = ("promote-baseline", "--attempt", str(attempt_folder), "--output", str(output))
    code, out, err = mini_kv(*argv)
    assert (code, err) == (0, "")
    assert "v0_naive 1.0.0 on vector_add, 2 cases" in out
    code, out, err = mini_kv(*argv)
    assert (code, out) == (2, "")
    assert "--replace" in err
    code, out, _ = mini_kv(*argv, "--replace", "--json")
    assert code == 0
    assert json.loads(out)["cases"] == ["large", "small"]


@pytest.mark.parametrize("content", [b"# A page that took a week\n", b"{}", b"[]", b"", b"\xff"])
def test_replace_overwrites_no_file_but_a_baseline(
    attempt_folder: Path, tmp_path: Path, mini_kv: MiniKv, content: bytes
) -> None:
    output = tmp_path / "README.md"
    output.write_bytes(content)
    code, out, err = mini_kv(
        "promote-baseline", "--attempt", str(attempt_folder), "--output", str(output), "--replace"
    )
    assert (code, out) == (2, "")
    assert err == f"mini-kv: {output} is no baseline, which is all that --replace overwrites.\n"
    assert output.read_bytes() == content


def test_replace_overwrites_a_baseline_of_another_version(attempt_folder: Path, baseline_file: Path) -> None:
    edit(baseline_file, lambda parts: parts.update(schema_version="0.9.0"))
    promote(attempt_folder, baseline_file, replace=True)
    assert load_baseline(baseline_file).schema_version == "1.0.0"


def test_a_folder_is_not_said_to_yield_to_replace(
    attempt_folder: Path, tmp_path: Path, mini_kv: MiniKv
) -> None:
    code, out, err = mini_kv("promote-baseline", "--attempt", str(attempt_folder), "--output", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"mini-kv: {tmp_path} is a folder; allowed: the file to write.\n"


def test_command_names_what_was_changed(attempt_folder: Path, tmp_path: Path, mini_kv: MiniKv) -> None:
    (attempt_folder / "benchmark.json").unlink()
    code, out, err = mini_kv(
        "promote-baseline", "--attempt", str(attempt_folder), "--output", str(tmp_path / "b.json")
    )
    assert (code, out) == (7, "")
    assert "benchmark.json is missing" in err


@pytest.mark.parametrize(
    "name", ["benchmark.json", "environment.json", "task_card.json", "candidate_manifest.json"]
)
def test_a_record_that_the_attempt_does_not_list_was_promoted(tmp_path: Path, name: str) -> None:
    """Nothing says that a file is what was archived where the attempt has no hash of it."""
    archived, writer = make.write_attempt(tmp_path / "artifacts")
    unlisted = msgspec.structs.replace(
        archived, files=tuple(file for file in archived.files if file.path != name)
    )
    wanted = next(one for one in WANTED if one.name == name)
    assert baselines._archived(writer.folder, archived, wanted) is not None
    with pytest.raises(ConfigurationError, match=f"it holds no {name}") as refused:
        baselines._archived(writer.folder, unlisted, wanted)
    assert refused.value.code == "NOT_PROMOTABLE"
