"""``mini-kv calibrate``: hold the timer against spin kernels of known length."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_kv.cli.numbers import whole_number
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError

if TYPE_CHECKING:
    from mini_kv.core.records.calibration import Calibration

EXAMPLE = "mini-kv calibrate --output artifacts/calibration.json"


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
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it too (needs matplotlib)")
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
    if arguments.output is not None:
        try:
            write_bytes_atomic(arguments.output, raw)
        except OSError as error:
            message = f"{arguments.output} cannot be written: {error.strerror}."
            raise ConfigurationError(Code.REPORT_UNWRITABLE, message) from error
    if arguments.plot is not None:
        plot(found, arguments.plot)
    sys.stdout.write(raw.decode("utf-8") if arguments.json else as_text(found))
    return exit_code(found)


def _check(arguments: argparse.Namespace) -> None:
    for option, path in (("--output", arguments.output), ("--plot", arguments.plot)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigurationError(
                Code.USAGE,
                f"{option} {path} cannot be written: its folder does not exist, or it is a folder itself",
            )
    if arguments.plot is not None:
        _pyplot()


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
        f"{'spin':>8}  {'true':>10}  {'read (net)':>10}  {'CUPTI':>10}  {'error':>8}  {'sd':>7}",
    ]
    for one in found.lengths:
        witness = "-" if one.witness_us is None else f"{one.witness_us:.3f}"
        lines.append(
            f"{one.nominal_us:8g}  {one.true_us:10.3f}  {one.net_us:10.3f}  {witness:>10}  "
            f"{one.error_us:+8.3f}  {one.net_spread_us:7.3f}"
        )
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


def plot(found: Calibration, path: Path) -> None:
    """Draw the error of every process at every length, the ratios, and kernels of many blocks."""
    pyplot = _pyplot()
    figure, (left, right, wide) = pyplot.subplots(1, 3, figsize=(15, 4))
    for one in found.readings:
        truth = one.witness_us if one.witness_us is not None else one.true_us
        left.plot(one.true_us, one.net_us - truth, "o", color="tab:blue", alpha=0.6)
    left.axhline(0.0, color="black", linewidth=0.8)
    left.set(
        xscale="log", xlabel="true time, us", ylabel="read less witness, us", title="Error of the net P50"
    )
    for pair in found.ratios:
        right.plot(
            pair.nominal_us, 1.05 * pair.read_ratio / pair.true_ratio, "o", color="tab:orange", alpha=0.6
        )
    right.axhline(1.05, color="black", linewidth=0.8)
    right.set(xscale="log", xlabel="spin, us", ylabel="read ratio", title="A spin 5 % longer")
    for work, colour in (("spin", "tab:blue"), ("copy", "tab:orange")):
        for kernel in found.wide:
            if kernel.work == work:
                wide.plot(kernel.blocks, kernel.net_us - kernel.stamped_us, "o", color=colour, alpha=0.6)
                wide.plot(kernel.blocks, kernel.witness_us - kernel.stamped_us, "x", color=colour, alpha=0.6)
    wide.axhline(found.launch_overhead_us, color="black", linewidth=0.8)
    wide.set(
        xscale="log",
        yscale="log",
        xlabel="blocks (blue: spin, orange: copy)",
        ylabel="read less the timed calls' stamps, us",
        title="Many blocks: net P50 (dots), CUPTI (crosses)",
    )
    figure.suptitle(f"{found.device_name}, {found.processes} processes")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            Code.NO_MATPLOTLIB, "--plot needs matplotlib, which is not installed"
        ) from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    return plt
