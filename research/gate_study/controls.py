"""Negative controls: what must not be done to a measurement, done on purpose."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence

from mini_kv.core import protocol as p
from mini_kv.core.records.benchmark import Telemetry
from mini_kv.core.records.card import DeviceKind
from mini_kv.system.processes import process_name
from research.gate_study.bench import Bench, Subject, as_cell
from research.gate_study.records import Control

HOST_SLEEP_US = 400
MISDEEDS = {"none": 0, "synchronize": 1, "side_stream": 2}
SOLITARY_CONTROLS = (
    ("clean", 0, "none"),
    ("host_sleep", HOST_SLEEP_US, "none"),
    ("synchronize", 0, "synchronize"),
    ("side_stream", 0, "side_stream"),
)
CROWDED_CONTROLS = ("memory_2us", "memory_20us")
# Another program on the GPU: imports, says so, and multiplies matrices from the word on until it is killed.
NEIGHBOUR = """
import sys, torch
print("imported", flush=True)
if not sys.stdin.readline():
    sys.exit()
a = torch.randn(4096, 4096, device="cuda")
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    print("busy", flush=True)
"""


def control_processes(device: DeviceKind) -> int:
    """Return how many processes the controls take."""
    return len(SOLITARY_CONTROLS) + (len(CROWDED_CONTROLS) if device == "cuda" else 0)


def take_controls(
    bench: Bench,
    subjects: Sequence[Subject],
    neighbour: Neighbour | None,
    telemetry: Callable[[], Telemetry | None],
) -> list[Control]:
    """Do what must not be done to a measurement, and keep what the product would judge by.

    The processes are open; the neighbour, on a GPU, has imported what it needs. It is ended here.
    """
    try:
        fresh = iter(subjects)
        taken = [
            _control(bench, next(fresh), control, "memory_20us", host_us, MISDEEDS[misdeed], telemetry)
            for control, host_us, misdeed in SOLITARY_CONTROLS
        ]
        if neighbour is not None:
            neighbour.begin()
            taken += [
                _control(bench, next(fresh), "neighbour", kernel, 0, 0, telemetry, {neighbour.pid})
                for kernel in CROWDED_CONTROLS
            ]
        return taken
    finally:
        if neighbour is not None:
            neighbour.end()


class Neighbour:
    """Another process that keeps the GPU busy with matrix products; imports torch concurrently."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def wait(self) -> None:
        """Return once it has imported what it needs: from then on it is idle."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def begin(self) -> None:
        """Set it to work and return once it does; raises ``RuntimeError`` where it cannot."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        if self._process.stdout.readline().strip() != "busy":
            raise RuntimeError("the neighbour of the negative controls did not start")
        # What it says from now on is nobody's concern, and must not fill the pipe until it waits.
        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


def strangers_among(bench: Bench, reading: Telemetry | None, foreign: frozenset[int]) -> tuple[str, ...]:
    """Name the GPU's users that are not the study's own; ``foreign`` are children that count as others."""
    if reading is None:
        return ()
    own = bench.nursery.own_processes() - foreign
    others = sorted(set(reading.process_ids) - own)
    return tuple(f"{process} ({process_name(process) or 'gone or out of sight'})" for process in others)


def _control(
    bench: Bench,
    subject: Subject,
    control: str,
    name: str,
    host_us: int,
    misdeed: int,
    telemetry: Callable[[], Telemetry | None],
    foreign: Collection[int] = (),
) -> Control:
    kernel = bench.kernels[name]
    subject.prepare("misdeed", kernel, 0, host_us, misdeed)
    subject.prepare("reference", kernel, 0)
    sides: dict[str, list[p.Timed]] = {"misdeed": [], "reference": []}
    for _ in range(5):
        for side, batches in sides.items():
            calls = batches[0].calls_per_sample if batches else 0
            batches.append(subject.batch(side, kernel, 2 * kernel.iterations, calls))
    bench.nursery.own_processes()  # one that ends while the driver is asked was one of ours
    strangers = strangers_among(bench, telemetry(), frozenset(foreign))
    witness = subject.witness("misdeed") if bench.device == "cuda" else None
    return Control(
        name=control,
        kernel=name,
        cell=as_cell(sides["misdeed"]),
        reference=as_cell(sides["reference"]),
        kernel_us=witness.kernel_us if witness else None,
        marker_us=witness.marker_us if witness else None,
        strangers=len(strangers),
        stranger_names=strangers,
    )
