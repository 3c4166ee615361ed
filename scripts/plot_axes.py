"""Print the curves of benchmark axes; with ``--output`` draw them too, as SVG.

    python scripts/plot_axes.py artifacts/rmsnorm/<attempt>/benchmark.json [more files] [--output axes.svg]

Every FILE is a ``benchmark.json`` of an attempt or of one side of a comparison. Curves of one axis and
template are drawn into one panel, one line a file, so that candidates can be compared.

Exit code 0; 1 where no case of any file lies on an axis; 2 where a file cannot be read, or what was asked for
cannot be drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mini_kv.cli.axes_text import curve_lines
from mini_kv.core.record import from_json
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase
from mini_kv.core.rules.axes import Curve, curves
from mini_kv.core.svg_plot import COLORS, Panel, PlotAxis, PlotSeries, Scale, svg

METRICS = {"gb_per_s": "GB/s", "net_us": "net P50 (us)", "speedup": "speedup over the reference"}


def read_benchmark(path: Path) -> Benchmark:
    """Read one file; a folder stands for the ``benchmark.json`` in it."""
    return from_json((path / "benchmark.json" if path.is_dir() else path).read_bytes(), Benchmark)


def label_of(path: Path) -> str:
    """Name a file's line: by its folder, or by its candidate's manifest where one lies next to it."""
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


def picture(named: Sequence[tuple[str, Benchmark]], metric: str) -> str:
    """Return every panel in one SVG, one below the other."""
    return svg(
        f"{METRICS[metric]} of {len(named)} files",
        [_panel(key, curves, metric) for key, curves in panels(named).items()],
        columns=1,
    )


def _panel(key: tuple[str, str], drawn: Sequence[tuple[str, Curve]], metric: str) -> Panel:
    axis, template = key
    series = []
    for number, (label, curve) in enumerate(drawn):
        points = ((case.axis_values[axis], metric_of(case, metric)) for case in curve.cases)
        series.append(
            PlotSeries(
                points=tuple((value, figure) for value, figure in points if figure is not None),
                color=COLORS[number % len(COLORS)],
                name=label,
                line="solid",
            )
        )
    values = [case.axis_values[axis] for _, curve in drawn for case in curve.cases]
    across = PlotAxis(title=axis, scale=_scale_of(values))
    return Panel(
        title=f"{axis} of {template}", across=across, up=PlotAxis(title=METRICS[metric]), series=tuple(series)
    )


def _scale_of(values: Sequence[int | float | str]) -> Scale:
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return "words"
    return "log2" if all(value > 0 for value in numbers) else "linear"


def why_undrawable(output: Path) -> str | None:
    """Return why no picture can be written to ``output``; seen before anything is read or printed."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        return f"--output {output} cannot be written: its folder does not exist, or it is a folder itself"
    return None if output.suffix == ".svg" else f"--output takes a file that ends in .svg, not {output}"


def refuse(sentence: str) -> int:
    """Say on stderr why nothing is done; return the exit code of a wrong call."""
    print(f"plot_axes: {sentence}", file=sys.stderr)
    return 2


def main(argv: list[str] | None = None) -> int:
    """Print the curves of every file and draw them if asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--metric", choices=tuple(METRICS), default="gb_per_s")
    parser.add_argument("--output", type=Path, help="picture to write, FILE.svg (default: none)")
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
        arguments.output.write_text(picture(named, arguments.metric), "utf-8")
        print(f"drawn: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
