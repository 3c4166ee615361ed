"""Schemas follow the records, and a committed file that breaks its schema does not pass unseen."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest
from jsonschema import Draft202012Validator

from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.record import to_json
from mini_kv.core.records.attempt import ArchivedFile, Attempt, Leaderboard
from mini_kv.core.records.card import (
    AXIS_NAME,
    DISPATCHER_NAME,
    EXCEPTION_NAME,
    IDENTIFIER,
    IMPORT_PATH,
    SAME_MAJOR,
    SEMANTIC_VERSION,
    BenchmarkPlan,
    Case,
    CaseKind,
    Contract,
    TaskCard,
    Tolerance,
)
from mini_kv.core.records.profile import Seed
from mini_kv.core.records.regression import Decision, Regression
from mini_kv.core.records.results import Sha256
from mini_kv.core.records.schemas import (
    DIALECT,
    RECORDS,
    drift,
    schema_document,
    schema_file_name,
    schema_text,
)

RunMiniKv = Callable[..., tuple[int, str, str]]

CARD = TaskCard(
    schema_version="1.0.0",
    task_id="vector_add",
    operator="vector_add",
    operator_version="1.0.0",
    reference="mini_kv.references.vector_add:reference",
    input_factory="mini_kv.references.vector_add:make_inputs",
    candidate="candidates/vector_add/v0_naive",
    device="auto",
    cases=(Case(id="n1", kind=CaseKind.CORE, params={"shape": (1, 2), "dtype": "float32", "alpha": 0.5}),),
    tolerances={"float32": Tolerance(rtol=1e-6, atol=1e-6)},
    contract=Contract(),
    benchmark=BenchmarkPlan(case_ids=("n1",), primary_case_id="n1"),
)

REGRESSION = Regression(
    schema_version="1.0.0",
    decision=Decision.NO_BASELINE,
    code="NO_BASELINE",
    message="No baseline was given.",
    baseline=None,
    baseline_sha256=None,
    cases=(),
)


def attempt_with(files: tuple[ArchivedFile, ...]) -> Attempt:
    return Attempt(
        schema_version="1.0.0",
        attempt_id="20260101T000000Z-0000",
        task_id="vector_add",
        operator="vector_add",
        operator_version="1.0.0",
        candidate_id="vector_add_v0",
        candidate_version="0.1.0",
        candidate_folder="candidates/vector_add/v0_naive",
        device="cpu",
        suite_sha256="0" * 64,
        environment_key=None,
        build_key=None,
        reference_sha256=None,
        started_at="2026-01-01T00:00:00Z",
        elapsed_s=1.0,
        stage_elapsed_s={},
        complete=False,
        accepted=False,
        exit_code=3,
        axes=(),
        findings=(),
        secret_seeds={},
        benchmark_stable=None,
        geomean_speedup=None,
        primary_p50_us=None,
        files=files,
    )


def errors(name: str, value: Any) -> list[str]:
    return [error.json_path for error in Draft202012Validator(schema_document(name)).iter_errors(value)]


# ------------------------------------------------------------------------------------ documents


@pytest.mark.parametrize("name", RECORDS)
def test_document_is_draft_2020_12_and_names_itself(name: str) -> None:
    document = schema_document(name)
    Draft202012Validator.check_schema(document)
    assert document["$schema"] == DIALECT
    assert document["$id"] == f"urn:mini-kv:schema:{name}:1.0.0"


@pytest.mark.parametrize("name", RECORDS)
def test_every_object_of_a_record_is_closed_and_required_follows_the_defaults(name: str) -> None:
    document = schema_document(name)
    for part in [document, *document.get("$defs", {}).values()]:
        if part.get("type") == "object":
            assert part["additionalProperties"] is False, part["title"]
            assert set(part["required"]) <= set(part["properties"]), part["title"]
    fields = {field.encode_name: field.required for field in msgspec.structs.fields(RECORDS[name])}
    assert set(document["properties"]) == set(fields)
    assert set(document["required"]) == {field for field, required in fields.items() if required}


@pytest.mark.parametrize("name", RECORDS)
def test_every_reference_of_a_document_resolves_inside_it(name: str) -> None:
    text = schema_text(name)
    document = json.loads(text)
    assert set(references(document)) == {f"#/$defs/{key}" for key in document.get("$defs", {})}


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for part in value.values() for found in references(part)]
    if isinstance(value, list):
        return [found for part in value for found in references(part)]
    return []


# What each pattern of a schema is for, and one text that fits it.
PATTERN_SAMPLES = {
    SAME_MAJOR: "1.0.0",
    SEMANTIC_VERSION: "0.1.0",
    IDENTIFIER: "vector_add",
    AXIS_NAME: "n",
    IMPORT_PATH: "mini_kv.references.vector_add:reference",
    DISPATCHER_NAME: "mini_kv::vector_add",
    EXCEPTION_NAME: "RuntimeError",
    msgspec.json.schema(Sha256)["pattern"]: "0" * 64,
    msgspec.json.schema(Seed)["pattern"]: "0" * 16,
}


def patterns(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["pattern"]} if isinstance(value.get("pattern"), str) else set()
        return own.union(*map(patterns, value.values()))
    return set().union(*map(patterns, value)) if isinstance(value, list) else set()


def test_a_pattern_let_a_final_line_break_pass() -> None:
    found = set().union(*(patterns(schema_document(name)) for name in RECORDS))
    assert found == set(PATTERN_SAMPLES)
    for pattern, sample in PATTERN_SAMPLES.items():
        kind = Annotated[str, msgspec.Meta(pattern=pattern)]
        schema = {"type": "string", "pattern": pattern}
        judges = (jsonschema_rs.validator_for(schema), Draft202012Validator(schema))
        assert all(judge.is_valid(sample) for judge in judges), pattern
        assert msgspec.convert(sample, kind) == sample
        for tail in ("\n", "\r\n", "\n\n", " ", "\u2028"):
            assert not any(judge.is_valid(sample + tail) for judge in judges), (pattern, tail)
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(sample + tail, kind)


def test_a_record_as_written_is_valid() -> None:
    assert errors("task_card", json.loads(to_json(CARD))) == []
    assert errors("regression", json.loads(to_json(REGRESSION))) == []


@pytest.mark.parametrize(
    ("path", "value", "reported"),
    [
        (("schema_version",), "2.0.0", "$.schema_version"),
        (("schema_version",), "1.0", "$.schema_version"),
        (("tolerances", "float8"), {"rtol": 0.1, "atol": 0.1}, "$.tolerances"),
        (("tolerances", "float32", "rtol"), -1.0, "$.tolerances.float32.rtol"),
        (("tolerances", "float32", "rtol"), "1e-3", "$.tolerances.float32.rtol"),
        (("benchmark", "iterations"), 0, "$.benchmark.iterations"),
        (("benchmark", "cache"), "warm", "$.benchmark.cache"),
        (("surprise",), 1, "$"),
        (("cases",), [], "$.cases"),
    ],
)
def test_a_card_out_of_bounds_is_refused(path: tuple[str, ...], value: Any, reported: str) -> None:
    card = json.loads(to_json(CARD))
    spot = card
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    assert errors("task_card", card) == [reported]


def test_a_field_with_a_default_may_be_left_out_and_another_may_not() -> None:
    card = json.loads(to_json(CARD))
    del card["benchmark"]["warmup"], card["cases"][0]["raises"]
    assert errors("task_card", card) == []
    del card["operator"]
    assert errors("task_card", card) == ["$"]


# ---------------------------------------------------------------------------------------- drift


def test_committed_schemas_are_what_the_records_generate(project_root: Path) -> None:
    found = {path.name: path.read_text("utf-8") for path in (project_root / "schemas").iterdir()}
    assert drift(found) == ()


def test_drift_names_a_changed_a_missing_and_an_orphaned_schema() -> None:
    found = {schema_file_name(name): schema_text(name) for name in RECORDS}
    found["attempt.schema.json"] = found["attempt.schema.json"].replace('"exit_code"', '"exit_status"')
    del found["baseline.schema.json"]
    found["verdict.schema.json"] = "{}\n"
    assert drift(found) == (
        "attempt.schema.json differs from the model of Attempt",
        "baseline.schema.json is missing",
        "verdict.schema.json belongs to no record",
    )


# -------------------------------------------------------------------------------------- command


def test_command_writes_what_drift_accepts_and_leaves_equal_files_alone(
    mini_kv: RunMiniKv, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "schemas"
    code, out, _ = mini_kv("schema", "--write", str(folder))
    assert code == 0
    assert out.count("written") == len(RECORDS)
    assert drift({path.name: path.read_text("utf-8") for path in folder.iterdir()}) == ()
    before = (folder / "attempt.schema.json").stat().st_mtime_ns
    assert mini_kv("schema", "--write", str(folder))[1].count("unchanged") == len(RECORDS)
    assert (folder / "attempt.schema.json").stat().st_mtime_ns == before


def test_command_prints_one_schema_and_lists_all(mini_kv: RunMiniKv) -> None:
    assert mini_kv("schema", "regression") == (0, schema_text("regression"), "")
    assert mini_kv("schema", "--list")[1].split() == list(RECORDS)
    assert json.loads(mini_kv("schema", "--list", "--json")[1]) == list(RECORDS)


@pytest.mark.parametrize(
    "argv", [[], ["attempt", "--list"], ["attempts"], ["--list", "--write", "x"], ["attempt", "--json"]]
)
def test_command_refuses_unclear_usage_with_one_sentence(mini_kv: RunMiniKv, argv: list[str]) -> None:
    code, out, err = mini_kv("schema", *argv)
    assert (code, out) == (2, "")
    assert err.startswith("mini-kv: ")
    assert err.count("\n") == 1


def test_command_says_where_it_cannot_write(mini_kv: RunMiniKv, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = mini_kv("schema", "--write", str(tmp_path / "file"))
    assert code == 2
    assert str(tmp_path / "file") in err


# -------------------------------------------------------------------- scripts/validate_schemas.py


@pytest.fixture(scope="module")
def validator(project_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "validate_schemas", project_root / "scripts/validate_schemas.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout with one card and one archived attempt, all of it valid."""
    (tmp_path / "schemas").mkdir()
    for name in RECORDS:
        (tmp_path / "schemas" / schema_file_name(name)).write_text(schema_text(name))
    (tmp_path / "tasks").mkdir()
    # JSON is YAML too, floats without a point (1e-6) included.
    (tmp_path / "tasks/vector_add.yaml").write_bytes(to_json(CARD))
    folder = tmp_path / "evidence/gpu/vector_add/a1"
    folder.mkdir(parents=True)
    raw = to_json(REGRESSION)
    (folder / "regression.json").write_bytes(raw)
    entry = ArchivedFile(path="regression.json", sha256=sha256_bytes(raw), size_bytes=len(raw))
    (folder / "attempt.json").write_bytes(to_json(attempt_with((entry,))))
    return tmp_path


def validate(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str]]:
    code = validator.main(["--root", str(checkout)])
    return code, capsys.readouterr().err.splitlines()[:-1]


ATTEMPT = "evidence/gpu/vector_add/a1"


def test_a_valid_checkout_passes(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validator.main(["--root", str(checkout)]) == 0
    assert "tasks 1, evidence 2" in capsys.readouterr().out


def test_corrupted_evidence_is_caught(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / ATTEMPT / "regression.json"
    path.write_text(path.read_text().replace('"NO_BASELINE"', '"PASSED"', 1))
    code, problems = validate(validator, checkout, capsys)
    assert code == 1
    assert problems[0].startswith(f"{ATTEMPT}/attempt.json: regression.json is not the file")
    assert problems[1].startswith(f"{ATTEMPT}/regression.json: at $.decision: 'PASSED' is not one of")


def test_edited_evidence_that_still_fits_its_schema_is_caught_by_its_hash(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / ATTEMPT / "regression.json"
    path.write_text(path.read_text().replace('"NO_BASELINE"', '"PASS"', 1))
    code, problems = validate(validator, checkout, capsys)
    assert code == 1
    assert [problem.partition(":")[0] for problem in problems] == [f"{ATTEMPT}/attempt.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ('{"schema_version": "1.0.0", "groups": NaN}', "NaN is not JSON"),
        ('{"schema_version": "1.0.0", "groups": [], "groups": []}', "duplicate key 'groups'"),
        ('{"schema_version": "1.0.0"}', "'groups' is a required property"),
        ("[]", "is not of type 'object'"),
    ],
)
def test_evidence_that_is_no_record_is_named(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (checkout / "evidence/gpu/cpu_leaderboard.json").write_text(text)
    code, problems = validate(validator, checkout, capsys)
    assert code == 1
    assert len(problems) == 1
    assert problems[0].startswith("evidence/gpu/cpu_leaderboard.json: ")
    assert said in problems[0]


def test_evidence_of_unknown_name_must_name_its_schema(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / "evidence/gpu/numbers.json"
    path.write_text("{}")
    assert "no schema is known for this name" in validate(validator, checkout, capsys)[1][0]
    table = Leaderboard(schema_version="1.0.0", groups=())
    named = {"$schema": "urn:mini-kv:schema:leaderboard:1.0.0"} | json.loads(to_json(table))
    path.write_text(json.dumps(named))
    assert validator.main(["--root", str(checkout)]) == 0
    path.write_text(json.dumps(named | {"groups": 1}))
    assert "at $.groups" in validate(validator, checkout, capsys)[1][0]


def test_what_was_compiled_is_not_taken_for_evidence(validator: ModuleType, checkout: Path) -> None:
    (checkout / ATTEMPT / "sources").mkdir()
    (checkout / ATTEMPT / "sources/config.json").write_text("not JSON")
    assert validator.main(["--root", str(checkout)]) == 0


def test_a_card_manifest_or_baseline_that_breaks_its_schema_is_named(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "tasks/other.yaml").write_text("task_id: [")
    (checkout / "candidates/add/v0").mkdir(parents=True)
    (checkout / "candidates/add/v0/candidate.yaml").write_text("schema_version: 1.0.0\n")
    (checkout / "baselines").mkdir()
    (checkout / "baselines/add.json").write_text("{}")
    code, problems = validate(validator, checkout, capsys)
    assert code == 1
    assert {problem.partition(":")[0] for problem in problems} == {
        "tasks/other.yaml",
        "candidates/add/v0/candidate.yaml",
        "baselines/add.json",
    }


def test_drifted_schema_is_caught(
    validator: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / "schemas/attempt.schema.json"
    path.write_text(path.read_text() + "\n")
    code, problems = validate(validator, checkout, capsys)
    assert (code, problems) == (1, ["schemas/attempt.schema.json differs from the model of Attempt"])
