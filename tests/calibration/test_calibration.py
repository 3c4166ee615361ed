"""Calibration: what readings must give which verdict, and a run of the real thing on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_kv.calibration import CalibrateRequest, calibrate, spin_measurement
from mini_kv.calibration.bars import RATIO_LENGTHS_US, judge, judge_wide, lengths_of, line
from mini_kv.calibration.spin_measurement import LENGTHS_US, exit_code
from mini_kv.cli import main as cli
from mini_kv.cli.calibrate import as_text, picture
from mini_kv.core.progress import silent
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.calibration import (
    Calibration,
    CalibrationBar,
    SpinRatio,
    SpinReading,
    WideReading,
)


def readings(offset_us: float = 0.0, gain: float = 1.0, witness: bool = True) -> list[SpinReading]:
    return [
        SpinReading(
            process=process,
            nominal_us=nominal_us,
            true_us=nominal_us,
            p50_us=nominal_us + 3.2,
            floor_us=3.2,
            net_us=gain * nominal_us + offset_us + 0.001 * process,
            witness_us=nominal_us if witness else None,
            launch_exposed=0,
        )
        for process in range(5)
        for nominal_us in LENGTHS_US
    ]


def ratios(read: float = 1.05, true: float = 1.05) -> list[SpinRatio]:
    return [
        SpinRatio(process=process, nominal_us=nominal_us, true_ratio=true, read_ratio=read)
        for process in range(5)
        for nominal_us in RATIO_LENGTHS_US
    ]


def failed(read: list[SpinReading], compared: list[SpinRatio]) -> set[str]:
    lengths = lengths_of(read)
    slope, _ = line([(one.true_us, one.net_us) for one in lengths])
    return {bar.name for bar in judge(lengths, compared, slope) if not bar.passed}


def test_a_true_timer_keeps_every_demand() -> None:
    assert failed(readings(), ratios()) == set()
    assert failed(readings(offset_us=0.2), ratios()) == set()


def test_an_offset_shows_on_the_short_spins_only() -> None:
    assert failed(readings(offset_us=0.3), ratios()) == {"net_2us", "net_5us"}


def test_a_clock_that_runs_fast_shows_in_the_slope() -> None:
    assert failed(readings(gain=1.003), ratios()) == {"slope"}
    assert failed(readings(gain=0.96), ratios()) >= {"slope", "net_20us", "net_200us", "net_2000us"}


def test_a_timer_that_shrinks_differences_is_found() -> None:
    assert failed(readings(), ratios(read=1.043)) == {"ratio_20us", "ratio_200us", "ratio_2000us"}
    assert "ratio_2us" in failed(readings(), ratios(read=1.035))


def test_a_spin_that_really_was_longer_is_no_fault_of_the_timer() -> None:
    assert failed(readings(), ratios(read=1.06, true=1.06)) == set()


def test_what_was_not_measured_has_not_passed() -> None:
    assert failed(readings(), []) == {f"ratio_{length:g}us" for length in RATIO_LENGTHS_US}
    broken = [SpinRatio(process=0, nominal_us=2.0, true_ratio=1.05, read_ratio=math.nan)]
    with pytest.raises(ValueError, match="finite"):
        failed(readings(), broken)


@given(st.floats(0.5, 2.0), st.floats(-5.0, 5.0))
def test_the_line_through_a_line_is_that_line(slope: float, intercept: float) -> None:
    got = line([(x, slope * x + intercept) for x in LENGTHS_US])
    assert got == (pytest.approx(slope), pytest.approx(intercept, abs=1e-6))


def test_one_length_makes_no_line() -> None:
    with pytest.raises(ValueError, match="two different lengths"):
        line([(2.0, 2.0), (2.0, 2.1)])


def wide(net_us: float = 16.4, witness_us: float = 27.6) -> list[WideReading]:
    return [
        WideReading(
            process=process,
            work=work,  # type: ignore[arg-type]
            blocks=blocks,
            stamped_us=15.8,
            net_us=net_us,
            witness_us=witness_us,
            witness_stamped_us=27.0,
        )
        for process in range(5)
        for work in ("spin", "copy")
        for blocks in (1, 16384)
    ]


def failed_wide(read: list[WideReading]) -> set[str]:
    return {bar.name for bar in judge_wide(read, 16384, launch_us=0.6) if not bar.passed}


def test_each_witness_of_a_wide_kernel_is_held_against_the_stamps_of_the_calls_it_saw() -> None:
    """CUPTI lengthens kernels of many blocks: 27.6 us are true of its calls, 16.4 us of the timed ones."""
    assert failed_wide(wide()) == set()
    assert failed_wide(wide(net_us=27.6)) == {"net_spin_16384_blocks", "net_copy_16384_blocks"}
    assert failed_wide(wide(witness_us=16.4)) == {"cupti_spin_16384_blocks", "cupti_copy_16384_blocks"}


def test_wide_kernels_that_were_not_measured_have_not_passed() -> None:
    assert len(failed_wide([])) == 4
    assert len(failed_wide([one for one in wide() if one.blocks == 1])) == 4
    assert len(failed_wide([one for one in wide() if one.work == "spin"])) == 2


def test_the_text_shows_wide_kernels_next_to_their_stamps() -> None:
    text = as_text(msgspec.structs.replace(record("cuda", True), wide=tuple(wide())))
    assert "16384 copy      15.800    16.400      27.000    27.600" in text


def record(device: str, passed: bool) -> Calibration:
    lengths = lengths_of(readings())
    bars = judge(lengths, ratios(read=1.05 if passed else 1.2), 1.0)
    return Calibration(
        schema_version="1.0.0",
        device=device,  # type: ignore[arg-type]
        device_name="a device",
        torch="2.11.0",
        timer="event pairs",
        processes=5,
        global_timer_step_ns=32.0,
        ns_per_cycle=0.505,
        launch_overhead_us=0.9,
        slope=1.0,
        intercept_us=0.0,
        outside_us=2000.9,
        lengths=lengths,
        readings=tuple(readings()),
        ratios=tuple(ratios()),
        bars=bars,
        passed=all(bar.passed for bar in bars),
        elapsed_s=1.0,
    )


def test_a_missed_demand_fails_a_gpu_and_only_warns_on_a_cpu() -> None:
    assert exit_code(record("cuda", True)) == 0
    assert exit_code(record("cuda", False)) == 5
    assert exit_code(record("cpu", False)) == 0


def test_the_text_names_every_demand() -> None:
    found = record("cuda", False)
    text = as_text(found)
    assert all(bar.demand in text for bar in found.bars)
    assert "FAIL  a spin 5% longer than 2 us" in text
    assert "global timer steps 32 ns" in text


def test_usage_is_refused_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--processes", "0"], "--processes takes 1 to 100"),
        (["--output", str(tmp_path / "no" / "file.json")], "its folder does not exist"),
        (["--plot", str(tmp_path / "no" / "file.svg")], "its folder does not exist"),
        (["--plot", str(tmp_path / "file.png")], "--plot takes a file that ends in .svg, not"),
    ):
        assert cli.main(["calibrate", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_files_are_written_where_they_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = record("cpu", True)
    monkeypatch.setattr("mini_kv.calibration.calibrate", lambda request, show: found)
    json_file, svg_file = tmp_path / "c.json", tmp_path / "c.svg"
    assert cli.main(["calibrate", "--output", str(json_file), "--plot", str(svg_file)]) == 0
    assert capsys.readouterr().out == as_text(found)
    assert from_json(json_file.read_bytes(), Calibration) == found
    assert svg_file.read_text("utf-8") == picture(found)
    svg_file.unlink()
    svg_file.mkdir()
    assert cli.main(["calibrate", "--plot", str(svg_file)]) == 2


def test_the_picture_shows_every_reading_ratio_and_wide_kernel() -> None:
    shown = picture(msgspec.structs.replace(record("cuda", True), wide=tuple(wide())))
    assert shown.count("<circle") == len(readings()) + len(ratios()) + len(wide())
    assert shown.count("<path") == len(wide())
    assert "no points" in picture(record("cpu", True)), "a CPU has no wide kernels"


@pytest.mark.slow
def test_the_cpus_timer_goes_through_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every length and every step, each batch once: nothing here hangs on how well the times are known.
    monkeypatch.setattr(spin_measurement, "ITERATIONS", 10)
    monkeypatch.setattr(spin_measurement, "LONG_ITERATIONS", 10)
    monkeypatch.setattr(spin_measurement, "BATCHES_IN_TURN", ((0.0, 2),))
    monkeypatch.setattr(spin_measurement, "SETTLING_ROUNDS", 1)
    found = calibrate(CalibrateRequest(device="cpu", processes=1), silent)
    assert found.device == "cpu"
    assert [one.nominal_us for one in found.lengths] == list(LENGTHS_US)
    assert {bar.name for bar in found.bars} == {
        *(f"net_{length:g}us" for length in LENGTHS_US),
        *(f"ratio_{length:g}us" for length in RATIO_LENGTHS_US),
        "slope",
    }
    assert all(isinstance(bar, CalibrationBar) for bar in found.bars)
    # However busy the machine: a spin of 2 ms lasts that long and is read as no less.
    assert found.lengths[-1].true_us >= 1999.0
    assert found.lengths[-1].net_us >= 1990.0
    assert from_json(to_json(found), Calibration) == found
