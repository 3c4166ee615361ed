"""The measured blocks of docs/method.md in Markdown, from what is committed as evidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mini_kv.calibration.bars import (
    WITNESS_SLACK_FRACTION,
    WITNESS_SLACK_US,
    WideMedians,
    wide_medians,
)
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.record import from_json
from mini_kv.core.records.calibration import Calibration
from research.gate_study import tables
from research.gate_study.records import StudyError
from research.gate_study.summary import Summary
from research.honest_runs import tables as honest
from research.honest_runs.records import load_runs
from research.markdown import table
from research.pages.evidence import last_benchmarks

SUMMARY = Path("evidence/h200/gate_study/gate_study_summary.json")
RAW_FILES = "gate_study_raw*.json"
CALIBRATION = Path("evidence/h200/calibration/calibration.json")
HONEST = {
    "honest_gpu": Path("evidence/h200/honest_runs.json"),
    "honest_cpu": Path("evidence/cpu/honest_runs.json"),
    "honest_busy_cpu": Path("evidence/cpu/honest_runs_busy.json"),
}
NOT_MEASURED = "Not yet measured."
OWN_CARDS = ("vector_add", "fused_bias_relu", "rmsnorm")


def blocks(root: Path) -> dict[str, str]:
    """Return every block of the page by name. Raises ``StudyError`` for a summary of other raw times."""
    return {name: render(root) for name, render in BLOCKS.items()}


def _study(text: Callable[[Summary], str]) -> Callable[[Path], str]:
    def render(root: Path) -> str:
        found = committed_summary(root)
        return NOT_MEASURED if found is None else text(found)

    return render


def committed_summary(root: Path) -> Summary | None:
    """Return the committed summary; raises ``StudyError`` unless it is of the raw times next to it."""
    path = root / SUMMARY
    if not path.is_file():
        return None
    found = from_json(path.read_bytes(), Summary)
    told = {session.file: session.sha256 for session in found.sessions}
    there = {raw.name: sha256_bytes(raw.read_bytes()) for raw in sorted(path.parent.glob(RAW_FILES))}
    if told != there:
        listed = ", ".join(
            sorted(name for name in told.keys() | there.keys() if told.get(name) != there.get(name))
        )
        raise StudyError(
            f"{SUMMARY} is not of the raw times next to it ({listed}): run python -m research.gate_study "
            "summarise"
        )
    return found


def _calibration(root: Path) -> str:
    path = root / CALIBRATION
    if not path.is_file():
        return NOT_MEASURED
    found = from_json(path.read_bytes(), Calibration)
    step = (
        ""
        if found.global_timer_step_ns is None
        else f" Its global timer steps {found.global_timer_step_ns:g} ns."
    )
    clock = "By the judge's own clock, over replays of a graph, the longest spin takes"
    outside = "" if found.outside_us is None else f" {clock} {found.outside_us:.2f} us a call."
    intro = (
        f"{found.device_name}, torch {found.torch}, {found.processes} fresh processes.{step} "
        f"Read = {found.intercept_us:+.3f} us + {found.slope:.5f} x true.{outside}"
    )
    lengths = table(
        ("spin", "true", "read, net", "CUPTI", "error", "sd between processes"),
        [
            (
                f"{one.nominal_us:g} us",
                f"{one.true_us:.3f} us",
                f"{one.net_us:.3f} us",
                "-" if one.witness_us is None else f"{one.witness_us:.3f} us",
                f"{one.error_us:+.3f} us",
                f"{one.net_spread_us:.3f} us",
            )
            for one in found.lengths
        ],
    )
    bars = table(
        ("demand", "found", ""),
        [(bar.demand, bar.found, "PASS" if bar.passed else "FAIL") for bar in found.bars],
    )
    return f"{intro}\n\n{lengths}\n\n{bars}"


def _wide(root: Path) -> str:
    path = root / CALIBRATION
    found = from_json(path.read_bytes(), Calibration) if path.is_file() else None
    if found is None or not found.wide:
        return NOT_MEASURED

    def row(one: WideMedians) -> tuple[str, ...]:
        timed, watched = one.stamped_us, one.witness_stamped_us
        numbers = (timed, one.net_us, one.net_us - timed, watched, one.witness_us, one.witness_us - watched)
        return (f"{one.work}, {one.blocks}", *(f"{number:.2f}" for number in numbers))

    head = ("kernel, blocks", "stamps, timed", "net", "net less stamps")
    return table(
        (*head, "stamps, under CUPTI", "CUPTI", "CUPTI less stamps"),
        [row(one) for one in wide_medians(found.wide)],
    )


def _witnesses(root: Path) -> str:
    rows: list[tuple[str, ...]] = []
    within = 0
    for (task, candidate), benchmark in sorted(last_benchmarks(root).items()):
        if task not in OWN_CARDS:
            continue
        for case in benchmark["cases"]:
            net_us, cupti_us = case["candidate"]["net_p50_us"], case["candidate_kernel"]["kernel_us"]
            agree = abs(net_us - cupti_us) <= max(WITNESS_SLACK_US, WITNESS_SLACK_FRACTION * cupti_us)
            within += agree
            numbers = (f"{net_us:.2f}", f"{cupti_us:.2f}", f"{net_us - cupti_us:+.2f}")
            rows.append((f"`{candidate}`", case["case_id"], *numbers, "yes" if agree else "**no**"))
    if not rows:
        return NOT_MEASURED
    limit = f"{WITNESS_SLACK_US:g} us or {WITNESS_SLACK_FRACTION:.0%}"
    intro = f"Net P50 and CUPTI lie within {limit} of each other in {within} of {len(rows)} cases."
    head = ("candidate", "case", "net, us", "CUPTI, us", "net less CUPTI", "within")
    return f"{intro}\n\n{table(head, rows)}"


def _honest(name: str) -> Callable[[Path], str]:
    def render(root: Path) -> str:
        path = root / HONEST[name]
        return honest.as_text(load_runs(path.read_bytes())) if path.is_file() else NOT_MEASURED

    return render


BLOCKS: dict[str, Callable[[Path], str]] = {
    "calibration": _calibration,
    "calibration_wide": _wide,
    "witnesses": _witnesses,
    **{name: _honest(name) for name in HONEST},
    "gate_bars": _study(tables.bars),
    "gate_design": _study(tables.design),
    "gate_spreads": _study(tables.spreads),
    "gate_false_alarms": _study(tables.false_alarms),
    "gate_power": _study(tables.power),
    "gate_policies": _study(tables.policies),
    "gate_controls": _study(tables.controls),
}
