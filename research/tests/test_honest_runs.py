"""What honest runs add up to: who counts as accused, over which runs, within which bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from mini_kv.core.record import to_json
from mini_kv.task_card import load_task_card
from research import ROOT
from research.honest_runs import measuring, tables
from research.honest_runs.records import HonestRun, HonestRuns, accused, by_check, load_runs


def run(number: int = 0, **changes: Any) -> HonestRun:
    made = HonestRun(
        number=number,
        wave=0,
        candidate="candidates/vector_add/v0_naive",
        case_id="tiny",
        status="PASS",
        code=None,
        message=None,
        state="PASS",
        state_message=None,
        codes=(),
        messages=(),
        stable=True,
        timing_trust="verified",
        p50_us=10.0,
        net_p50_us=9.9,
        outside_us=9.8,
        kernel_us=None,
        floor_bound_us=None,
        checked_outputs=3,
        tries=1,
        elapsed_s=0.5,
    )
    return msgspec.structs.replace(made, **changes)


def runs(*each: HonestRun, device: str = "cpu") -> HonestRuns:
    return HonestRuns(
        schema_version="1.0.0",
        device=device,
        device_name=device,
        torch="2.11.0",
        busy=0,
        cores=2,
        elapsed_s=1.0,
        runs=each,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"status": "FAIL", "code": "UNSTABLE"}, None),
        ({"status": "UNVERIFIED", "code": "UNSTABLE_ON_CPU"}, None),
        ({"status": "FAIL", "code": "CLOCK_CONTRADICTS"}, "CLOCK_CONTRADICTS"),
        ({"status": "FAIL", "code": None}, "FAIL"),
        ({"state": "FAIL"}, "GLOBAL_STATE_CHANGED"),
        ({"state": "SKIPPED"}, "GLOBAL_STATE_CHANGED"),
    ],
)
def test_any_failure_but_the_quality_gates_is_an_accusation(
    changes: dict[str, Any], expected: str | None
) -> None:
    assert run(**changes).accused == expected


def test_a_check_counts_the_runs_in_which_it_was_live() -> None:
    fine, blind = run(), run(1, outside_us=None, timing_trust="unverified")
    blamed = run(2, status="FAIL", code="CLOCK_CONTRADICTS", codes=("CLOCK_CONTRADICTS",))
    found = dict(by_check(runs(fine, blind, blamed)))
    assert (found["the judge's own clock"].events, found["the judge's own clock"].trials) == (1, 2)
    assert found["inputs never seen before (CPU)"].trials == 3
    assert "CUPTI's kernel times (CUDA)" not in found
    on_gpu = dict(by_check(runs(run(kernel_us=3.0), device="cuda")))
    assert on_gpu["CUPTI's kernel times (CUDA)"].trials == 1
    assert "inputs never seen before (CPU)" not in on_gpu


def test_the_bound_over_300_clean_runs_is_one_percent() -> None:
    clean = runs(*(run(number) for number in range(300)))
    assert accused(clean).upper == pytest.approx(0.009936, abs=1e-6)
    text = tables.as_text(clean)
    assert "Accused: 0 of 300 (at most 1.0%)" in text
    assert "CLOCK_CONTRADICTS" in tables.as_text(runs(run(status="FAIL", code="CLOCK_CONTRADICTS")))


def test_runs_are_read_as_they_were_written_and_nothing_else_is() -> None:
    made = runs(run())
    assert load_runs(to_json(made)) == made
    with pytest.raises(msgspec.ValidationError):
        load_runs(b'{"schema_version": "1.0.0"}')


def test_every_honest_candidate_is_there_and_expected_to_pass() -> None:
    for operator in measuring.CARDS:
        card = load_task_card(ROOT / f"research/honest_runs/{operator}.yaml", ROOT).card
        assert card.benchmark.case_ids == measuring.CASES
        for device in ("cpu", "cuda"):
            for folder in measuring.folders(device, operator):  # type: ignore[arg-type]
                assert (ROOT / folder / "candidate.yaml").is_file()
                expectation = ROOT / folder / "expect.yaml"
                if expectation.is_file():
                    assert yaml.safe_load(expectation.read_text("utf-8"))["kind"] == "twin"
