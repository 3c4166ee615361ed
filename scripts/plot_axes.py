"""Print the curves of benchmark axes; with ``--output`` draw them too, which needs matplotlib.

    python scripts/plot_axes.py artifacts/rmsnorm/<attempt>/benchmark.json [more files] [--output axes.png]

Every FILE is a ``benchmark.json`` of an attempt or of one side of a comparison. Curves of one axis and
template are drawn into one panel, one line a file, so that candidates can be seen side by side.

Exit code 0; 1 where no case of any file lies on an axis; 2 where a file cannot be read, or what was asked for
cannot be drawn.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mini_kv.cli.axes_text import curve_lines
from mini_kv.core.record import from_json
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase
from mini_kv.core.rules.axes import Curve, curves

METRICS = {"gb_per_s": "GB/s", "net_us": "net P50 (us)", "speedup": "speedup over the reference"}


def read_benchmark(path: Path) -> Benchmark:
    """Read one file; a folder stands for the ``benchmark.json`` in it."""
    return from_json((path / "benchmark.json" if path.is_dir() else path).read_bytes(), Benchmark)


def label_of(path: Path) -> str:
    """Name a file's line: by its folder, or by its candidate's manifest where one lies beside it."""
    folder = path if path.is_dir() else path.parent
    try:
        manifest = msgspec.json.decode((folder / "candidate_manifest.json").read_bytes())
        return f"{manifest['candidate_id']} {manifest['version']}"
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return folder.name or str(path)


def metric_of(case: BenchmarkCase, metric: str) -> float | None:
    """Return the plotted figure of a case; ``None`` where it has none."""
    if metric == "net_us":
        return case.candidate.net_p50_us if case.candidate else None
    value: float | None = getattr(case, metric)
    return value


def panels(
    named: Sequence[tuple[str, Benchmark]],
) -> dict[tuple[str, str], list[tuple[str, Curve]]]:
    """Return the curves of all files by axis and template, each with its file's label."""
    found: dict[tuple[str, str], list[tuple[str, Curve]]] = {}
    for label, benchmark in named:
        for curve in curves(benchmark.cases):
            found.setdefault((curve.axis, curve.template_case_id), []).append((label, curve))
    return found


def draw(named: Sequence[tuple[str, Benchmark]], metric: str, output: Path) -> None:
    """Draw every panel into one picture."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    groups = panels(named)
    figure, rows = pyplot.subplots(len(groups), 1, figsize=(8, 4 * len(groups)), squeeze=False)
    for (axis, template), row in zip(groups, rows[:, 0], strict=True):
        for label, curve in groups[axis, template]:
            points = [(case.axis_values[axis], metric_of(case, metric)) for case in curve.cases]
            known = [(value, figure_) for value, figure_ in points if figure_ is not None]
            row.plot([value for value, _ in known], [y for _, y in known], marker="o", label=label)
        values = [case.axis_values[axis] for _, curve in groups[axis, template] for case in curve.cases]
        if all(isinstance(value, int | float) and value > 0 for value in values):
            row.set_xscale("log", base=2)
        row.set(xlabel=axis, ylabel=METRICS[metric], title=f"{axis} of {template}")
        row.grid(visible=True, alpha=0.3)
        row.legend()
    figure.tight_layout()
    figure.savefig(output, dpi=150)


def why_undrawable(output: Path) -> str | None:
    """Return why no picture can be written to ``output``; seen before anything is read or printed."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        return f"--output {output} cannot be written: its folder does not exist, or it is a folder itself"
    if importlib.util.find_spec("matplotlib") is None:
        return (
            f"--output {output} needs matplotlib, which is not installed; without it the curves are printed"
        )
    return None


def refuse(sentence: str) -> int:
    """Say on stderr why nothing is done; return the exit code of a wrong call."""
    print(f"plot_axes: {sentence}", file=sys.stderr)
    return 2


def main(argv: list[str] | None = None) -> int:
    """Print the curves of every file and draw them if asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--metric", choices=tuple(METRICS), default="gb_per_s")
    parser.add_argument("--output", type=Path, help="picture to write (needs matplotlib; default: none)")
    arguments = parser.parse_args(argv)
    if arguments.output is not None and (why := why_undrawable(arguments.output)):
        return refuse(why)
    named: list[tuple[str, Benchmark]] = []
    for path in arguments.files:
        try:
            named.append((label_of(path), read_benchmark(path)))
        except (OSError, msgspec.MsgspecError) as error:
            return refuse(f"{path} cannot be read as a benchmark: {error}")
    for path, (label, benchmark) in zip(arguments.files, named, strict=True):
        lines = curve_lines(benchmark.cases)
        print("\n".join([label, *(lines or [f"  no case of {path} lies on an axis"])]))
    if not panels(named):
        return 1
    if arguments.output is not None:
        draw(named, arguments.metric, arguments.output)
        print(f"drawn: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
