"""Measures the study's processes through the product's own workers, one at a time on the device.

Processes start in waves and import together; while one is measured, nothing else of the study runs.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from mini_kv import compiler, task_card
from mini_kv.core import protocol as p
from mini_kv.core.card import DeviceKind
from mini_kv.core.results import KernelWitness, Telemetry
from mini_kv.core.statistics import median, tick_median
from mini_kv.core.tensors import Argument, ScalarArg, TensorSpec
from mini_kv.system.crew import CandidateSeat
from mini_kv.system.gpu import open_nvml, read_gpus
from mini_kv.system.processes import adopt_orphans, descendants
from mini_kv.system.toolchain import find_toolchain
from mini_kv.system.workers import Answer, Nursery
from study.records import (
    CPU_KERNELS,
    KERNELS,
    LEVELS,
    Cell,
    Control,
    Kernel,
    Pilot,
    Process,
    Raw,
    cell_name,
)

_R = TypeVar("_R", p.Done, p.Timed, p.KernelsWitnessed)

SCHEMA_VERSION = "1.0.0"
PILOT_BATCHES = 4
PROBE_CYCLES = 4000
TIMEOUT_S = 120.0
HOST_SLEEP_US = 400
MISDEEDS = {"none": 0, "synchronize": 1, "side_stream": 2}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The library under study and where its workers live."""

    device: DeviceKind
    kernels: dict[str, Kernel]
    load: p.LoadCandidate
    nursery: Nursery

    @property
    def cache(self) -> Literal["cold", "hot"]:
        """Cold on a GPU, as the product's cards ask for; the CPU's timer knows no cold mode."""
        return "cold" if self.device == "cuda" else "hot"


@contextmanager
def open_bench(root: Path, device: DeviceKind) -> Iterator[Bench]:
    """Build the study's operator and make a nursery for its processes."""
    adopt_orphans()
    manifest = task_card.load_manifest(root / "scripts/study/candidate", root)
    gpus = read_gpus(os.environ).gpus
    built = compiler.build(
        compiler.BuildRequest(
            project_root=str(root),
            candidate_folder=manifest.folder,
            manifest=manifest.manifest,
            device=device,
            arch_list=(gpus[0].compute_capability,) if device == "cuda" else (),
            timeout_s=300.0,
        ),
        find_toolchain(root / ".build", os.environ),
    )
    if built.library is None or built.library_sha256 is None:
        raise SystemExit(f"the study's operator does not build: {built.code} {built.first_error}")
    load = p.LoadCandidate(
        library=str(root / built.library),
        library_sha256=built.library_sha256,
        python=None,
        dispatcher=manifest.manifest.dispatcher,
        schema=manifest.manifest.schema,
    )
    scratch = Path(tempfile.mkdtemp(prefix="mini-kv-study-"))
    nursery = Nursery(scratch, (str(root / "src"), *(entry for entry in sys.path if entry)))
    try:
        kernels = KERNELS if device == "cuda" else CPU_KERNELS
        yield Bench(device=device, kernels=kernels, load=load, nursery=nursery)
    finally:
        nursery.close()
        shutil.rmtree(scratch, ignore_errors=True)


class Subject:
    """One fresh process of the study."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.seat = CandidateSeat(bench.nursery, p.Hello(device=bench.device, threads=1))
        self.ready: p.Ready | None = None

    def open(self) -> p.Ready:
        """Wait for the import and open the library; raises ``RuntimeError``."""
        ready = self.seat.greet()
        loaded = self.seat.load(self._bench.load)
        if not isinstance(ready, p.Ready) or not isinstance(loaded, p.CandidateLoaded):
            raise RuntimeError(f"a process of the study did not start: {ready} {loaded}")
        self.ready = ready
        return ready

    def prepare(
        self, name: str, kernel: Kernel, spin_cycles: int, host_us: int = 0, misdeed: int = 0
    ) -> None:
        """Make a case ready."""
        device = "cuda:0" if self._bench.device == "cuda" else "cpu"
        like = TensorSpec(
            shape=(1,),
            strides=(1,),
            storage_offset=0,
            dtype="float32",
            device=device,
            storage_bytes=4,
            blob=0,
        )
        scalars = (kernel.kib, kernel.passes, kernel.spin_cycles + spin_cycles, host_us, misdeed)
        arguments: tuple[Argument, ...] = (like, *(ScalarArg(value=value) for value in scalars))
        self._ask(p.PrepareTiming(case_id=name, argument_sets=(arguments,)), p.Done, [bytearray(4)])

    def batch(self, name: str, kernel: Kernel, iterations: int | None = None, calls: int = 0) -> p.Timed:
        """Take one batch."""
        request = p.TimeBatch(
            case_id=name,
            warmup=kernel.warmup,
            iterations=iterations or kernel.iterations,
            calls_per_sample=calls,
            cache=self._bench.cache,
        )
        return self._ask(request, p.Timed)

    def witness(self, name: str) -> KernelWitness:
        """Return CUPTI's word; to be asked last, since it stays attached."""
        request = p.WitnessKernels(case_id=name, calls=30, cache=self._bench.cache)
        return self._ask(request, p.KernelsWitnessed).witness

    def drop(self, name: str) -> None:
        """Free a case."""
        self._ask(p.DropTiming(case_id=name), p.Done)

    def _ask(self, message: p.Request, kind: type[_R], payloads: Sequence[bytearray] = ()) -> _R:
        outcome = self.seat.ask(message, payloads, timeout_s=TIMEOUT_S)
        if isinstance(outcome, Answer) and isinstance(outcome.reply, kind):
            return outcome.reply
        raise RuntimeError(f"{type(message).__name__} brought {outcome}")


def close(subjects: Sequence[Subject]) -> None:
    """End processes."""
    for subject in subjects:
        subject.seat.close()


# --------------------------------------------------------------------------- cells


def ns(values_us: Sequence[float]) -> tuple[int, ...]:
    """Return microseconds as whole nanoseconds."""
    return tuple(round(value * 1e3) for value in values_us)


def as_cell(batches: Sequence[p.Timed]) -> Cell:
    """Return batches of one kernel as they are kept."""
    return Cell(
        samples_ns=tuple(ns(batch.samples_us) for batch in batches),
        floors_ns=ns([batch.floor_us for batch in batches]),
        exposed=sum(len(batch.launch_exposed) for batch in batches),
        tick_ns=min(batch.tick_us for batch in batches) * 1e3 or 1.0,
        calls_per_sample=batches[0].calls_per_sample,
    )


def net_us(batches: Sequence[p.Timed]) -> float:
    """Return the net time of batches, microseconds, the empty kernel's own time not yet added."""
    samples = [sample for batch in batches for sample in batch.samples_us]
    tick_us = min(batch.tick_us for batch in batches)
    return tick_median(samples, tick_us) - median([batch.floor_us for batch in batches])


def measure(
    subject: Subject, kernels: dict[str, Kernel], pilot: Pilot, levels: Sequence[int], seed: int
) -> dict[str, Cell]:
    """Measure every cell in one process: in an order of its own, then in that order reversed."""
    order = [(name, level) for name in kernels for level in levels]
    random.Random(seed).shuffle(order)
    taken: dict[tuple[str, int], list[p.Timed]] = {cell: [] for cell in order}
    for batch in range(max(kernel.batches for kernel in kernels.values())):
        for name, level in order if batch % 2 == 0 else reversed(order):
            if batch >= kernels[name].batches:
                continue
            earlier = taken[(name, level)]
            calls = earlier[0].calls_per_sample if earlier else 0
            case = cell_name(name, level)
            subject.prepare(case, kernels[name], pilot.spin_cycles[name][str(level)])
            earlier.append(subject.batch(case, kernels[name], calls=calls))
            subject.drop(case)
    return {cell_name(*cell): as_cell(batches) for cell, batches in taken.items()}


# --------------------------------------------------------------------------- pilot


def take_pilot(
    bench: Bench, subject: Subject, heard: Subject, levels: Sequence[int]
) -> tuple[Pilot, p.Ready]:
    """Find the spins that make every kernel slower by the levels: computed once, corrected once.

    CUPTI stays attached to a process, so it is heard in one of its own (``heard``).
    """
    ready = subject.open()
    base: dict[str, float] = {}
    spins: dict[str, dict[str, int]] = {}
    probes: dict[str, float] = {}
    for name, kernel in bench.kernels.items():
        base[name] = _time(subject, name, kernel, 0)
        probes[name] = (_time(subject, name, kernel, PROBE_CYCLES) - base[name]) / PROBE_CYCLES
    heard.open()
    kernel_us, marker_us = _witness(bench, heard)
    for name, kernel in bench.kernels.items():
        whole_us = base[name] + marker_us
        wanted = {level: whole_us * level / 100.0 for level in levels}
        first = {level: _cycles(added, probes[name]) for level, added in wanted.items()}
        spins[name] = {"0": 0} | {
            str(level): _corrected(subject, name, kernel, first[level], wanted[level], base[name])
            for level in levels
            if level
        }
    net = {name: base[name] + marker_us for name in base}
    return Pilot(empty_kernel_us=marker_us, net_us=net, kernel_us=kernel_us, spin_cycles=spins), ready


def _time(subject: Subject, name: str, kernel: Kernel, spin: int) -> float:
    subject.prepare(name, kernel, spin)
    batches: list[p.Timed] = []
    for _ in range(PILOT_BATCHES):
        batches.append(subject.batch(name, kernel, calls=batches[0].calls_per_sample if batches else 0))
    subject.drop(name)
    return net_us(batches)


def _cycles(added_us: float, us_per_cycle: float) -> int:
    return max(1, round(added_us / us_per_cycle)) if added_us > 0.0 and us_per_cycle > 0.0 else 0


def _corrected(
    subject: Subject, name: str, kernel: Kernel, spin: int, wanted_us: float, base_us: float
) -> int:
    # The base is measured again beside it: a process drifts more than the smallest slowdowns.
    added = _time(subject, name, kernel, spin) - 0.5 * (base_us + _time(subject, name, kernel, 0))
    slope = max(added, 0.25 * wanted_us) / spin if spin else 1.0
    return max(1, min(4 * spin, round(wanted_us / slope)))


def _witness(bench: Bench, subject: Subject) -> tuple[dict[str, float], float]:
    if bench.device != "cuda":
        return dict.fromkeys(bench.kernels, 0.0), 0.0
    seen: dict[str, KernelWitness] = {}
    for name, kernel in bench.kernels.items():
        subject.prepare(name, kernel, 0)
        seen[name] = subject.witness(name)
    markers = [witness.marker_us for witness in seen.values()]
    return {name: witness.kernel_us for name, witness in seen.items()}, median(markers)


# --------------------------------------------------------------------------- negative controls


SOLITARY_CONTROLS = (
    ("clean", 0, "none"),
    ("host_sleep", HOST_SLEEP_US, "none"),
    ("synchronize", 0, "synchronize"),
    ("side_stream", 0, "side_stream"),
)
CROWDED_CONTROLS = ("memory_2us", "memory_20us")


def control_processes(device: DeviceKind) -> int:
    """Return how many processes the controls take."""
    return len(SOLITARY_CONTROLS) + (len(CROWDED_CONTROLS) + 1 if device == "cuda" else 0)


def take_controls(
    bench: Bench, subjects: Sequence[Subject], telemetry: Callable[[], Telemetry | None]
) -> list[Control]:
    """Do what must not be done to a measurement, and keep what the product would judge by."""
    for subject in subjects:
        subject.open()
    fresh = iter(subjects)
    taken = [
        _control(bench, next(fresh), control, "memory_20us", host_us, MISDEEDS[misdeed], telemetry)
        for control, host_us, misdeed in SOLITARY_CONTROLS
    ]
    if bench.device == "cuda":
        with _neighbour(bench, next(fresh)):
            taken += [
                _control(bench, next(fresh), "neighbour", kernel, 0, 0, telemetry)
                for kernel in CROWDED_CONTROLS
            ]
    return taken


def _control(
    bench: Bench,
    subject: Subject,
    control: str,
    name: str,
    host_us: int,
    misdeed: int,
    telemetry: Callable[[], Telemetry | None],
) -> Control:
    kernel = bench.kernels[name]
    subject.prepare("misdeed", kernel, 0, host_us, misdeed)
    subject.prepare("reference", kernel, 0)
    sides: dict[str, list[p.Timed]] = {"misdeed": [], "reference": []}
    for _ in range(5):
        for side, batches in sides.items():
            calls = batches[0].calls_per_sample if batches else 0
            batches.append(subject.batch(side, kernel, 2 * kernel.iterations, calls))
    reading = telemetry()
    own = set(descendants(os.getpid()))
    witness = subject.witness("misdeed") if bench.device == "cuda" else None
    return Control(
        name=control,
        kernel=name,
        cell=as_cell(sides["misdeed"]),
        reference=as_cell(sides["reference"]),
        kernel_us=witness.kernel_us if witness else None,
        marker_us=witness.marker_us if witness else None,
        strangers=len(set(reading.process_ids) - own) if reading else 0,
    )


@contextmanager
def _neighbour(bench: Bench, subject: Subject) -> Iterator[None]:
    """Keep the device busy from another process meanwhile."""
    subject.prepare("busy", bench.kernels["memory_2ms"], 0)
    over = threading.Event()

    def work() -> None:
        subject.seat.ask(p.PrepareRepeats(case_id="busy", calls=50), timeout_s=TIMEOUT_S)
        while not over.is_set():
            subject.seat.ask(p.RunRepeats(case_id="busy", calls=50), timeout_s=TIMEOUT_S)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)


# --------------------------------------------------------------------------- the whole


def run(
    bench: Bench, processes: int, wave_size: int, budget_s: float, say: Callable[[str], None]
) -> Iterator[Raw]:
    """Yield what was measured, more of it after every wave; end when the budget is spent."""
    started = time.monotonic()
    levels = LEVELS if bench.device == "cuda" else (0, 5)
    early = [Subject(bench) for _ in range(2 + control_processes(bench.device))]
    pilot, ready = take_pilot(bench, early[0], early[1], levels)
    say(f"pilot {time.monotonic() - started:.1f} s: net {pilot.net_us} spins {pilot.spin_cycles}")
    done: list[Process] = []
    with open_nvml(os.environ) as nvml:

        def telemetry() -> Telemetry | None:
            return nvml.telemetry(0) if nvml is not None and bench.device == "cuda" else None

        controls = take_controls(bench, early[2:], telemetry)
        close(early)
        say(f"controls {time.monotonic() - started:.1f} s")
        wave = 0
        while len(done) < processes and time.monotonic() - started < budget_s:
            subjects = [Subject(bench) for _ in range(min(wave_size, processes - len(done)))]
            for subject in subjects:
                subject.open()
            for subject in subjects:
                if time.monotonic() - started < budget_s:
                    begun = time.monotonic() - started
                    cells = measure(subject, bench.kernels, pilot, levels, seed=len(done))
                    done.append(_process(wave, begun, cells, telemetry()))
            # Together and only now: tearing down one's CUDA context would disturb the next one's times.
            close(subjects)
            wave += 1
            elapsed = time.monotonic() - started
            say(f"wave {wave}: {len(done)} processes, {elapsed:.1f} s")
            yield Raw(
                schema_version=SCHEMA_VERSION,
                device=bench.device,
                device_name=ready.device_name or ready.device,
                torch=ready.torch,
                levels=tuple(levels),
                pilot=pilot,
                processes=tuple(done),
                controls=tuple(controls),
                elapsed_s=round(elapsed, 2),
            )


def _process(wave: int, begun: float, cells: dict[str, Cell], reading: Telemetry | None) -> Process:
    return Process(
        wave=wave,
        started_s=round(begun, 3),
        cells=cells,
        sm_clock_mhz=reading.sm_clock_mhz if reading else None,
        temperature_c=reading.temperature_c if reading else None,
    )
