"""The gate study's own logic: bounds, decisions over a model of processes, and what its faults do."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from mini_kv.core.record import from_json, to_json
from mini_kv.core.regression import Decision
from mini_kv.regression import Policy
from study import document, summary, tables
from study.decisions import (
    Evidence,
    Outcome,
    Plan,
    count,
    decide,
    disjoint_groups,
    processes_needed,
    series_of,
)
from study.model import SPREADS, Faults, simulate
from study.records import Cell, Control, Raw, load_raw

LEVELS = (0, 5, 8)
TWO = {name: SPREADS[name] for name in ("memory_2us", "memory_20us")}
POLICY = Policy()


def gate(raw: Raw, kernel: str, level: int, seeds: int = 1) -> list[Outcome]:
    evidence = Evidence(raw)
    plan = Plan(kernel=kernel, baseline=0, candidate=level)
    return [
        outcome
        for seed in range(seeds)
        for first, spare in disjoint_groups(evidence, POLICY, seed)
        for outcome in decide(evidence, (plan,), first, spare, POLICY)
    ]


# ---------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("events", "trials", "lower", "upper"),
    [
        # Each bound is where the binomial tail beyond what was seen sums to 5 %.
        (0, 300, 0.0, 0.009936),
        (0, 10, 0.0, 0.258866),
        (10, 10, 0.741134, 1.0),
        (5, 20, 0.104081, 0.455582),
    ],
)
def test_bounds_agree_with_worked_examples(events: int, trials: int, lower: float, upper: float) -> None:
    found = summary.proportion(events, trials)
    assert found.lower == pytest.approx(lower, abs=2e-6)
    assert found.upper == pytest.approx(upper, abs=2e-6)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_rate_lies_between_its_bounds(case: tuple[int, int]) -> None:
    found = summary.proportion(*case)
    assert found.rate is not None
    assert 0.0 <= found.lower <= found.rate <= found.upper <= 1.0


def test_no_trials_bound_nothing() -> None:
    found = summary.proportion(0, 0)
    assert (found.rate, found.lower, found.upper) == (None, 0.0, 1.0)


# ---------------------------------------------------------------------------- groups


@given(st.integers(0, 120), st.integers(0, 9))
def test_groups_share_no_process_and_spares_are_none_of_theirs(processes: int, seed: int) -> None:
    raw = simulate(processes=0, seed=1, spreads=TWO, levels=(0,))
    raw = Raw(
        **{name: getattr(raw, name) for name in raw.__struct_fields__} | {"processes": (None,) * processes}
    )  # type: ignore[arg-type]
    seen: list[int] = []
    for first, spare in disjoint_groups(Evidence(raw), POLICY, seed):
        assert len(first) == processes_needed(POLICY)[0]
        assert not set(first) & set(spare)
        seen += first
    assert len(seen) == len(set(seen))


# ---------------------------------------------------------------------------- decisions over the model


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**31))
def test_equal_code_never_fails_and_eight_percent_almost_always_does(seed: int) -> None:
    raw = simulate(processes=48, seed=seed, spreads=TWO, levels=LEVELS)
    for kernel in TWO:
        assert count(gate(raw, kernel, 0), Decision.FAIL) == 0
        slow = gate(raw, kernel, 8)
        assert len(slow) == 4
        # A thermometer that moved leaves a decision open; it lets no slowdown pass.
        assert count(slow, Decision.PASS, Decision.PASS_WITH_WARNING) == 0
        assert count(slow, Decision.FAIL) >= 2


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.06, 0.3))
def test_a_drift_is_inconclusive_and_no_failure(seed: int, drift: float) -> None:
    raw = simulate(processes=24, seed=seed, spreads=TWO, levels=LEVELS, faults=Faults(drift=drift))
    found = gate(raw, "memory_20us", 0)
    assert count(found, Decision.FAIL) == 0
    assert count(found, Decision.INCONCLUSIVE) == len(found) > 0


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.03, 0.2))
def test_two_modes_of_processes_cry_no_wolf(seed: int, mode: float) -> None:
    raw = simulate(processes=48, seed=seed, spreads=TWO, levels=LEVELS, faults=Faults(second_mode=mode))
    assert count(gate(raw, "memory_20us", 0, seeds=2), Decision.FAIL) <= 1


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.02, 0.2))
def test_heavy_tails_cry_no_wolf(seed: int, share: float) -> None:
    faults = Faults(tail_share=share, tail_scale=2.0)
    raw = simulate(processes=24, seed=seed, spreads=TWO, levels=LEVELS, faults=faults)
    assert count(gate(raw, "memory_20us", 0), Decision.FAIL) == 0


def test_the_whole_summary_comes_out_of_a_model_and_survives_its_json() -> None:
    raw = simulate(processes=36, seed=3, spreads=TWO, levels=(0, 3, 5, 8))
    assert load_raw(to_json(raw)) == raw
    found = summary.summarise(raw, regroupings=2)
    assert from_json(to_json(found), summary.Summary) == found
    text = tables.as_text(found)
    for name in TWO:
        assert name in text
    assert found.false_fail.trials == 3 * 2 * 4
    assert found.disjoint_groups == 3


def test_fewer_processes_than_a_decision_takes_give_a_summary_without_decisions() -> None:
    found = summary.summarise(simulate(processes=4, seed=3, spreads=TWO, levels=(0, 5)), regroupings=1)
    assert found.false_fail.trials == 0
    assert not found.bars[0].passed
    assert from_json(to_json(found), summary.Summary) == found


# ---------------------------------------------------------------------------- the document


def test_the_document_shows_the_committed_evidence(project_root: Path) -> None:
    text = (project_root / document.DOCUMENT).read_text(encoding="utf-8")
    assert sorted(document.block_names(text)) == sorted(document.BLOCKS)
    assert document.filled(text, project_root) == text, "run scripts/gate_study.py document"


def test_blocks_are_filled_from_a_summary_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / document.SUMMARY
    path.parent.mkdir(parents=True)
    raw = simulate(processes=24, seed=3, spreads=TWO, levels=(0, 5, 8))
    path.write_bytes(to_json(summary.summarise(raw, regroupings=1)))
    text = "before\n<!-- measured: gate_spreads -->\nold\n<!-- end of measured -->\nafter\n"
    got = document.filled(text, tmp_path)
    assert got.startswith("before\n<!-- measured: gate_spreads -->\n| kernel |")
    assert got.endswith("\n<!-- end of measured -->\nafter\n")
    assert document.filled(got, tmp_path) == got


# ---------------------------------------------------------------------------- negative controls

STEADY = Cell(samples_ns=((20_000, 20_032) * 50,) * 5, floors_ns=(3200,) * 5)


def control(**changes: object) -> Control:
    made = Control(
        name="x",
        kernel="memory_20us",
        cell=STEADY,
        reference=STEADY,
        kernel_us=17.6,
        marker_us=0.9,
        strangers=0,
    )
    return Control(**{name: getattr(made, name) for name in made.__struct_fields__} | changes)  # type: ignore[arg-type]


def test_a_clean_control_is_stable() -> None:
    assert summary.judge_control(control()).codes == ()


def test_every_misdeed_is_flagged_by_the_products_own_words() -> None:
    exposed = Cell(samples_ns=STEADY.samples_ns, floors_ns=STEADY.floors_ns, exposed=20)
    empty = Cell(samples_ns=((3200, 3232) * 50,) * 5, floors_ns=(3200,) * 5)
    assert "LAUNCH_EXPOSED" in summary.judge_control(control(cell=exposed)).codes
    assert "WORK_OUTSIDE_PAIR" in summary.judge_control(control(cell=empty)).codes
    assert "GPU_SHARED" in summary.judge_control(control(strangers=1)).codes


def test_a_study_in_which_a_misdeed_went_unseen_misses_its_bar() -> None:
    seen = summary.judge_control(control(name="host_sleep", strangers=1))
    unseen = summary.judge_control(control(name="synchronize"))
    assert summary.bars(summary.proportion(0, 300), (), (seen,))[-1].passed
    assert not summary.bars(summary.proportion(0, 300), (), (seen, unseen))[-1].passed
    assert not summary.bars(summary.proportion(0, 300), (), ())[-1].passed


def test_few_batches_are_cut_into_repeats() -> None:
    series = series_of(replace_cell(STEADY, 2), 0.9, repeats=4)
    assert [len(batch) for batch in series.samples_us] == [50] * 4


def replace_cell(cell: Cell, batches: int) -> Cell:
    return Cell(samples_ns=cell.samples_ns[:batches], floors_ns=cell.floors_ns[:batches])


def test_the_models_default_faults_are_mild() -> None:
    assert replace(Faults(), drift=0.1).tail_share == Faults().tail_share < 0.01


def test_honest_claims_are_held_against_the_clock_and_contradictions_counted() -> None:
    raw = simulate(processes=3, seed=3, spreads=TWO, levels=(0,))
    # Within the clock's slack, beyond it, and not to be repeated: 2.6 us are claimed net.
    told = zip(raw.processes, (3.0, 30.0, None), strict=True)
    processes = tuple(
        structs.replace(process, bounded="memory_2us", outside_us=outside_us) for process, outside_us in told
    )
    found = summary.claims(Evidence(structs.replace(raw, processes=processes)))
    assert (found.contradicted.events, found.contradicted.trials, found.unbounded) == (1, 2, 1)
    assert found.widest_us == pytest.approx(30.0 - 2.6, abs=0.5)


def test_batches_whose_operands_lie_elsewhere_show_how_much_that_is() -> None:
    raw = simulate(processes=40, seed=3, spreads=TWO, levels=(0, 5))
    spread = TWO["memory_2us"]
    expected = math.hypot(spread.place_us, 1.25 * spread.sample_us / math.sqrt(100))
    assert summary.places(raw, "memory_2us") == pytest.approx(expected, rel=0.25)
    assert summary.places(raw, "memory_20us") is None


# ---------------------------------------------------------------------------- the script itself


def test_the_script_measures_through_the_products_workers_and_decides_later(
    project_root: Path, tmp_path: Path
) -> None:
    script = [sys.executable, str(project_root / "scripts/gate_study.py")]
    few = ["--device", "cpu", "--processes", "2", "--wave", "2", "--budget", "120", "--raw-only"]
    subprocess.run([*script, "measure", "--output", str(tmp_path), *few], check=True, timeout=300)
    path = tmp_path / "gate_study_raw.json"
    raw = load_raw(path.read_bytes())
    assert (raw.device, raw.levels, raw.lost) == ("cpu", (0, 5), ())
    assert [process.bounded for process in raw.processes] == ["memory_2us", "memory_20us"]
    for process in raw.processes:
        assert process.outside_us is not None
        assert sorted(process.cells) == sorted(f"{name}@{level}" for name in TWO for level in (0, 5))
        # Two batches, whose operands each lie elsewhere; a floor with each.
        cell = process.cells["memory_2us@0"]
        assert [len(batch) for batch in cell.samples_ns] == [10, 10]
        assert len(cell.floors_ns) == 2
    assert [control.name for control in raw.controls] == ["clean", "host_sleep", "synchronize", "side_stream"]
    subprocess.run([*script, "summarise", str(path)], check=True, timeout=60, stdout=subprocess.DEVNULL)
    found = from_json((tmp_path / "gate_study_summary.json").read_bytes(), summary.Summary)
    assert (found.processes, found.disjoint_groups, found.claims.contradicted.trials) == (2, 0, 2)
