"""The tables of a focused run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from research.tuning.grids import Grid, key_of
from research.tuning.placement import placement_lines, residue_lines


def best_of(first: dict[str, float], count: int) -> list[str]:
    """Return the fastest labels."""
    return sorted(first, key=first.__getitem__)[:count]


def combined(processes: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float, str]]:
    """Return (median over processes of their medians, spread of those, label), fastest first."""
    medians: dict[str, list[float]] = {}
    for process in processes:
        for label, values in process.get(key, {}).get("final_us", {}).items():
            medians.setdefault(label, []).append(statistics.median(values))
    rows = [
        (statistics.median(values), max(values) - min(values), label) for label, values in medians.items()
    ]
    return sorted(rows)


def brief(label: str) -> str:
    """Return a label without what is the same for most."""
    return re.sub(r" (f16|(touch|spread|first|ps)=0|exact=1|keep=1)(?= |$)", "", label)


def ready_forms(ranked: Sequence[tuple[float, float, str]]) -> list[str]:
    """Return the best forms of the shipped rmsnorm kernel as fitting.cuh writes them."""
    lines = []
    for us, wide, label in [row for row in ranked if row[2].startswith("shipped ")][:4]:
        t, k, r, ef = re.findall(r"=(\d+)", label)
        call = f"launch_rows<T, {t}, {k}, {r}{', 1, true' if ef == '1' else ''}>(call)"
        lines.append(f" fitting.cuh, case {int(t) * int(k)}: return {call};  {us:.2f} +-{wide:.2f}")
    return lines


def report(grid: Grid, processes: Sequence[dict[str, Any]]) -> str:
    """Return the table of all shapes."""
    lines: list[str] = []
    kinds = {v.label: (v.group, v.kind, v.axes) for v in grid.variants()}
    for shape in grid.shapes:
        key = key_of(shape)
        ranked = combined(processes, key)
        done = [p[key]["elapsed_s"] for p in processes if key in p]
        lines.append(f"== {key}, {len(done)} processes, {sum(done):.1f} s")
        shown = [row for row in ranked if row[2] in kinds][: grid.shown]
        others = [row for row in ranked if row[2] not in kinds]
        lines += [f"{us:8.2f} +-{wide:5.2f} {brief(label)}" for us, wide, label in sorted(shown + others)]
        lines += ready_forms(ranked)
        lines += [
            placement_lines(p[key]["placement"]["points"]) for p in processes if "placement" in p.get(key, {})
        ]
        lines += [line for p in processes for line in residue_lines(p.get(key, {}).get("residue", {}))]
        first = processes[0].get(key, {}).get("first_us", {}) if processes else {}
        axes: dict[tuple[str, str], dict[str, float]] = {}
        for label, us in first.items():
            if label in kinds:
                for axis, value in kinds[label][2].items():
                    row = axes.setdefault((kinds[label][1], axis), {})
                    row[str(value)] = min(us, row.get(str(value), us))
        clean = processes[0].get(key, {}).get("clean_us", {}) if processes else {}
        if clean:
            lines.append(
                " clean L2: "
                + "; ".join(f"{brief(k)} {us:.2f}" for k, us in sorted(clean.items(), key=lambda i: i[1]))
            )
        for (kind, axis), row in axes.items():
            if len(row) > 1:
                lines.append(f" {kind}.{axis} " + " ".join(f"{v}:{us:.2f}" for v, us in row.items()))
    return "\n".join(lines)
