"""Profiles and their comparison as text for people, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from mini_kv.cli.lines import as_lines, flat, quoted
from mini_kv.cli.relative_paths import from_here
from mini_kv.core.records.profile import KernelFacts, MetricChange, Profile, ProfileComparison
from mini_kv.core.text_table import Column, figure, head_row, text_row

STALLS_SHOWN = 6
_LABEL_WIDTH = 28
_CHANGE = (
    Column(head="", width=_LABEL_WIDTH, left=True),
    Column(head="A", width=14),
    Column(head="B", width=14),
    Column(head="B / A", width=8),
)


def profile_as_text(profile: Profile, folder: Path) -> str:
    """Return the facts of a profile, or why there are none, and where the evidence lies."""
    candidate = f"{profile.candidate_id} {profile.candidate_version}"
    task = f"{profile.task_id} {profile.operator_version}"
    lines = [f"{task}   candidate {candidate}   case {profile.case_id}", ""]
    if profile.failure is not None:
        lines += [f"  {profile.failure.code}: {flat(profile.failure.message, 500)}"]
        for text in profile.failure.evidence:
            lines += quoted("\n".join(text.splitlines()[-12:]), 12)
    if profile.facts is not None:
        lines += [*_facts(profile.facts), "", *_note(profile.note)]
    word = "CAPTURED" if profile.failure is None else f"NO PROFILE ({profile.failure.code})"
    lines += [
        "",
        f"{word}   exit code {profile.exit_code}   {profile.elapsed_s:.1f} s",
        f"evidence: {from_here(folder)}",
    ]
    return as_lines(lines)


def _facts(facts: KernelFacts) -> list[str]:
    rows = [
        ("kernel", flat(facts.function, 400)),
        ("grid x block", f"{_extents(facts.grid)} x {_extents(facts.block)}"),
        ("waves per multiprocessor", _number(facts.waves_per_multiprocessor)),
        ("registers per thread", str(facts.registers_per_thread)),
        ("shared memory", f"{facts.static_shared_bytes} static + {facts.dynamic_shared_bytes} dynamic bytes"),
        ("achieved occupancy", f"{_number(facts.achieved_occupancy_percent)} %"),
        ("theoretical occupancy", f"{_number(facts.theoretical_occupancy_percent)} %"),
        ("SM throughput", f"{_number(facts.sm_throughput_percent)} %"),
        ("DRAM throughput", f"{_number(facts.dram_throughput_percent)} %"),
        ("DRAM bandwidth in replay", f"{_number(facts.replay_dram_gb_per_s)} GB/s"),
        (
            "DRAM read / written",
            f"{_megabytes(facts.dram_read_bytes)} / {_megabytes(facts.dram_write_bytes)}",
        ),
        ("L1 / L2 hit rate", f"{_percent(facts.l1_hit_percent)} / {_percent(facts.l2_hit_percent)}"),
        (
            "sectors per load / store",
            f"{_number(facts.load_sectors_per_request)} / {_number(facts.store_sectors_per_request)}",
        ),
        ("local memory sectors", _local(facts)),
        ("profiler replay time", f"{_number(facts.replay_duration_us)} us"),
    ]
    lines = [f"  {label:<{_LABEL_WIDTH}} {text}" for label, text in rows]
    lines += ["", "  warps wait for (cycles per issued instruction):"]
    return lines + [
        f"    {stall.name:<{_LABEL_WIDTH - 2}} {_number(stall.cycles_per_issue)}"
        for stall in facts.stalls[:STALLS_SHOWN]
        if stall.cycles_per_issue > 0.0
    ]


def comparison_as_text(comparison: ProfileComparison) -> str:
    """Return both sides metric by metric, and the benchmark's own times where they were given."""
    before, after = comparison.before, comparison.after
    lines = [
        f"{comparison.task_id}   case {comparison.case_id}   Nsight Compute {comparison.profiler_version}",
        f"  A  {before.candidate_id} {before.candidate_version}   {before.profile_id}",
        f"  B  {after.candidate_id} {after.candidate_version}   {after.profile_id}",
        "",
        f"  {head_row(_CHANGE)}",
        f"  {text_row(('grid', _extents(before.grid), _extents(after.grid)), _CHANGE[:3])}",
        f"  {text_row(('block', _extents(before.block), _extents(after.block)), _CHANGE[:3])}",
        *_changes(comparison.metrics),
        "",
        "  warps wait for (cycles per issued instruction):",
        *_changes(comparison.stalls[:STALLS_SHOWN]),
        "",
        *_note(comparison.note),
    ]
    if comparison.timed is not None:
        one, two = comparison.timed.before.p50_us, comparison.timed.after.p50_us
        lines += ["", f"  benchmark P50 of the same builds: A {_number(one)} us, B {_number(two)} us"]
    return as_lines(lines)


def _note(text: str) -> list[str]:
    return textwrap.wrap(text, width=98, initial_indent="  ", subsequent_indent="  ")


def _changes(changes: Iterable[MetricChange]) -> list[str]:
    lines: list[str] = []
    for change in changes:
        unit = f", {change.unit}" if change.unit and "per" not in change.unit else ""
        label = f"{change.name}{unit}"
        cells = (label, _number(change.before), _number(change.after), figure(change.ratio, 3))
        lines.append(f"  {text_row(cells, _CHANGE)}")
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.2f}" if abs(value) >= 0.01 else f"{value:.2g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{_number(value)} %"


def _megabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f} MB"


def _local(facts: KernelFacts) -> str:
    if facts.local_load_sectors is None or facts.local_store_sectors is None:
        return "-"
    if facts.local_load_sectors == facts.local_store_sectors == 0:
        return "none"
    return f"{facts.local_load_sectors} loaded, {facts.local_store_sectors} stored"


def _extents(extents: tuple[int, int, int]) -> str:
    x, y, z = extents
    return f"({x}, {y}, {z})"
