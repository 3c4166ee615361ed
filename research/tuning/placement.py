"""What else decides a kernel's time: where its operands lie, and which lines of the cache others kept."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from research.tuning.bench import EPS, Bench, Call, through
from research.tuning.focus_grid import KEEPER, row

TOUCHED = 3


def placement(bench: Bench) -> dict[str, Any]:
    """Time one kernel for every pair of an input's and a result's place, and two cache-clearing buffers."""
    other = bench.torch.empty_like(bench.flush)
    first, buffers = bench.flush, {"a": bench.flush, "b": other}
    points: list[dict[str, Any]] = []
    function = bench.functions["rmsnorm_v2_f16"]
    stream = bench.torch.cuda.current_stream().cuda_stream
    for name, buffer in buffers.items():
        bench.flush = buffer
        pairs = [(i, j) for i in range(bench.sets) for j in range(bench.sets)]
        calls: dict[str, Call] = {}
        for i, j in pairs:
            places = bench.x[i].data_ptr(), bench.w[0].data_ptr(), bench.out[j].data_ptr()
            calls[f"{i} {j}"] = functools.partial(at_places, function, places, bench, stream)
        for label, values in bench.timed(calls, 1, 6).items():
            i, j = map(int, label.split())
            x, out = bench.x[i].data_ptr(), bench.out[j].data_ptr()
            points.append(
                {
                    "x": x,
                    "out": out,
                    "flush": buffer.data_ptr(),
                    "name": name,
                    "us": statistics.median(values),
                }
            )
    bench.flush = first
    return {"points": points}


def residue(bench: Bench, compiled: Callable[[Any, Any], Any]) -> dict[str, list[float]]:
    """Time one kernel at every place of its input after others have read the first of them."""
    v2 = bench.native(bench.functions["rmsnorm_v2_f16"])
    keeper = bench.native(bench.functions[row(*KEEPER).label])

    def by_place(name: str, call: Call) -> None:
        values = bench.timed({name: call}, 3, bench.sets + 1)[name]
        places = [(position + 1) % bench.sets for position in range(bench.sets)] * 3
        found[name] = [
            statistics.median(v for v, at in zip(values, places, strict=True) if at == place)
            for place in range(bench.sets)
        ]

    def touch(call: Call) -> None:
        for position in range(2 * TOUCHED):
            call(position % TOUCHED)
            bench.clear_dirty(position)

    found: dict[str, list[float]] = {}
    bench.forget_kept_lines()
    by_place("v2 after a reset", v2)
    touch(functools.partial(through, compiled, bench))
    by_place("v2 after compile", v2)
    bench.forget_kept_lines()
    by_place("v2 after another reset", v2)
    touch(keeper)
    by_place("v2 after the keeper", v2)
    bench.forget_kept_lines()
    by_place("keeper on all places", keeper)
    bench.forget_kept_lines()
    by_place("keeper on three places", lambda i: keeper(i % TOUCHED))
    bench.forget_kept_lines()
    return found


def at_places(function: Any, places: tuple[int, int, int], bench: Bench, stream: int, i: int) -> None:
    """Run a kernel on an input, a weight and a result at given addresses."""
    error = function(*places, bench.rows, bench.hidden, EPS, stream)
    assert error is None, error


def residue_lines(found: dict[str, list[float]]) -> list[str]:
    """Return the times at the places that others had touched, and at the rest."""
    return [
        f" {name}: {' '.join(f'{us:.2f}' for us in times[:TOUCHED])} | "
        + " ".join(f"{us:.2f}" for us in times[TOUCHED:])
        for name, times in found.items()
    ]


def placement_lines(points: Sequence[dict[str, Any]]) -> str:
    """Return how much of the spread each of the three places explains by itself."""
    values = [p["us"] for p in points]
    mean, total = statistics.mean(values), statistics.pvariance(values)
    text = f"placement: {min(values):.2f} to {max(values):.2f} us, median {statistics.median(values):.2f};"
    for axis in ("x", "out", "flush"):
        groups: dict[int, list[float]] = {}
        for p in points:
            groups.setdefault(p[axis], []).append(p["us"])
        between = sum(len(g) * (statistics.mean(g) - mean) ** 2 for g in groups.values()) / len(values)
        means = sorted(statistics.mean(g) for g in groups.values())
        text += f" {axis} {100 * between / total if total else 0:.0f} % ({means[0]:.2f}..{means[-1]:.2f})"
    return text
