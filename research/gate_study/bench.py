"""The study's processes: the library under study, its workers, and what is asked of one."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from mini_kv import compiler, task_card
from mini_kv.benchmark.samples import ROTATING_SETS, TimedSubject
from mini_kv.benchmark.witnesses import outside_slope_us
from mini_kv.core import protocol as p
from mini_kv.core.records.benchmark import KernelWitness
from mini_kv.core.records.card import Case, CaseKind, DeviceKind
from mini_kv.core.tensors import Argument, ScalarArg, TensorSpec
from mini_kv.system.gpu import read_gpus
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.scratch import scratch_folder
from mini_kv.system.seats import CandidateSeat
from mini_kv.system.toolchain import find_toolchain
from mini_kv.system.workers import Answer, Nursery
from research.gate_study.records import CPU_KERNELS, KERNELS, Cell, Kernel, chosen_kernels

_R = TypeVar("_R", p.Done, p.Timed, p.KernelsWitnessed)

TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The library under study and where its workers live."""

    device: DeviceKind
    kernels: dict[str, Kernel]
    chosen: tuple[str, ...]
    load: p.LoadCandidate
    nursery: Nursery

    @property
    def studied(self) -> dict[str, Kernel]:
        """The kernels that every process measures; the negative controls take theirs from all."""
        return {name: self.kernels[name] for name in self.chosen}

    @property
    def cache(self) -> Literal["cold", "hot"]:
        """Cold on a GPU, as the product's cards ask for; the CPU's timer knows no cold mode."""
        return "cold" if self.device == "cuda" else "hot"


@contextmanager
def open_bench(root: Path, device: DeviceKind, names: Sequence[str] = ()) -> Iterator[Bench]:
    """Build the study's operator and make a nursery for its processes; without ``names`` all kernels."""
    kernels = KERNELS if device == "cuda" else CPU_KERNELS
    chosen = chosen_kernels(names, kernels)
    adopt_orphans()
    manifest = task_card.load_manifest(root / "research/gate_study/candidate", root)
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
    with scratch_folder("study-") as scratch:
        nursery = Nursery(scratch, (str(root / "src"), *(entry for entry in sys.path if entry)))
        try:
            yield Bench(device=device, kernels=kernels, chosen=chosen, load=load, nursery=nursery)
        finally:
            nursery.close()


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
        self,
        name: str,
        kernel: Kernel,
        spin_cycles: int,
        host_us: int = 0,
        misdeed: int = 0,
        place: int = 0,
    ) -> None:
        """Make a case ready; its operands rotate as a benchmark's do, and lie elsewhere for every place."""
        device = "cuda:0" if self._bench.device == "cuda" else "cpu"
        spin = kernel.spin_cycles + spin_cycles
        scalars = (kernel.kib, kernel.passes, spin, host_us, misdeed)
        sets = argument_sets(scalars, place, device)
        self._ask(p.PrepareTiming(case_id=name, argument_sets=sets), p.Done, [bytearray() for _ in sets])

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

    def outside_us(self, name: str, claim_us: float) -> float | None:
        """Return what a call takes by this process's clock, as the benchmark stage bounds a claim."""
        subject = TimedSubject(
            card=cast(Any, None),  # the slope needs a seat and its limits only
            device=self._bench.device,
            oracle=cast(Any, None),
            seat=self.seat,
            secret_seeds={},
            gpu=None,
            timeout_s=TIMEOUT_S,
            chooser=random.Random(0),
        )
        case = Case(id=name, kind=CaseKind.BENCHMARK, params={})
        return outside_slope_us(subject, case, claim_us, claim_us)

    def drop(self, name: str) -> None:
        """Free a case."""
        self._ask(p.DropTiming(case_id=name), p.Done)

    def _ask(self, message: p.Request, kind: type[_R], payloads: Sequence[bytearray] = ()) -> _R:
        outcome = self.seat.ask(message, payloads, timeout_s=TIMEOUT_S)
        if isinstance(outcome, Answer) and isinstance(outcome.reply, kind):
            return outcome.reply
        raise RuntimeError(f"{type(message).__name__} brought {outcome}")


def argument_sets(scalars: Sequence[int], place: int, device: str) -> tuple[tuple[Argument, ...], ...]:
    """Return a case's sets: alike but for the slots, whose numbers name a place's operands.

    The tensors hold no bytes and say only where the operands are to lie. A cold batch copies sets until they
    fill the L2 twice, and of these nothing is copied.
    """
    sets: list[tuple[Argument, ...]] = []
    for turn in range(ROTATING_SETS):
        like = TensorSpec(
            shape=(0,),
            strides=(1,),
            storage_offset=0,
            dtype="float32",
            device=device,
            storage_bytes=0,
            blob=turn,
        )
        slot = place * ROTATING_SETS + turn
        sets.append((like, *(ScalarArg(value=value) for value in (*scalars, slot))))
    return tuple(sets)


def open_all(subjects: Sequence[Subject]) -> list[str | None]:
    """Open processes concurrently, since each takes the driver its time; return what went wrong with each."""

    def opened(subject: Subject) -> str | None:
        try:
            subject.open()
        except RuntimeError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(max_workers=max(len(subjects), 1)) as threads:
        return list(threads.map(opened, subjects))


def close(subjects: Sequence[Subject]) -> None:
    """End processes; all are killed before the first is waited for."""
    for subject in subjects:
        subject.seat.abandon()
    for subject in subjects:
        subject.seat.close()


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
