"""Builds the spin kernel, starts fresh processes, measures in each, judges."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mini_kv import benchmark, compiler
from mini_kv.calibration.bars import LONGER, RATIO_LENGTHS_US, judge, judge_wide, lengths_of, line
from mini_kv.calibration.spin_kernel import LONG_US, Spinner, Spun, WideKernel
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.calibration import Calibration, SpinRatio, SpinReading, WideReading
from mini_kv.core.records.card import SCHEMA_VERSION, CandidateManifest, DeviceKind, DeviceRequest
from mini_kv.core.records.results import Status
from mini_kv.core.rules.statistics import mean, median
from mini_kv.core.time_limits import BUILD_TIMEOUT_S, DROP_TIMING_TIMEOUT_S, SPIN_REPEATS_TIMEOUT_S
from mini_kv.run.run_inputs import BUILD_FOLDER, device_lock, resolve_device
from mini_kv.system.gpu import GpuReport, read_gpus
from mini_kv.system.modules import import_path
from mini_kv.system.paths import find_project_root
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.sandbox.cage import build_cage
from mini_kv.system.scratch import scratch_folder
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.toolchain import find_toolchain
from mini_kv.system.workers import Answer, Nursery

LENGTHS_US = (2.0, 5.0, 20.0, 200.0, 2000.0)
MIN_PROCESSES = 5
ITERATIONS = 100
LONG_ITERATIONS = 30
# Batches of a spin and of its longer twin, in turn, by least length: a batch's P50 scatters by some 20 ns,
# which is 1 % of 2 us and a tenth of what is asked for at 20 us.
BATCHES_IN_TURN = ((200.0, 2), (20.0, 4), (0.0, 16))
# Rounds of both before these. A process's first batches read up to 0.2 us less, and from then on every second
# one 75 ns more: orders that are balanced between the two lengths are so only after that.
SETTLING_ROUNDS = 4
# Blocks of a spin as wide as an elementwise kernel: one, one a multiprocessor, a full device, many waves.
# Each block spins for so long that 16 waves take about 15 us, as the elementwise kernels of 4M elements do.
WIDE_BLOCKS = (1, 132, 1056, 4224, 16384)
WIDE_BLOCK_US = 0.7
WIDE_BATCHES = 4
KERNELS = Path(__file__).resolve().parent.parent / "calibration_kernels"
MANIFEST = CandidateManifest(
    schema_version=SCHEMA_VERSION,
    candidate_id="mini_kv_calibration",
    operator="spin",
    version="1.0.0",
    dispatcher="mini_kv_calibration::spin",
    schema="spin(Tensor like, int amount, int blocks, int steps) -> Tensor",
    sources=("binding.cpp", "kernel.cu"),
    backends=("cpu", "cuda"),
    autograd=False,
    kernel_name_regex="stamped_spin|wide_spin",
    dtypes=("int64",),
)


@dataclass(frozen=True, kw_only=True)
class CalibrateRequest:
    """What the user asked for."""

    device: DeviceRequest
    processes: int = MIN_PROCESSES


@dataclass(frozen=True, kw_only=True)
class _Rig:
    """Everything that stands before the first spin."""

    device: DeviceKind
    gpus: GpuReport
    spinners: tuple[Spinner, ...]
    load: p.LoadCandidate


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """What the pilot process found: how long a cycle is, and what a kernel is beyond its spin."""

    device_name: str
    torch: str
    step_ns: float | None
    ns_per_unit: float
    overhead_us: float
    empty_kernel_us: float
    outside_us: float | None

    def amount(self, whole_us: float) -> int:
        """Return the spin (cycles, or ns on the CPU) that makes a call last ``whole_us``."""
        return max(1, round((whole_us - self.overhead_us) * 1e3 / self.ns_per_unit))

    def true_us(self, spun: Spun) -> float:
        """Return the whole time of a spin by its own stamps."""
        cycles = median([float(one) for one in spun.stamped_cycles])
        return cycles * self.ns_per_unit / 1e3 + self.overhead_us


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """What the processes have read so far."""

    readings: tuple[SpinReading, ...] = ()
    ratios: tuple[SpinRatio, ...] = ()
    wide: tuple[WideReading, ...] = ()

    def __add__(self, more: _Taken) -> _Taken:
        return _Taken(
            readings=self.readings + more.readings,
            ratios=self.ratios + more.ratios,
            wide=self.wide + more.wide,
        )


def calibrate(request: CalibrateRequest, progress: Progress) -> Calibration:
    """Time spins of 2 to 2000 us in fresh processes, one at a time, and hold them against the demands.

    The truth is the kernels' own stamps: cycles of the multiprocessor's clock, whose length is taken from
    the global timer over long spins; CUPTI is the second witness. Raises ``ConfigurationError`` where the
    kernel cannot be built or run here, ``InternalError`` where a process is lost.
    """
    started = time.monotonic()
    adopt_orphans()
    with _rig(request, progress) as rig:
        pilot, *others = rig.spinners
        ready = pilot.open(rig.load)
        for spinner in others:
            spinner.open(rig.load)
        taken = _Taken()
        with benchmark.hold_device(device_lock(rig.device, rig.gpus)):
            scale = _pilot(rig, pilot, ready)
            for number, spinner in enumerate(others):
                progress(Event(stage="calibrate", done=number, total=len(others), detail="spinning"))
                taken += _process(rig, spinner, scale, number)
    progress(Event(stage="calibrate", done=len(others), total=len(others), detail="done"))
    return _record(rig, scale, taken, time.monotonic() - started)


def _record(rig: _Rig, scale: _Scale, taken: _Taken, elapsed_s: float) -> Calibration:
    lengths = lengths_of(taken.readings)
    slope, intercept_us = line([(one.true_us, one.net_us) for one in lengths])
    bars = judge(lengths, taken.ratios, slope)
    if rig.device == "cuda":
        bars += judge_wide(taken.wide, WIDE_BLOCKS[-1], scale.overhead_us)
    return Calibration(
        schema_version=SCHEMA_VERSION,
        device=rig.device,
        device_name=scale.device_name,
        torch=scale.torch,
        timer=benchmark.TIMER_PLAN[rig.device],
        processes=len(rig.spinners) - 1,
        global_timer_step_ns=scale.step_ns,
        ns_per_cycle=scale.ns_per_unit,
        launch_overhead_us=scale.overhead_us,
        slope=slope,
        intercept_us=intercept_us,
        outside_us=scale.outside_us,
        lengths=lengths,
        readings=taken.readings,
        ratios=taken.ratios,
        wide=taken.wide,
        bars=bars,
        passed=all(bar.passed for bar in bars),
        elapsed_s=round(elapsed_s, 3),
    )


def exit_code(calibration: Calibration) -> ExitCode:
    """Return 5 for a GPU's timer that missed a demand; a CPU that did is reported and no failure."""
    failed = calibration.device == "cuda" and not calibration.passed
    return ExitCode.BENCHMARK if failed else ExitCode.ACCEPTED


# --------------------------------------------------------------------------- processes


@contextmanager
def _rig(request: CalibrateRequest, progress: Progress) -> Iterator[_Rig]:
    root = find_project_root(Path.cwd())
    toolchain = find_toolchain(root / BUILD_FOLDER, os.environ)
    gpus = read_gpus(os.environ)
    device = resolve_device(request.device, gpus, toolchain)
    cage = build_cage(device, import_path(root), (root,))
    with ExitStack() as stack:
        nursery = Nursery(stack.enter_context(scratch_folder()), import_path(root), cage)
        stack.callback(nursery.close)
        # One more than asked for: the pilot's own times are not among those that are judged.
        hello = p.Hello(device=device, threads=1)
        seats = [CandidateSeat(nursery, hello) for _ in range(request.processes + 1)]
        progress(Event(stage="build", done=0, total=1, detail="spin kernel"))
        built = compiler.build(
            compiler.BuildRequest(
                project_root=str(root),
                candidate_folder=str(KERNELS),
                manifest=MANIFEST,
                device=device,
                arch_list=(gpus.gpus[0].compute_capability,) if device == "cuda" else (),
                timeout_s=BUILD_TIMEOUT_S,
            ),
            toolchain,
            launcher=cage.launcher(toolchain),
        )
        if built.status is not Status.PASS or built.library is None or built.library_sha256 is None:
            message = f"the spin kernel does not build here: {built.code} {built.message}"
            raise ConfigurationError(Code.CALIBRATION_NOT_BUILT, message)
        yield _Rig(
            device=device,
            gpus=gpus,
            spinners=tuple(Spinner(seat, device) for seat in seats),
            load=p.LoadCandidate(
                library=str(root / built.library),
                library_sha256=built.library_sha256,
                python=None,
                dispatcher=MANIFEST.dispatcher,
                schema=MANIFEST.schema,
            ),
        )


def _pilot(rig: _Rig, spinner: Spinner, ready: p.Ready) -> _Scale:
    cuda = rig.device == "cuda"
    step_ns = spinner.timer_step_ns()
    ns_per_unit = 1.0
    if cuda:
        guess = spinner.spin(1_000_000, LONG_ITERATIONS)
        ns_per_unit = _ns_per_cycle(guess)
        long = spinner.spin(round(2e6 / ns_per_unit), LONG_ITERATIONS)
        ns_per_unit = _ns_per_cycle(long)
    amount = round(5e3 / ns_per_unit)
    short = spinner.spin(amount, ITERATIONS)
    stamped_us = median([float(one) for one in short.stamped_cycles]) * ns_per_unit / 1e3
    outside_us = _outside_us(spinner, round(2e6 / ns_per_unit)) if cuda else None
    if cuda:
        whole_us, empty_kernel_us = spinner.witness_us(amount)
    else:
        whole_us, empty_kernel_us = short.side(0.0).net_us, 0.0
    return _Scale(
        device_name=ready.device_name or ready.device,
        torch=ready.torch,
        step_ns=step_ns if cuda else None,
        ns_per_unit=ns_per_unit,
        overhead_us=max(whole_us - stamped_us, 0.0),
        empty_kernel_us=empty_kernel_us,
        outside_us=outside_us,
    )


def _ns_per_cycle(spun: Spun) -> float:
    return median([ns / cycles for ns, cycles in zip(spun.stamped_ns, spun.stamped_cycles, strict=True)])


def _outside_us(spinner: Spinner, amount: int) -> float | None:
    """Return a spin's time by this process's clock: the slope over two numbers of graph replays' calls."""
    case = spinner.prepare(amount)
    spent: list[float] = []
    counts = (25, 125)
    for calls in counts:
        prepared = spinner.seat.ask(
            p.PrepareRepeats(case_id=case, calls=calls), timeout_s=SPIN_REPEATS_TIMEOUT_S
        )
        if not (isinstance(prepared, Answer) and isinstance(prepared.reply, p.Done)):
            return None
    for calls in counts:
        begun = time.perf_counter_ns()
        ran = spinner.seat.ask(p.RunRepeats(case_id=case, calls=calls), timeout_s=SPIN_REPEATS_TIMEOUT_S)
        if not (isinstance(ran, Answer) and isinstance(ran.reply, p.Done)):
            return None
        spent.append((time.perf_counter_ns() - begun) / 1e3)
    spinner.seat.drop_timing(case, timeout_s=DROP_TIMING_TIMEOUT_S)
    return (spent[1] - spent[0]) / (counts[1] - counts[0])


def _process(rig: _Rig, spinner: Spinner, scale: _Scale, number: int) -> _Taken:
    plain: dict[float, Spun] = {}
    longer: dict[float, Spun] = {}
    for nominal_us in LENGTHS_US:
        iterations = LONG_ITERATIONS if nominal_us >= LONG_US else ITERATIONS
        if nominal_us not in RATIO_LENGTHS_US:
            plain[nominal_us] = spinner.spin(scale.amount(nominal_us), iterations)
            continue
        batches = next(number for least_us, number in BATCHES_IN_TURN if nominal_us >= least_us)
        amounts = (scale.amount(nominal_us), scale.amount(LONGER * nominal_us))
        plain[nominal_us], longer[nominal_us] = spinner.spin_in_turn(
            amounts, iterations, batches, SETTLING_ROUNDS
        )
    kernels = _wide_kernels(scale) if rig.device == "cuda" else ()
    timed_wide = spinner.time_wide(kernels, ITERATIONS, WIDE_BATCHES)
    # CUPTI comes after the last sample: once attached it stays, and may slow what is launched.
    witnesses: dict[float, tuple[float, float]] = {}
    if rig.device == "cuda":
        witnesses = {nominal_us: spinner.witness_us(scale.amount(nominal_us)) for nominal_us in plain}
    watched = [spinner.witness_wide(kernel) for kernel in kernels]
    empty_us = median([empty for _, empty in witnesses.values()]) if witnesses else 0.0
    sides = {nominal_us: spun.side(empty_us) for nominal_us, spun in plain.items()}
    readings = [
        SpinReading(
            process=number,
            nominal_us=nominal_us,
            true_us=scale.true_us(spun),
            p50_us=sides[nominal_us].p50_us,
            floor_us=sides[nominal_us].floor_us,
            net_us=sides[nominal_us].net_us,
            witness_us=witnesses[nominal_us][0] if nominal_us in witnesses else None,
            launch_exposed=spun.exposed,
        )
        for nominal_us, spun in plain.items()
    ]
    ratios = [
        SpinRatio(
            process=number,
            nominal_us=nominal_us,
            true_ratio=scale.true_us(spun) / scale.true_us(plain[nominal_us]),
            read_ratio=_read_ratio(plain[nominal_us], spun, empty_us),
        )
        for nominal_us, spun in longer.items()
    ]
    wide = [
        WideReading(
            process=number,
            work=kernel.work,
            blocks=kernel.blocks,
            stamped_us=_mean_us(spun.stamped_ns),
            net_us=spun.side(empty_us).net_us,
            witness_us=witnessed.kernel_us,
            witness_stamped_us=_mean_us(witnessed.stamped_ns),
        )
        for kernel, spun, witnessed in zip(kernels, timed_wide, watched, strict=True)
    ]
    return _Taken(readings=tuple(readings), ratios=tuple(ratios), wide=tuple(wide))


def _wide_kernels(scale: _Scale) -> tuple[WideKernel, ...]:
    cycles = max(1, round(WIDE_BLOCK_US * 1e3 / scale.ns_per_unit))
    spins = [WideKernel(blocks=blocks, cycles=cycles) for blocks in WIDE_BLOCKS]
    return (*spins, *(WideKernel(blocks=blocks, cycles=None) for blocks in WIDE_BLOCKS))


def _mean_us(stamped_ns: Sequence[int]) -> float:
    # The global timer's step is 32 ns: a median would jump by it.
    return mean([float(one) for one in stamped_ns]) / 1e3


def _read_ratio(plain: Spun, longer: Spun, empty_us: float) -> float:
    # Taken in turn in one process, which has one floor: all of its readings go into both net times.
    floors_us = [*plain.floors_us, *longer.floors_us]
    return longer.side(empty_us, floors_us).net_us / plain.side(empty_us, floors_us).net_us
