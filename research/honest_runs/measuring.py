"""Times honest candidates in fresh processes through the product's own benchmark, one after the other.

Before its times each process runs the cases of its card, as in a run of the product: what they leave behind
in an allocator has made honest times look forged.

Processes start in waves and import together. Every case of a wave is sampled before CUPTI is attached to any
of its processes, as within a run of the product.
"""

from __future__ import annotations

import dataclasses
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mini_kv import benchmark
from mini_kv.benchmark.case_timing import TimedCase, finish_case, take_case
from mini_kv.benchmark.plan import benchmark_record, hold_device, measure_timer
from mini_kv.benchmark.telemetry import Watch
from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import Case, CaseKind, DeviceKind, TaskCard
from mini_kv.core.records.correctness import ContractCheck
from mini_kv.core.records.isolation import IsolationLevel
from mini_kv.core.records.results import Status
from mini_kv.core.rules.verdict import axes_of
from mini_kv.correctness.cases import run_cases
from mini_kv.correctness.process_changes import check_state
from mini_kv.run import Crew, RunInputs, build_candidate, read_inputs, run_inputs, start_crew
from mini_kv.run.crew import fresh_candidate, load_fault
from mini_kv.run.steps import DeviceState, device_state
from mini_kv.system.host import usable_cpus
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.seats import CandidateSeat
from research.honest_runs.records import SCHEMA_VERSION, HonestRun, HonestRuns

CARDS = ("vector_add", "fused_bias_relu", "rmsnorm")
SHIPPED = {
    "vector_add": ("v0_naive", "v1_vectorized"),
    "fused_bias_relu": ("v0_naive", "v0_classic", "v1_vectorized"),
    "rmsnorm": ("v0_naive", "v1_block_reduce", "v2_vectorized"),
}
TWINS: dict[str, tuple[str, ...]] = {
    "cpu": (
        *("joined_threads", "keeps_a_workspace", "parallel_for", "pool_of_threads", "first_call_is_slow"),
        *("sums_in_double", "sequential_sum", "written_in_python", "large_calls"),
    ),
    "cuda": ("gpu_many_rows", "gpu_last_block", "gpu_joined_stream", "gpu_written_in_python"),
}
CASES = ("tiny", "small", "large")
TIMEOUT_S = 60.0
BUILDS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One honest candidate, built, and the crew of its operator."""

    crew: Crew
    inputs: RunInputs
    build: Build
    timer: p.TimerMeasured
    state: DeviceState


@dataclass(kw_only=True)
class Run:
    """One run under way."""

    number: int
    wave: int
    entry: Entry
    case_id: str
    seat: CandidateSeat
    subject: benchmark.TimedSubject
    elapsed_s: float = 0.0
    timed: TimedCase | None = None
    check: ContractCheck | None = None
    watch: Watch | None = None

    @property
    def timed_case(self) -> Case:
        """The case that is timed."""
        return self.subject.card.case(self.subject.card.benchmark.primary_case_id)


def folders(device: DeviceKind, operator: str) -> tuple[str, ...]:
    """Return the honest candidates of an operator for a device."""
    shipped = tuple(f"candidates/{operator}/{version}" for version in SHIPPED[operator])
    return shipped + (tuple(f"tests/zoo/{name}" for name in TWINS[device]) if operator == "rmsnorm" else ())


@contextmanager
def open_entries(root: Path, device: DeviceKind, say: Callable[[str], None]) -> Iterator[tuple[Entry, ...]]:
    """Build every candidate and start an oracle for each operator."""
    adopt_orphans()
    with ExitStack() as stack:
        crews: list[Crew] = []
        for operator in CARDS:
            inputs = read_inputs(
                task=root / f"research/honest_runs/{operator}.yaml",
                candidate=None,
                device=device,
                artifacts_root=None,
                require_isolation=IsolationLevel.NONE,
            )
            crews.append(stack.enter_context(start_crew(inputs)))
            crews[-1].candidate.close()
            crews[-1].close_contract()
        made = [
            (crew, crew.inputs.with_candidate(root / folder))
            for crew, operator in zip(crews, CARDS, strict=True)
            for folder in folders(device, operator)
        ]
        with ThreadPoolExecutor(max_workers=min(BUILDS_AT_ONCE, usable_cpus())) as pool:
            builds = list(pool.map(lambda one: build_candidate(one[1], silent), made))
        timers: dict[int, p.TimerMeasured] = {}
        states: dict[int, DeviceState] = {}
        for crew in crews:
            crew.load_oracle()
            timers[id(crew)] = measure_timer(crew.timed(TIMEOUT_S))
            states[id(crew)] = stack.enter_context(device_state(crew.inputs, crew.nursery))
        say(f"{len(made)} candidates built")
        yield tuple(
            _entry(crew, one, build, timers[id(crew)], states[id(crew)])
            for (crew, one), build in zip(made, builds, strict=True)
        )


def _entry(crew: Crew, inputs: RunInputs, build: Build, timer: p.TimerMeasured, state: DeviceState) -> Entry:
    if build.status is not Status.PASS:
        raise SystemExit(f"{inputs.manifest.folder} does not build: {build.code} {build.first_error}")
    return Entry(crew=crew, inputs=inputs, build=build, timer=timer, state=state)


def begin(number: int, wave: int, entry: Entry, case_id: str) -> Run:
    """Start the process of one run; its case gets a name of its own: the oracle serves the whole wave."""
    card = entry.inputs.card.card
    name = f"{case_id}_{number}"
    case = msgspec.structs.replace(card.case(case_id), id=name)
    plan = msgspec.structs.replace(card.benchmark, case_ids=(name,), primary_case_id=name)
    core = tuple(
        msgspec.structs.replace(one, id=f"{one.id}_{number}")
        for one in card.cases
        if one.kind is CaseKind.CORE
    )
    own: TaskCard = msgspec.structs.replace(card, cases=(*core, case), benchmark=plan)
    seat = fresh_candidate(entry.crew.nursery, entry.inputs)
    seeds = {one.id: secrets.token_hex(8) for one in own.cases}
    subject = dataclasses.replace(entry.crew.timed(TIMEOUT_S), card=own, seat=seat, secret_seeds=seeds)
    return Run(number=number, wave=wave, entry=entry, case_id=case_id, seat=seat, subject=subject)


def gate(run: Run) -> None:
    """Run the card's cases; raises ``SystemExit`` where one fails, for then the candidate is not honest."""
    subject = dataclasses.replace(
        run.entry.crew.subject(TIMEOUT_S),
        card=run.subject.card,
        manifest=run.entry.inputs.manifest.manifest,
        seat=run.seat,
        secret_seeds=run.subject.secret_seeds,
    )
    for result in run_cases(subject, silent):
        if result.status is not Status.PASS:
            raise SystemExit(f"{run.entry.inputs.manifest.folder}, {result.case_id}: {result.message}")


def sample(run: Run, own_processes: Callable[[], frozenset[int]]) -> None:
    """Take the samples, check outputs and inputs, ask for the process's state."""
    gate(run)
    began = time.monotonic()
    run.watch = Watch(run.entry.state.read, own_processes)
    run.watch.look()
    run.timed = take_case(run.subject, run.timed_case)
    run.watch.look()
    _, run.check = check_state(run.seat, run.subject.card.contract)
    run.elapsed_s = time.monotonic() - began


def finish(run: Run) -> HonestRun:
    """Hear the other witnesses and return what the product makes of the run."""
    assert run.timed is not None and run.check is not None and run.watch is not None
    began = time.monotonic()
    case = run.watch.judge(finish_case(run.subject, run.timed, run.entry.timer))
    record = benchmark_record(run.subject, [case], run.entry.timer, run.watch, 0.0)
    axis = next(
        one
        for one in axes_of(None, None, None, record, regression=None, benchmark_skipped=False)
        if one.name == "timing"
    )
    return HonestRun(
        number=run.number,
        wave=run.wave,
        candidate=run.entry.inputs.manifest.folder,
        case_id=run.case_id,
        status=axis.status.value,
        code=axis.code,
        message=axis.message,
        state=run.check.status.value,
        state_message=run.check.message,
        codes=tuple(finding.code for finding in case.findings),
        messages=tuple(finding.message for finding in case.findings),
        stable=case.stable,
        timing_trust=case.timing_trust,
        p50_us=case.candidate.p50_us if case.candidate else None,
        net_p50_us=case.candidate.net_p50_us if case.candidate else None,
        outside_us=case.outside_us,
        kernel_us=case.candidate_kernel.kernel_us if case.candidate_kernel else None,
        floor_bound_us=case.floor_bound_us,
        checked_outputs=case.checked_outputs,
        tries=case.tries,
        elapsed_s=round(run.elapsed_s + time.monotonic() - began, 3),
    )


def attach(runs: Sequence[Run], pool: ThreadPoolExecutor) -> None:
    """Attach CUPTI to every process of a wave at once: a process's first trace takes most of a second."""

    def first_trace(run: Run) -> None:
        request = p.WitnessKernels(case_id=run.timed_case.id, calls=1, cache="hot")
        run.seat.ask(request, timeout_s=120.0)

    list(pool.map(first_trace, runs))


def measure(
    root: Path,
    device: DeviceKind,
    *,
    runs: int,
    wave_size: int,
    budget_s: float,
    busy: int,
    say: Callable[[str], None],
) -> Iterator[HonestRuns]:
    """Yield what was found so far after every wave; end after ``runs`` runs or when the budget is spent."""
    started = time.monotonic()
    done: list[HonestRun] = []
    pool = ThreadPoolExecutor(max_workers=max(wave_size, 1))
    with open_entries(root, device, say) as entries, pool, _kept_busy(busy):
        crews = {id(entry.crew): entry.crew for entry in entries}

        def own_processes() -> frozenset[int]:
            return frozenset().union(*(crew.nursery.own_processes() for crew in crews.values()))

        lock = run_inputs.device_lock(device, entries[0].inputs.gpus)
        plan = iter(_plan(entries, runs))
        waiting = _start(plan, 0, wave_size)
        wave = 0
        while waiting and time.monotonic() - started < budget_s:
            current = waiting
            ready = list(pool.map(_open, current))
            device_name = next((one.device_name or one.device for one in ready), device)
            with hold_device(lock):
                for run in current:
                    sample(run, own_processes)
                if device == "cuda":
                    attach(current, pool)
                    # They import while the wave is judged; their GPU contexts come later.
                    waiting = _start(plan, wave + 1, wave_size)
                done += [finish(run) for run in current]
            list(pool.map(lambda run: run.seat.close(), current))
            if device != "cuda":
                waiting = _start(plan, wave + 1, wave_size)
            wave += 1
            elapsed_s = time.monotonic() - started
            say(
                f"wave {wave}: {len(done)} runs, {sum(run.accused is not None for run in done)} accused, "
                f"{elapsed_s:.1f} s"
            )
            yield HonestRuns(
                schema_version=SCHEMA_VERSION,
                device=device,
                device_name=device_name,
                torch=ready[0].torch,
                busy=busy,
                cores=usable_cpus(),
                elapsed_s=round(elapsed_s, 2),
                runs=tuple(done),
            )


def _plan(entries: Sequence[Entry], runs: int) -> Iterator[tuple[int, Entry, str]]:
    for number in range(runs):
        # Sizes turn once all candidates had their turn: every candidate meets every size.
        yield number, entries[number % len(entries)], CASES[number // len(entries) % len(CASES)]


def _start(plan: Iterator[tuple[int, Entry, str]], wave: int, wave_size: int) -> list[Run]:
    # The range first: zip would take, and lose, one of the plan's when the range ends.
    chosen = [one for _, one in zip(range(wave_size), plan, strict=False)]
    return [begin(number, wave, entry, case_id) for number, entry, case_id in chosen]


def _open(run: Run) -> p.Ready:
    fault = load_fault(run.seat, run.entry.inputs, run.entry.build)
    if fault is not None or run.seat.ready is None:
        raise SystemExit(f"{run.entry.inputs.manifest.folder} does not load: {fault}")
    return run.seat.ready


@contextmanager
def _kept_busy(count: int) -> Iterator[None]:
    """Keep ``count`` cores busy in the block, as on a machine that others use."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
