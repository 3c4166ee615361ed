"""Benchmark axes: how a curve comes out at the other end of a run."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_project import FakeProject, fake_project
from mini_kv.cli import verdict_text
from mini_kv.core.record import from_json
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.results import Status
from mini_kv.core.rules.axes import curves, is_generated

__all__ = ["fake_project"]

AXIS = "warmup: 1, axes: [{name: n, case: timed_a, param: n, powers_of_two: {from: 16, to: 64}}],"


def test_verify_gates_times_and_shows_the_points_of_an_axis(fake_project: FakeProject) -> None:
    fake_project.edit("tasks/double.yaml", "warmup: 1,", AXIS)
    verdict = fake_project.verify()
    assert verdict.attempt.exit_code == 0, verdict.attempt.findings
    gated = {case.case_id: case for case in verdict.correctness.cases}  # type: ignore[union-attr]
    assert gated["timed_a__n_16"].status is Status.PASS
    assert [one.name for one in gated["timed_a__n_16"].rounds] == ["secret"]
    assert "timed_a__n_64" in verdict.attempt.secret_seeds
    timed = from_json((verdict.folder / "benchmark.json").read_bytes(), Benchmark)
    (curve,) = curves(timed.cases)
    assert (curve.axis, curve.template_case_id) == ("n", "timed_a")
    assert [case.axis_values["n"] for case in curve.cases] == [16, 32, 40, 64]
    assert [is_generated(case) for case in curve.cases] == [True, True, False, True]
    text = verdict_text.as_text(verdict)
    assert "axis n of timed_a:" in text
    rows = [row.split() for row in text.partition("axis n of timed_a:")[2].splitlines()[2:6]]
    assert [row[0] for row in rows] == ["16", "32", "40", "64"]
    assert all("10.00" in row and "#" in row[-1] for row in rows)
    summary = {case["case_id"]: case for case in json.loads(verdict_text.as_json(verdict))["benchmark"]}
    assert summary["timed_a__n_32"]["axis_values"] == {"n": 32}
    assert summary["timed_b"]["axis_values"] == {}


def test_a_wrong_result_at_one_point_of_an_axis_fails_the_candidate(fake_project: FakeProject) -> None:
    fake_project.edit("tasks/double.yaml", "warmup: 1,", AXIS)
    verdict = fake_project.verify(
        {"candidate/run_case/timed_a__n_64": "payloads = [bytes(len(payloads[0])), *payloads[1:]]"}
    )
    assert verdict.attempt.exit_code == 4


def test_a_point_that_fails_says_why_in_its_row(fake_project: FakeProject) -> None:
    fake_project.edit("tasks/double.yaml", "warmup: 1,", AXIS)
    verdict = fake_project.verify(
        {"candidate/time_batch/timed_a__n_32": "reply = p.Failed(code='RuntimeError', message='no memory')"}
    )
    assert verdict.attempt.exit_code == 5
    row = next(row for row in verdict_text.as_text(verdict).splitlines() if row.strip().startswith("32 "))
    assert "FAILED NOT_TIMED" in row and "no memory" in row


def script(name: str) -> Any:
    path = Path(__file__).resolve().parents[2] / "scripts" / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_prints_the_curves_of_an_attempt(
    fake_project: FakeProject, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_project.edit("tasks/double.yaml", "warmup: 1,", AXIS)
    folder = fake_project.verify().folder
    plot = script("plot_axes.py")
    assert plot.main([str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("double_v0 0.1.0\n") and "axis n of timed_a:" in out
    (key, lines), *rest = plot.panels(
        [("one", from_json((folder / "benchmark.json").read_bytes(), Benchmark))]
    ).items()
    assert key == ("n", "timed_a") and [label for label, _ in lines] == ["one"] and rest == []
    assert plot.metric_of(lines[0][1].cases[0], "net_us") == pytest.approx(9.95, rel=0.01)
    assert plot.main([str(tmp_path / "missing.json")]) == 2
    capsys.readouterr()
    picture = tmp_path / "axes.svg"
    assert plot.main([str(folder), "--metric", "net_us", "--output", str(picture)]) == 0
    assert f"drawn: {picture}" in capsys.readouterr().out
    drawn = picture.read_text()
    assert drawn.count("<circle") == 4 and "n of timed_a" in drawn and "double_v0 0.1.0" in drawn
    # Sizes stand at their powers of two, 16 to 64; 40 is none.
    assert [label in drawn for label in (">16<", ">32<", ">64<", ">40<")] == [True, True, True, False]


def test_sizes_lie_on_a_logarithmic_axis_and_words_on_none() -> None:
    plot = script("plot_axes.py")
    assert [plot._scale_of(values) for values in ((1, 4096), (0, 4), (1.5, 2), ("float16", "float32"))] == [
        "log2", "linear", "log2", "words"
    ]  # fmt: skip


def test_a_picture_that_was_asked_for_and_cannot_be_drawn_is_no_success(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = script("plot_axes.py")
    picture = tmp_path / "axes.png"
    assert plot.main([str(tmp_path), "--output", str(picture)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "", f"plot_axes: --output takes a file that ends in .svg, not {picture}\n"
    )  # fmt: skip
    assert plot.main([str(tmp_path), "--output", str(tmp_path / "nowhere" / "axes.svg")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err


def test_a_file_without_an_axis_is_named(
    fake_project: FakeProject, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake_project.verify().folder
    assert script("plot_axes.py").main([str(folder / "benchmark.json")]) == 1
    assert f"no case of {folder / 'benchmark.json'} lies on an axis" in capsys.readouterr().out


def test_a_dash_for_gb_per_s_did_not_say_where_a_cost_model_belongs(fake_project: FakeProject) -> None:
    verdict = fake_project.verify()
    told = "GB/s needs a function cost_model(params) in the module of the card's reference"
    assert verdict.benchmark is not None and told not in verdict_text.as_text(verdict)
    cases = tuple(msgspec.structs.replace(case, bytes_moved=None) for case in verdict.benchmark.cases)
    benchmark = msgspec.structs.replace(verdict.benchmark, cases=cases)
    assert told in verdict_text.as_text(replace(verdict, benchmark=benchmark))
