"""An attempt held against its own records: every figure that an edit can make larger than its samples."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import attempt_factory as make
from mini_kv.artifacts.contradictions import contradictions, of_parts
from mini_kv.core.records.attempt import Attempt
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase
from mini_kv.core.rules.statistics import geometric_mean

WRITER: Any = SimpleNamespace(
    attempt_id="20260301T120000Z-00000000", started_at="2026-03-01T12:00:00.000000Z"
)
MACHINE = make.environment()
SOUND = make.timed_at(2.0)


def attempt(**changes: Any) -> Attempt:
    return make.attempt(WRITER, make.card(), MACHINE, **changes)


def told(timed: Benchmark | None = SOUND, **changes: Any) -> list[str]:
    """Return what is said of an attempt with that benchmark, whose own figures are taken from it."""
    figures = {} if timed is None else {"geomean_speedup": timed.geomean_speedup}
    return list(of_parts(attempt(**figures | changes), make.manifest(), MACHINE, timed))


def with_first(timed: Benchmark, **changes: Any) -> Benchmark:
    """Return the benchmark with changes to its first case, and the mean speedup that follows from it."""
    cases = (msgspec.structs.replace(timed.cases[0], **changes), *timed.cases[1:])
    speedups = [case.speedup for case in cases if case.speedup is not None]
    return msgspec.structs.replace(timed, cases=cases, geomean_speedup=geometric_mean(speedups))


def edited(side: str, factor: float, field: str = "p50_us") -> Benchmark:
    """Return a benchmark with one figure of a side changed and all that follows from it, samples apart."""
    case = SOUND.cases[0]
    series = getattr(case, side)
    series = msgspec.structs.replace(series, **{field: factor * getattr(series, field)})
    changed: BenchmarkCase = msgspec.structs.replace(case, **{side: series})
    assert changed.reference is not None and changed.candidate is not None
    return with_first(SOUND, **{side: series, "speedup": changed.reference.p50_us / changed.candidate.p50_us})


def test_a_sound_attempt_contradicts_nothing() -> None:
    assert told() == []
    assert told(None) == []


@pytest.mark.parametrize(
    ("side", "factor", "field"),
    [
        ("reference", 5.0, "p50_us"),
        ("reference", 0.5, "robust_cv"),
        ("candidate", 0.2, "p50_us"),
        ("candidate", 0.5, "robust_cv_p95"),
    ],
)
def test_edited_figures_of_either_side_were_believed(side: str, factor: float, field: str) -> None:
    """A reference's P50 that was raised by hand made a speedup that was ranked and promoted."""
    forged = edited(side, factor, field)
    assert forged.cases[0].candidate is not None
    found = told(forged, primary_p50_us=forged.cases[0].candidate.p50_us)
    assert found == ["the figures of large do not follow from its samples"]


@pytest.mark.parametrize("speedup", [9.0, 2.0 * (1.0 + 1e-8), float("nan"), 0.0, None])
def test_an_edited_speedup_of_a_case_was_believed(speedup: float | None) -> None:
    case = msgspec.structs.replace(SOUND.cases[0], speedup=speedup)
    forged = msgspec.structs.replace(SOUND, cases=(case, *SOUND.cases[1:]))
    assert told(forged) == ["the speedup of large does not follow from its times"]


@pytest.mark.parametrize("speedup", [50.0, 2.0 * (1.0 + 1e-8), 1.0])
def test_an_edited_mean_speedup_was_believed(speedup: float) -> None:
    forged = msgspec.structs.replace(SOUND, geomean_speedup=speedup)
    assert told(forged) == ["its mean speedup does not follow from those of its cases"]
    missing = msgspec.structs.replace(SOUND, geomean_speedup=None)
    assert told(missing) == ["its mean speedup does not follow from those of its cases"]


def test_a_mean_over_cases_of_which_one_has_no_times_says_nothing() -> None:
    half = msgspec.structs.replace(SOUND.cases[1], candidate=None, reference=None, speedup=None)
    partial = msgspec.structs.replace(SOUND, cases=(SOUND.cases[0], half), geomean_speedup=None)
    assert told(partial) == []


@pytest.mark.parametrize(
    ("changes", "what", "recorded"),
    [
        ({"benchmark_stable": False}, "benchmark's stability", "True"),
        ({"geomean_speedup": 50.0}, "speedup", "2.0"),
        ({"primary_p50_us": 0.1}, "primary P50", "10.0"),
        ({"candidate_id": "other"}, "candidate id", "v0_naive"),
        ({"candidate_version": "9.0.0"}, "candidate version", "1.0.0"),
        ({"operator": "other"}, "operator", "vector_add"),
    ],
)
def test_what_an_attempt_says_of_itself_was_believed(
    changes: dict[str, Any], what: str, recorded: str
) -> None:
    (claimed,) = changes.values()
    assert told(**changes) == [f"it says that its {what} is {claimed}, its records say {recorded}"]


def test_an_unstable_benchmark_was_ranked_as_a_stable_one() -> None:
    unstable = msgspec.structs.replace(SOUND, stable=False)
    found = told(unstable, benchmark_stable=True)
    assert found == ["it says that its benchmark's stability is True, its records say False"]
    assert told(unstable, benchmark_stable=False) == []


def test_an_attempt_of_another_device_than_its_times_contradicts_itself() -> None:
    found = told(msgspec.structs.replace(SOUND, device="cuda"))
    assert found == ["it says that its timed device is cpu, its records say cuda"]


def test_a_primary_case_without_times_has_no_primary_p50() -> None:
    other = msgspec.structs.replace(SOUND, primary_case_id="gone")
    assert told(other) == ["it says that its primary P50 is 10.0, its records say None"]
    assert told(other, primary_p50_us=None) == []


def test_an_id_that_is_no_attempts_was_not_told() -> None:
    assert told(attempt_id="latest") == ["its id is latest, which is no attempt's"]
    (found,) = told(started_at="2026-03-01T12:00:01.000000Z")
    assert found.startswith(
        "it says that its id's time is 20260301T120000Z, its records say 20260301T120001Z"
    )


@pytest.mark.parametrize(
    ("changes", "told_so"),
    [
        ({"geomean_speedup": None}, "it says that its speedup is None, its records say 2.0"),
        ({"benchmark_stable": None}, "it says that its benchmark's stability is None, its records say True"),
    ],
)
def test_an_attempt_that_says_half_of_its_times_was_not_held_against_them(
    tmp_path: Path, changes: dict[str, Any], told_so: str
) -> None:
    claimed, writer = make.write_attempt(tmp_path, **changes)
    assert contradictions(writer.folder, claimed) == (told_so,)


def test_an_attempt_that_was_not_timed_needs_no_benchmark(tmp_path: Path) -> None:
    claimed, writer = make.write_attempt(
        tmp_path, benchmark_stable=None, geomean_speedup=None, primary_p50_us=None
    )
    (writer.folder / "benchmark.json").unlink()
    assert contradictions(writer.folder, claimed) == ()
