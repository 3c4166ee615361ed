"""What the study measures and keeps: raw times by process, kernel and injected slowdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from mini_kv.core.record import Record

LEVELS = (0, 2, 3, 5, 8, 10)
"""Injected slowdowns, percent of the kernel's own device time."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel of the study: operands of ``kib`` KiB, passes over them, a spin for its bulk.

    Every cell is timed in ``batches`` batches. The memory kernel of 2 us, whose time depends most on where
    its operands lie, is timed in two; the others in one, since a batch's own preparation (the floor, the
    warm-up, the pilot, the host's time) takes longer than its samples. The spin's length is found in
    ``probe_rounds`` rounds of two batches: the shorter the kernel, the less its smallest slowdown. What is
    added there is ``probe_cycles`` long at least: 2 us at about 2 GHz.
    """

    kib: int
    passes: int
    spin_cycles: int
    iterations: int
    warmup: int = 10
    batches: int = 1
    probe_rounds: int = 3
    probe_cycles: int = 4000


KERNELS = {
    "memory_2us": Kernel(kib=1024, passes=1, spin_cycles=0, iterations=100, batches=2, probe_rounds=12),
    "spin_2us": Kernel(kib=4, passes=0, spin_cycles=3000, iterations=60, probe_rounds=12),
    "memory_20us": Kernel(kib=24 << 10, passes=1, spin_cycles=0, iterations=80, probe_rounds=8),
    "memory_200us": Kernel(kib=24 << 10, passes=11, spin_cycles=0, iterations=40),
    # A pass goes over nearly five times what the L2 holds: of operands of 24 MiB a share stays there that
    # depends on their places, and the kernel's time then differs by 3 % from one place to another, as no
    # single pass over memory does. More than 12 samples would add device time and no steadiness.
    "memory_2ms": Kernel(kib=96 << 10, passes=22, spin_cycles=0, iterations=12, warmup=2),
}

# The same names with next to no work, to try the study itself on a machine without a GPU. The probe is longer
# than what a busy machine adds to a batch: with 2 us some runs there found that a spin shortens a call.
CPU_KERNELS = {
    "memory_2us": Kernel(
        kib=1, passes=1, spin_cycles=0, iterations=10, warmup=2, batches=2, probe_cycles=200_000
    ),
    "memory_20us": Kernel(kib=4, passes=4, spin_cycles=0, iterations=10, warmup=2, probe_cycles=200_000),
}


class Cell(Record, frozen=True, kw_only=True):
    """One kernel at one level in one process: batches of samples, nanoseconds a call.

    Each batch rotates three pairs of operands that no other batch of its kernel uses in the process.
    """

    samples_ns: tuple[tuple[int, ...], ...]
    floors_ns: tuple[int, ...]
    exposed: int = 0
    tick_ns: float = 32.0
    calls_per_sample: int = 1


class Process(Record, frozen=True, kw_only=True):
    """One fresh process: ``cells`` by ``kernel@level``. ``wave`` numbers the processes started together.

    ``outside_us`` is a call of ``bounded`` (a kernel as it is) by the judge's own clock, as the benchmark
    takes it; ``None`` where the calls could not be repeated. ``strangers`` names other users of the GPU.
    """

    wave: int
    started_s: float
    cells: dict[str, Cell]
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    bounded: str | None = None
    outside_us: float | None = None
    strangers: tuple[str, ...] = ()
    throttled: tuple[str, ...] = ()


class Control(Record, frozen=True, kw_only=True):
    """One negative control: something is wrong, and the product must say so."""

    name: str
    kernel: str
    cell: Cell
    reference: Cell
    kernel_us: float | None
    marker_us: float | None
    strangers: int
    lost: str | None = None
    stranger_names: tuple[str, ...] = ()


class Pilot(Record, frozen=True, kw_only=True):
    """What the study knew before it began, by kernel: device time, and the spin of every level."""

    empty_kernel_us: float
    net_us: dict[str, float]
    kernel_us: dict[str, float]
    spin_cycles: dict[str, dict[str, int]]


class Raw(Record, frozen=True, kw_only=True):
    """``gate_study_raw.json``: everything that was measured."""

    schema_version: str
    device: str
    device_name: str
    torch: str
    levels: tuple[int, ...]
    pilot: Pilot
    processes: tuple[Process, ...]
    controls: tuple[Control, ...]
    elapsed_s: float
    lost: tuple[str, ...] = ()
    """Processes, or the controls, that gave nothing: what became of them."""


class StudyError(Exception):
    """What was asked for cannot be done: one sentence."""


def chosen_kernels(names: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the kernels named, in the study's own order, or all; raises :class:`StudyError`."""
    every = tuple(known)
    unknown = [name for name in names if name not in every]
    if unknown:
        listed = ", ".join(f"'{name}'" for name in unknown)
        raise StudyError(f"no kernel of the study: {listed}; there are {', '.join(every)}")
    return tuple(name for name in every if not names or name in names)


def cell_name(kernel: str, level: int) -> str:
    """Return the key of a cell."""
    return f"{kernel}@{level}"


def load_raw(raw: bytes) -> Raw:
    """Decode ``gate_study_raw.json``; raises ``msgspec.ValidationError``."""
    return msgspec.json.decode(raw, type=Raw)
