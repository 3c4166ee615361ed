"""The study's negative controls on a GPU: what spoils a measurement is flagged by the product's own words."""

from __future__ import annotations

import os
import time

import pytest

from mini_kv.core.records.benchmark import Telemetry
from mini_kv.system.gpu import open_nvml
from research import ROOT
from research.gate_study.bench import Subject, open_all, open_bench
from research.gate_study.controls import Neighbour, control_processes, strangers_among, take_controls
from research.gate_study.summary import ControlVerdict, judge_control

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], ControlVerdict]:
    """Every negative control once, each in a fresh process, judged by the product's own code."""
    with open_bench(ROOT, "cuda") as bench, open_nvml(os.environ) as nvml:

        def telemetry() -> Telemetry | None:
            return nvml.telemetry(0) if nvml is not None else None

        # What earlier tests ran may still be giving its context back; this run's own needs no waiting for.
        deadline = time.monotonic() + 20.0
        while strangers_among(bench, telemetry(), frozenset()) and time.monotonic() < deadline:
            time.sleep(0.5)
        subjects = [Subject(bench) for _ in range(control_processes("cuda"))]
        neighbour = Neighbour()
        assert [failure for failure in open_all(subjects) if failure] == []
        neighbour.wait()
        taken = take_controls(bench, subjects, neighbour, telemetry)
    return {(one.name, one.kernel): judge_control(one) for one in taken}


def codes(verdicts: dict[tuple[str, str], ControlVerdict], name: str) -> set[str]:
    return {code for key, verdict in verdicts.items() if key[0] == name for code in verdict.codes}


def test_nothing_is_held_against_a_clean_measurement(
    verdicts: dict[tuple[str, str], ControlVerdict],
) -> None:
    clean = [verdict for key, verdict in verdicts.items() if key[0] == "clean"]
    assert [(verdict.codes, verdict.strangers) for verdict in clean] == [((), ())]


def test_a_host_sleep_between_record_and_launch_is_exposed(
    verdicts: dict[tuple[str, str], ControlVerdict],
) -> None:
    assert "LAUNCH_EXPOSED" in codes(verdicts, "host_sleep")


def test_an_operator_that_waits_for_the_device_is_exposed(
    verdicts: dict[tuple[str, str], ControlVerdict],
) -> None:
    assert "LAUNCH_EXPOSED" in codes(verdicts, "synchronize")


def test_work_on_an_unjoined_stream_is_outside_the_pair(
    verdicts: dict[tuple[str, str], ControlVerdict],
) -> None:
    assert "WORK_OUTSIDE_PAIR" in codes(verdicts, "side_stream")


@pytest.mark.parametrize("kernel", ["memory_2us", "memory_20us"])
def test_another_process_on_the_gpu_makes_the_times_unstable(
    verdicts: dict[tuple[str, str], ControlVerdict], kernel: str
) -> None:
    assert "GPU_SHARED" in verdicts[("neighbour", kernel)].codes, verdicts[("neighbour", kernel)]
