"""``mini-kv calibrate``: hold the timer against spin kernels of known length."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mini_kv.cli.numbers import whole_number
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.text_table import Column, figure, head_row, text_row

if TYPE_CHECKING:
    from mini_kv.core.records.calibration import Calibration

EXAMPLE = "mini-kv calibrate --output artifacts/calibration.json"
_LENGTH = (
    Column(head="spin", width=8),
    Column(head="true", width=10),
    Column(head="read (net)", width=10),
    Column(head="CUPTI", width=10),
    Column(head="error", width=8),
    Column(head="sd", width=7),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    parser.add_argument("--device", choices=("cuda", "cpu", "auto"), default="auto", help="what to calibrate")
    parser.add_argument(
        "--processes",
        type=whole_number("--processes", 1, 100),
        default=5,
        metavar="N",
        help="fresh processes to measure in (default: 5)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the calibration as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it too, as SVG (FILE ends in .svg)")
    parser.add_argument("--json", action="store_true", help="print the calibration as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate and report; 5 when a GPU's timer misses a demand."""
    _check(arguments)
    from mini_kv.calibration import CalibrateRequest, calibrate
    from mini_kv.calibration.spin_measurement import exit_code
    from mini_kv.cli import progress_bars
    from mini_kv.core.record import to_json
    from mini_kv.system.files import write_bytes_atomic

    with progress_bars.display(sys.stderr) as show:
        found = calibrate(CalibrateRequest(device=arguments.device, processes=arguments.processes), show)
    raw = to_json(found)
    wanted = {arguments.output: raw} if arguments.output is not None else {}
    if arguments.plot is not None:
        wanted[arguments.plot] = picture(found).encode("utf-8")
    for path, content in wanted.items():
        try:
            write_bytes_atomic(path, content)
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}."
            raise ConfigurationError(Code.REPORT_UNWRITABLE, message) from error
    sys.stdout.write(raw.decode("utf-8") if arguments.json else as_text(found))
    return exit_code(found)


def _check(arguments: argparse.Namespace) -> None:
    for option, path in (("--output", arguments.output), ("--plot", arguments.plot)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigurationError(
                Code.USAGE,
                f"{option} {path} cannot be written: its folder does not exist, or it is a folder itself",
            )
    if arguments.plot is not None and arguments.plot.suffix != ".svg":
        raise ConfigurationError(Code.USAGE, f"--plot takes a file that ends in .svg, not {arguments.plot}")


def as_text(found: Calibration) -> str:
    """Return the table of lengths and every demand with PASS or FAIL."""
    step = f", global timer steps {found.global_timer_step_ns:g} ns" if found.global_timer_step_ns else ""
    lines = [
        f"{found.device_name}, torch {found.torch}: {found.processes} fresh processes{step}",
        f"timer: {found.timer}",
        (
            f"a launch adds {found.launch_overhead_us:.3f} us to its kernel's own stamps; "
            f"read = {found.intercept_us:+.3f} us + {found.slope:.5f} x true"
        ),
        "",
        head_row(_LENGTH, gap="  "),
    ]
    for one in found.lengths:
        measured = (figure(value, 3) for value in (one.true_us, one.net_us, one.witness_us))
        cells = (f"{one.nominal_us:g}", *measured, f"{one.error_us:+.3f}", figure(one.net_spread_us, 3))
        lines.append(text_row(cells, _LENGTH, gap="  "))
    if found.outside_us is not None:
        lines.append(
            f"the longest spin by the judge's own clock, over graph replays: {found.outside_us:.2f} us"
        )
    lines += _wide_lines(found)
    lines.append("")
    lines += [f"{'PASS' if bar.passed else 'FAIL'}  {bar.demand}: {bar.found}" for bar in found.bars]
    verdict = "The timer keeps every demand." if found.passed else "The timer misses a demand."
    if not found.passed and found.device == "cpu":
        verdict += " On a CPU that is a warning: its times do not count."
    return "\n".join([*lines, "", verdict]) + "\n"


def _wide_lines(found: Calibration) -> list[str]:
    from mini_kv.calibration.bars import wide_medians

    if not found.wide:
        return []
    lines = ["", f"{'':>13}  {'timed calls':>20}  {'calls CUPTI watched':>20}"]
    lines.append(f"{'blocks':>13}  {'stamps':>10}{'net':>10}  {'stamps':>10}{'CUPTI':>10}")
    for one in wide_medians(found.wide):
        timed = f"{one.stamped_us:10.3f}{one.net_us:10.3f}"
        watched = f"{one.witness_stamped_us:10.3f}{one.witness_us:10.3f}"
        lines.append(f"{one.blocks:>8} {one.work}  {timed}  {watched}")
    return lines


def picture(found: Calibration) -> str:
    """Return as SVG the error of every process at every length, the ratios, and kernels of many blocks."""
    from mini_kv.core.svg_plot import COLORS, Panel, PlotAxis, PlotSeries, svg

    orange, blue = COLORS[:2]
    errors = PlotSeries(
        points=tuple(
            (one.true_us, one.net_us - (one.true_us if one.witness_us is None else one.witness_us))
            for one in found.readings
        ),
        color=blue,
    )
    ratios = PlotSeries(
        points=tuple((one.nominal_us, 1.05 * one.read_ratio / one.true_ratio) for one in found.ratios),
        color=orange,
    )
    wide: list[PlotSeries] = []
    for work, color in (("spin", blue), ("copy", orange)):
        kernels = [one for one in found.wide if one.work == work]
        net = tuple((one.blocks, one.net_us - one.stamped_us) for one in kernels)
        cupti = tuple((one.blocks, one.witness_us - one.stamped_us) for one in kernels)
        wide += [
            PlotSeries(points=net, color=color, name=f"{work}: net P50 (dots), CUPTI (crosses)"),
            PlotSeries(points=cupti, color=color, mark="cross"),
        ]
    panels = (
        Panel(
            title="Error of the net P50",
            across=PlotAxis(title="true time, us", scale="log10"),
            up=PlotAxis(title="read less witness, us"),
            series=(errors,),
            level=0.0,
        ),
        Panel(
            title="A spin 5 % longer",
            across=PlotAxis(title="spin, us", scale="log10"),
            up=PlotAxis(title="read ratio"),
            series=(ratios,),
            level=1.05,
        ),
        Panel(
            title="Many blocks; the line is what a launch adds",
            across=PlotAxis(title="blocks", scale="log10"),
            up=PlotAxis(title="read less the timed calls' stamps, us", scale="log10"),
            series=tuple(wide),
            level=found.launch_overhead_us,
        ),
    )
    return svg(f"{found.device_name}, {found.processes} processes", panels, columns=3)
