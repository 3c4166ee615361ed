"""A sound candidate from end to end: JSON, JUnit, Markdown, the baseline and the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from jsonschema import Draft202012Validator

from e2e.harness import Project, Run, rehash
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.attempt import Attempt
from mini_kv.core.records.benchmark import Benchmark, Series
from mini_kv.core.records.schemas import RECORDS, schema_document
from mini_kv.core.rules.statistics import summarize

RECORD_OF = {
    "attempt.json": "attempt",
    "task_card.json": "task_card",
    "candidate_manifest.json": "candidate_manifest",
    "environment.json": "environment",
    "compile.json": "compile",
    "correctness.json": "correctness",
    "benchmark.json": "benchmark",
}


@pytest.mark.slow
def test_a_sound_candidate_is_accepted_and_reported_in_every_form(project: Project) -> None:
    junit, markdown = project.scratch / "report.xml", project.scratch / "report.md"
    run = project.verify("sound", "--json", "--junit", str(junit), "--markdown", str(markdown))
    assert run.code == 0, run.stdout + run.stderr
    attempt = rehash(run)
    assert attempt.accepted
    assert attempt.complete
    assert_json(run, attempt)
    assert_records_are_valid(run)
    assert_junit(run, junit)
    text = markdown.read_text()
    assert "`by_size` accepted on cpu" in text
    assert f"Attempt `{attempt.attempt_id}`, exit code 0" in text
    assert "| numerics | PASS |" in text
    assert_progress_is_whole_lines(run)
    assert_samples(run)
    assert_promotion_and_gate(project, run)


def assert_json(run: Run, attempt: Attempt) -> None:
    document = json.loads(run.stdout)
    assert document["attempt"] == json.loads((run.folder / "attempt.json").read_text())
    assert document["folder"] == str(run.folder)
    assert {case["case_id"]: case["status"] for case in document["cases"]} == dict.fromkeys(
        ["core_17", "core_31", "core_33", "empty", "two_dimensions", "timed"], "PASS"
    )
    (timed,) = document["benchmark"]
    assert timed["case_id"] == "timed"
    assert "samples_us" not in timed["candidate"]
    assert attempt.exit_code == 0


def assert_records_are_valid(run: Run) -> None:
    for file, name in RECORD_OF.items():
        assert name in RECORDS
        errors = list(Draft202012Validator(schema_document(name)).iter_errors(run.record(file)))
        assert errors == [], file


def assert_junit(run: Run, path: Path) -> None:
    suite = ET.parse(path).getroot()
    assert suite.tag == "testsuite"
    cases = suite.findall("testcase")
    record = run.record("correctness.json")
    assert len(cases) == len(run.attempt.axes) + len(record["cases"]) + len(record["contract"])
    counted = {kind: len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error", "skipped")}
    assert suite.get("tests") == str(len(cases))
    assert suite.get("failures") == str(counted["failure"]) == "0"
    assert suite.get("errors") == str(counted["error"]) == "0"
    assert suite.get("skipped") == str(counted["skipped"])


def assert_progress_is_whole_lines(run: Run) -> None:
    lines = run.stderr.splitlines()
    assert "" not in lines
    for stage in ("build", "load", "correctness", "contract", "benchmark"):
        assert f"{stage}: ..." in lines
        assert sum(line.startswith(f"{stage}: done") for line in lines) == 1


def assert_samples(run: Run) -> None:
    (case,) = run.record("benchmark.json")["cases"]
    for side in ("candidate", "reference"):
        assert [len(repeat) for repeat in case[side]["samples_us"]] == [5, 5]
    assert case["checked_outputs"] >= 2
    assert case["batch_order"][:4] == ["reference", "candidate", "candidate", "reference"]


def steady(series: Series) -> Series:
    """Return the series as a machine without noise would have given it."""
    samples = tuple(tuple(series.p50_us for _ in repeat) for repeat in series.samples_us)
    return summarize(
        samples,
        calls_per_sample=series.calls_per_sample,
        launch_exposed=0,
        floor_us=series.floor_us,
        tick_us=min(series.tick_us, 1e-4),
    )


def make_steady(run: Run) -> Path:
    """Archive the attempt anew as a stable one: whether two cores are quiet is not what is tested."""
    benchmark = from_json((run.folder / "benchmark.json").read_bytes(), Benchmark)
    cases: list[Any] = []
    for case in benchmark.cases:
        assert case.candidate is not None
        assert case.reference is not None
        candidate, reference = steady(case.candidate), steady(case.reference)
        cases.append(
            msgspec.structs.replace(
                case,
                stable=True,
                findings=(),
                candidate=candidate,
                reference=reference,
                speedup=reference.p50_us / candidate.p50_us,
            )
        )
    raw = to_json(
        msgspec.structs.replace(benchmark, stable=True, cases=tuple(cases), geomean_speedup=cases[0].speedup)
    )
    attempt = run.attempt
    files = tuple(
        msgspec.structs.replace(file, sha256=sha256_bytes(raw), size_bytes=len(raw))
        if file.path == "benchmark.json"
        else file
        for file in attempt.files
    )
    folder = run.artifacts.parent / "steady" / attempt.task_id / attempt.attempt_id
    folder.parent.mkdir(parents=True)
    import shutil

    shutil.copytree(run.folder, folder)
    (folder / "benchmark.json").write_bytes(raw)
    changed = msgspec.structs.replace(
        attempt,
        files=files,
        benchmark_stable=True,
        geomean_speedup=cases[0].speedup,
        primary_p50_us=cases[0].candidate.p50_us,
    )
    (folder / "attempt.json").write_bytes(to_json(changed))
    return folder


def assert_promotion_and_gate(project: Project, run: Run) -> None:
    from mini_kv.cli.main import main

    baseline = project.scratch / "baseline.json"
    assert main(["promote-baseline", "--attempt", str(make_steady(run)), "--output", str(baseline)]) == 0
    compared = project.verify("sound", "--baseline", str(baseline))
    record = compared.record("regression.json")
    # On two noisy cores the gate may find the times unstable, but never incomparable.
    assert record["decision"] in ("PASS", "PASS_WITH_WARNING", "INCONCLUSIVE", "FAIL")
    assert compared.code == (6 if record["decision"] == "FAIL" else 0)
    assert record["baseline"] == "baseline.json"
    assert record["baseline_sha256"] == sha256_bytes(baseline.read_bytes())
    rehash(compared)
