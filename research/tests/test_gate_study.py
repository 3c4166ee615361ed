"""The gate study's own logic: bounds, decisions over a model of processes, and what its faults do."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mini_kv.core.protocol import Timed
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.regression import Decision
from mini_kv.regression import Policy
from mini_kv.worker.rotation import rotation
from mini_kv.worker.storage import import_arguments
from research import ROOT
from research.gate_study import commands, honesty, spreads, summary, tables
from research.gate_study.bench import Subject, argument_sets
from research.gate_study.decisions import (
    Evidence,
    Outcome,
    Plan,
    count,
    decide,
    disjoint_groups,
    processes_needed,
    series_of,
)
from research.gate_study.measuring import probe, spins_for
from research.gate_study.model import SPREADS, Faults, simulate
from research.gate_study.model import Spread as ModelSpread
from research.gate_study.records import KERNELS, Cell, Control, Raw, StudyError, chosen_kernels, load_raw
from research.gate_study.records import LEVELS as STUDY_LEVELS
from research.gate_study.room import ROOM_BYTES, fitting_wave, process_bytes
from research.gate_study.sessions import load_shares, shares_of
from research.pages import method

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


# As docs/method.md states them: of decisions on 8 %, the least share that FAILs; of those on equal code, the
# level of the paired test, which is the largest share that is called SLOWER.
STATED_POWER = 0.98
STATED_FALSE_SLOWER = POLICY.paired_alpha


@functools.cache
def decisions(kernel: str, level: int) -> tuple[Outcome, ...]:
    """Return the decisions of eight studies of 48 processes each, always the same ones."""
    return tuple(outcome for seed in range(8) for outcome in gate(study(seed), kernel, level))


@functools.cache
def study(seed: int) -> Raw:
    return simulate(processes=48, seed=seed, spreads=TWO, levels=(0, 8))


@pytest.mark.parametrize("kernel", TWO)
def test_eight_percent_fails_as_often_as_is_stated(kernel: str) -> None:
    """Half of the power could be lost before: two FAILs of four were enough."""
    slow = decisions(kernel, 8)
    assert len(slow) == 32
    # A thermometer that moved leaves a decision open; it lets no slowdown pass.
    assert count(slow, Decision.PASS, Decision.PASS_WITH_WARNING) == 0
    assert summary.proportion(count(slow, Decision.FAIL), len(slow)).upper >= STATED_POWER


@pytest.mark.parametrize("kernel", TWO)
def test_equal_code_never_fails_and_is_called_slower_no_more_often_than_is_stated(kernel: str) -> None:
    equal = decisions(kernel, 0)
    assert len(equal) == 32
    assert count(equal, Decision.FAIL) == 0
    assert summary.proportion(count(equal, Decision.SLOWER), len(equal)).lower <= STATED_FALSE_SLOWER
    assert count(equal, Decision.PASS, Decision.PASS_WITH_WARNING) >= 24  # what is left open is no answer


@pytest.mark.parametrize(
    ("trials", "power", "least", "false_slower", "most"), [(32, 0.98, 30, 0.05, 4), (4, 0.98, 3, 0.05, 1)]
)
def test_what_the_bounds_of_these_tests_demand(
    trials: int, power: float, least: int, false_slower: float, most: int
) -> None:
    """Half of 32 decisions that FAIL are far below the 30 that a power of 98 % leaves room for."""
    uppers = [summary.proportion(fails, trials).upper for fails in range(trials + 1)]
    assert next(fails for fails, upper in enumerate(uppers) if upper >= power) == least
    lowers = [summary.proportion(slower, trials).lower for slower in range(trials + 1)]
    assert max(slower for slower, lower in enumerate(lowers) if lower <= false_slower) == most


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
    found = summary.summarise(shares_of([raw]), regroupings=2)
    assert from_json(to_json(found), summary.Summary) == found
    text = tables.as_text(found)
    for name in TWO:
        assert name in text
    assert found.false_fail.trials == 3 * 2 * 4
    assert found.disjoint_groups == 3


def test_fewer_processes_than_a_decision_takes_give_a_summary_without_decisions() -> None:
    found = summary.summarise(
        shares_of([simulate(processes=4, seed=3, spreads=TWO, levels=(0, 5))]), regroupings=1
    )
    assert found.false_fail.trials == 0
    assert not found.bars[0].passed
    assert from_json(to_json(found), summary.Summary) == found


# ---------------------------------------------------------------------------- the page


def committed(root: Path, *raws: Raw) -> None:
    """Lay sessions and their summary where the document looks for them."""
    folder = (root / method.SUMMARY).parent
    folder.mkdir(parents=True)
    files = [(f"gate_study_raw_{n}.json", to_json(raw)) for n, raw in enumerate(raws, start=1)]
    for name, content in files:
        (folder / name).write_bytes(content)
    (root / method.SUMMARY).write_bytes(to_json(summary.summarise(load_shares(files), regroupings=1)))


def test_blocks_come_from_the_committed_summary_and_say_where_there_is_none(tmp_path: Path) -> None:
    assert set(method.blocks(tmp_path).values()) == {method.NOT_MEASURED}
    committed(tmp_path, simulate(processes=24, seed=3, spreads=TWO, levels=(0, 5, 8)))
    blocks = method.blocks(tmp_path)
    assert blocks["gate_spreads"].startswith("| kernel |")
    told = {name for name, text in blocks.items() if text != method.NOT_MEASURED}
    assert told == {name for name in method.BLOCKS if name.startswith("gate_")}


def test_a_summary_of_other_raw_times_than_those_next_to_it_fills_no_document(tmp_path: Path) -> None:
    committed(tmp_path, simulate(processes=14, seed=3, spreads=TWO, levels=(0, 5)))
    assert method.committed_summary(tmp_path) is not None
    another = (tmp_path / method.SUMMARY).parent / "gate_study_raw_2.json"
    another.write_bytes(b"{}")
    with pytest.raises(StudyError, match=r"gate_study_raw_2\.json"):
        method.committed_summary(tmp_path)


# ---------------------------------------------------------------------------- several sessions


def test_of_a_kernel_in_two_sessions_the_last_counts_and_nothing_is_lost(tmp_path: Path) -> None:
    first = simulate(processes=24, seed=3, spreads=TWO, levels=LEVELS)
    slow = {"memory_2us": ModelSpread(net_us=3.9, process_us=0.045, place_us=0.06, sample_us=0.25)}
    second = simulate(processes=36, seed=4, spreads=slow, levels=LEVELS)
    found = summary.summarise(shares_of([first, second]), regroupings=1)
    assert [(s.processes, s.disjoint_groups, s.kernels, s.left_out) for s in found.sessions] == [
        (24, 2, ("memory_20us",), ("memory_2us",)),
        (36, 3, ("memory_2us",), ()),
    ]
    assert [session.equal_decisions for session in found.sessions] == [2 * 3, 3 * 3]
    assert (found.processes, found.disjoint_groups, found.false_fail.trials) == (60, 5, 2 * 3 + 3 * 3)
    assert [row.kernel for row in found.spreads] == ["memory_2us", "memory_20us"]
    assert found.spreads[0].net_us == pytest.approx(3.9, rel=0.03)
    trials = {row.kernel: row.disjoint_fail.trials for row in found.false_alarms}
    assert trials == {"memory_2us": 3 * 3, "memory_20us": 2 * 3}
    assert {row.kernel: row.disjoint_fail.trials for row in found.power if row.level == 8} == {
        "memory_2us": 3,
        "memory_20us": 2,
    }
    assert from_json(to_json(found), summary.Summary) == found
    assert "memory_2us: measured again in a later session" in tables.design(found)
    committed(tmp_path, first, second)
    told = method.blocks(tmp_path)["gate_design"]
    assert "1 (`gate_study_raw_1.json`) | 24 | 2 | memory_20us" in told


def test_controls_claims_and_strangers_are_those_of_all_sessions() -> None:
    one = simulate(processes=3, seed=3, spreads=TWO, levels=(0, 5))
    marked = tuple(
        structs.replace(process, bounded="memory_2us", outside_us=3.0, strangers=("7 (other)",))
        for process in one.processes
    )
    sessions = [
        structs.replace(one, processes=marked, controls=(control(name="host_sleep", strangers=1),), lost=(n,))
        for n in ("a", "b")
    ]
    found = summary.summarise(shares_of(sessions), regroupings=1)
    assert (found.claims.contradicted.trials, found.shared, found.lost) == (6, 6, ("a", "b"))
    assert [control.name for control in found.controls] == ["host_sleep"] * 2
    assert found.bars[-1].found == "host_sleep (memory_20us): GPU_SHARED, 2 times"
    assert sessions[0].pilot.net_us.keys() == TWO.keys()


def test_sessions_of_different_devices_or_levels_are_refused(tmp_path: Path) -> None:
    one = simulate(processes=2, seed=3, spreads=TWO, levels=(0, 5))
    for other in (structs.replace(one, levels=(0, 8)), structs.replace(one, device_name="another")):
        with pytest.raises(StudyError, match="no one study"):
            shares_of([one, other])
    (tmp_path / "raw.json").write_bytes(b'{"schema_version": 1}')
    with pytest.raises(StudyError, match="raw times"):
        commands.summarise([tmp_path / "raw.json"])
    with pytest.raises(StudyError, match="cannot be read"):
        commands.summarise([tmp_path / "none.json"])


def test_a_summary_from_before_there_were_sessions_stays_loadable() -> None:
    found = summary.summarise(shares_of([simulate(processes=2, seed=3, spreads=TWO, levels=(0, 5))]))
    earlier = json.loads(to_json(found))
    del earlier["sessions"]
    loaded = from_json(json.dumps(earlier).encode(), summary.Summary)
    assert loaded == structs.replace(found, sessions=())
    assert "session" not in tables.design(loaded)


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
    assert honesty.judge_control(control()).codes == ()


def test_every_misdeed_is_flagged_by_the_products_own_words() -> None:
    exposed = Cell(samples_ns=STEADY.samples_ns, floors_ns=STEADY.floors_ns, exposed=20)
    empty = Cell(samples_ns=((3200, 3232) * 50,) * 5, floors_ns=(3200,) * 5)
    assert "LAUNCH_EXPOSED" in honesty.judge_control(control(cell=exposed)).codes
    assert "WORK_OUTSIDE_PAIR" in honesty.judge_control(control(cell=empty)).codes
    assert "GPU_SHARED" in honesty.judge_control(control(strangers=1)).codes


def test_a_study_in_which_a_misdeed_went_unseen_misses_its_bar() -> None:
    seen = honesty.judge_control(control(name="host_sleep", strangers=1))
    unseen = honesty.judge_control(control(name="synchronize"))
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
    found = honesty.claims([Evidence(structs.replace(raw, processes=processes))])
    assert (found.contradicted.events, found.contradicted.trials, found.unbounded) == (1, 2, 1)
    assert found.widest_us == pytest.approx(30.0 - 2.6, abs=0.5)


def test_batches_whose_operands_lie_elsewhere_show_how_much_that_is() -> None:
    raw = simulate(processes=40, seed=3, spreads=TWO, levels=(0, 5))
    spread = TWO["memory_2us"]
    expected = math.hypot(spread.place_us, 1.25 * spread.sample_us / math.sqrt(100))
    assert spreads.places(raw, "memory_2us") == pytest.approx(expected, rel=0.25)
    assert spreads.places(raw, "memory_20us") is None


# ---------------------------------------------------------------------------- spins and room


@given(st.floats(0.5, 3000.0), st.floats(1e-4, 2e-3))
def test_spins_rise_with_their_level_and_are_proportional_to_it(whole_us: float, us_per_cycle: float) -> None:
    # A correction of its own for every level once made 5 % a longer spin than 8 %.
    spins = spins_for(whole_us, us_per_cycle, STUDY_LEVELS)
    assert spins["0"] == 0
    found = [spins[str(level)] for level in STUDY_LEVELS]
    assert found == sorted(set(found))
    for level in STUDY_LEVELS:
        wanted_us = whole_us * level / 100.0
        assert abs(spins[str(level)] * us_per_cycle - wanted_us) <= len(STUDY_LEVELS) * us_per_cycle


class Stopwatch:
    """A process whose kernel takes 5 us, its floor 3, and a cycle of its spin what is told; it drifts."""

    def __init__(self, us_per_cycle: float) -> None:
        self._us_per_cycle = us_per_cycle
        self._spins: dict[str, int] = {}
        self._taken = 0

    def prepare(self, name: str, kernel: object, spin_cycles: int) -> None:
        self._spins[name] = spin_cycles

    def batch(self, name: str, kernel: object, calls: int = 0) -> Timed:
        self._taken += 1
        took_us = 5.0 + 0.01 * self._taken + self._spins[name] * self._us_per_cycle
        return Timed(
            samples_us=(took_us,) * 9,
            launch_exposed=(),
            kept=(),
            calls_per_sample=1,
            floor_us=3.0,
            tick_us=0.001,
        )

    def drop(self, name: str) -> None:
        del self._spins[name]


def test_a_spins_length_is_found_by_comparing_with_the_kernel_without_it() -> None:
    base_us, slope = probe(cast(Subject, Stopwatch(5e-4)), "x", KERNELS["memory_2us"])
    # 12 rounds after one batch; the drift of a round adds 0.01 to 2 us.
    assert base_us == pytest.approx(2.0 + 0.01 * 13, abs=0.02)
    assert slope == pytest.approx(5e-4, rel=0.006)
    assert probe(cast(Subject, Stopwatch(5e-3)), "x", KERNELS["memory_2ms"])[1] == pytest.approx(
        5e-3, rel=0.01
    )


def test_a_spin_that_lengthens_nothing_ends_the_study() -> None:
    with pytest.raises(RuntimeError, match="does not lengthen"):
        probe(cast(Subject, Stopwatch(-1e-4)), "x", KERNELS["memory_2us"])


def test_slowdowns_that_do_not_rise_are_told() -> None:
    raw = simulate(processes=6, seed=3, spreads=TWO, levels=LEVELS)
    assert "NOT RISING" not in spreads.as_told(Evidence(raw))
    swapped = tuple(
        structs.replace(
            process,
            cells=process.cells
            | {"memory_20us@5": process.cells["memory_20us@8"]}
            | {"memory_20us@8": process.cells["memory_20us@5"]},
        )
        for process in raw.processes
    )
    told = spreads.as_told(Evidence(structs.replace(raw, processes=swapped)))
    assert told.count("(NOT RISING)") == 1


def test_a_wave_of_processes_fits_the_gpus_memory() -> None:
    again = [KERNELS[name] for name in ("memory_2us", "spin_2us", "memory_2ms")]
    assert fitting_wave(16, again, 6) == 16
    for kernels in (again, list(KERNELS.values())):
        wave = fitting_wave(64, kernels, 6)
        assert wave * process_bytes(kernels, 6) <= ROOM_BYTES < (wave + 1) * process_bytes(kernels, 6)
    assert fitting_wave(16, again, 1000) == 1


def test_the_longest_kernel_goes_over_far_more_than_the_l2_holds_in_every_pass() -> None:
    assert 3 * KERNELS["memory_2ms"].kib >= 4 * (60 << 10)


# ---------------------------------------------------------------------------- the command itself


def test_kernels_are_chosen_by_name_in_the_studys_own_order() -> None:
    assert chosen_kernels((), KERNELS) == tuple(KERNELS)
    assert chosen_kernels(("memory_2ms", "memory_2us"), KERNELS) == ("memory_2us", "memory_2ms")


COMMAND = [sys.executable, "-m", "research.gate_study"]


def test_a_kernel_that_is_none_of_the_studys_is_refused_in_one_sentence(tmp_path: Path) -> None:
    asked = [*COMMAND, "measure", "--device", "cpu", "--output", str(tmp_path / "out")]
    asked += ["--kernels", "memory_2us,,memory_9us"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == (
        "gate_study: no kernel of the study: '', 'memory_9us'; there are memory_2us, memory_20us\n"
    )
    assert not (tmp_path / "out").exists()


def test_operands_rotate_by_slot_and_no_set_is_copied_for_them() -> None:
    # A cold batch copies sets until they fill the L2 twice: of sets of four bytes it made 24 copies each.
    sets = argument_sets((1024, 1, 7, 0, 0), place=5, device="cpu")
    made = [import_arguments(arguments, [bytearray()] * len(sets)) for arguments in sets]
    rotating = rotation(made, room_bytes=120 << 20)
    assert [arguments[1:] for arguments in rotating] == [[1024, 1, 7, 0, 0, slot] for slot in (15, 16, 17)]


def test_the_study_measures_through_the_products_workers_and_decides_later(tmp_path: Path) -> None:
    few = ["--device", "cpu", "--processes", "2", "--wave", "2", "--budget", "120", "--raw-only"]
    subprocess.run([*COMMAND, "measure", "--output", str(tmp_path), *few], check=True, timeout=300, cwd=ROOT)
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
    subprocess.run(
        [*COMMAND, "summarise", str(path)], check=True, timeout=60, stdout=subprocess.DEVNULL, cwd=ROOT
    )
    found = from_json((tmp_path / "gate_study_summary.json").read_bytes(), summary.Summary)
    assert (found.processes, found.disjoint_groups, found.claims.contradicted.trials) == (2, 0, 2)
