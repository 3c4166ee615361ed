"""Whole, consistent attempts for tests, made without a compiler, a worker or a clock."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from mini_kv.artifacts import AttemptWriter
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.records.attempt import Attempt, Axis
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase, Series
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import (
    BenchmarkPlan,
    CandidateManifest,
    Case,
    CaseKind,
    Contract,
    TaskCard,
    Tolerance,
)
from mini_kv.core.records.correctness import Correctness
from mini_kv.core.records.environment import Environment, GpuFacts, environment_key
from mini_kv.core.records.results import Status
from mini_kv.core.rules.statistics import summarize
from mini_kv.core.rules.suite import suite_hash

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SOURCES = {"binding.cpp": b"// binding\n", "kernels/add.cu": "// kernel, \u00b5s\n".encode()}
CASE_IDS = ("large", "small")


def card(task_id: str = "vector_add", **changes: Any) -> TaskCard:
    made = TaskCard(
        schema_version="1.0.0",
        task_id=task_id,
        operator=task_id,
        operator_version="1.0.0",
        reference="mini_kv.references.vector_add:reference",
        input_factory="mini_kv.references.vector_add:inputs",
        candidate="candidates/vector_add/v0_naive",
        device="auto",
        cases=tuple(Case(id=name, kind=CaseKind.BENCHMARK, params={"n": 4}) for name in CASE_IDS),
        tolerances={"float32": Tolerance(rtol=1e-6, atol=1e-6)},
        contract=Contract(),
        benchmark=BenchmarkPlan(case_ids=CASE_IDS, primary_case_id="large"),
    )
    return msgspec.structs.replace(made, **changes)


def manifest(candidate_id: str = "v0_naive") -> CandidateManifest:
    return CandidateManifest(
        schema_version="1.0.0",
        candidate_id=candidate_id,
        operator="vector_add",
        version="1.0.0",
        dispatcher=f"mini_kv_{candidate_id}::vector_add",
        schema="vector_add(Tensor a, Tensor b) -> Tensor",
        sources=tuple(sorted(SOURCES)),
        backends=("cpu",),
        autograd=False,
        kernel_name_regex="add",
        dtypes=("float32",),
    )


def keyed(environment: Environment) -> Environment:
    """Return the environment with the key that follows from its fields."""
    return msgspec.structs.replace(environment, key=environment_key(environment))


def environment(device: str = "cpu", machine: str = "Example CPU") -> Environment:
    gpu = GpuFacts(index=0, name=machine, uuid=None, compute_capability="9.0", total_memory_bytes=1 << 37)
    made = Environment(
        schema_version="1.0.0",
        key="0" * 64,
        device=device,  # type: ignore[arg-type]
        os="Linux",
        kernel="6.1",
        machine="x86_64",
        cpu_model=machine,
        cpu_count=2,
        memory_bytes=1 << 33,
        python="3.11.7",
        mini_kv="0.1.0",
        torch="2.11.0",
        torch_cuda=None,
        driver=None,
        gpus=(gpu,) if device == "cuda" else (),
        tools=(),
        timer_plan="perf_counter_ns",
        isolation="none",
    )
    return keyed(made)


def series(p50_us: float, wobble: float = 0.002, repeats: int = 5, iterations: int = 20) -> Series:
    samples = tuple(
        tuple(p50_us * (1.0 + wobble * ((7 * i + 3 * r) % 11 - 5) / 5.0) for i in range(iterations))
        for r in range(repeats)
    )
    return summarize(samples, calls_per_sample=1, launch_exposed=0, floor_us=0.1, tick_us=0.001)


def benchmark_case(case_id: str, candidate: Series, reference: Series, **changes: Any) -> BenchmarkCase:
    case = BenchmarkCase(
        case_id=case_id,
        status=Status.PASS,
        stable=True,
        findings=(),
        params={"n": 4},
        candidate=candidate,
        reference=reference,
        speedup=reference.p50_us / candidate.p50_us,
        bytes_moved=48,
        flops=4,
        gb_per_s=1.0,
        gflop_per_s=1.0,
        percent_of_copy_bandwidth=None,
        floor_bound_us=None,
        candidate_kernel=None,
        reference_kernel=None,
        kernel_speedup=None,
        outside_us=None,
        timing_trust="verified",
        checked_outputs=3,
        tries=1,
        batch_order=("candidate", "reference"),
    )
    return msgspec.structs.replace(case, **changes)


def benchmark(*cases: BenchmarkCase, device: str = "cpu", **changes: Any) -> Benchmark:
    made = Benchmark(
        schema_version="1.0.0",
        status=Status.PASS,
        device=device,  # type: ignore[arg-type]
        timer="perf_counter_ns",
        cache="hot",
        stable=True,
        cases=cases or tuple(benchmark_case(name, series(10.0), series(20.0)) for name in CASE_IDS),
        primary_case_id="large",
        geomean_speedup=2.0,
        copy_gb_per_s=None,
        peak_gb_per_s=None,
        l2_bytes=None,
        telemetry=(),
        elapsed_s=1.0,
    )
    return msgspec.structs.replace(made, **changes)


@functools.cache
def timed_at(speedup: float, **changes: Any) -> Benchmark:
    """Return a benchmark whose every case is ``speedup`` times as fast as the reference, 10 us each."""
    cases = tuple(benchmark_case(name, series(10.0), series(10.0 * speedup)) for name in CASE_IDS)
    return benchmark(*cases, geomean_speedup=speedup, **changes)


def build() -> Build:
    return Build(
        schema_version="1.0.0",
        status=Status.PASS,
        code=None,
        message=None,
        key=sha256_bytes(b"build"),
        cached=False,
        elapsed_s=1.0,
        device="cpu",
        library="v0_naive.so",
        library_sha256=sha256_bytes(b"library"),
        library_bytes=7,
        torch="2.11.0",
        cxx="g++",
        cuda_compiler=None,
        arch_list=(),
        units=(),
        source_sha256={},
    )


def correctness(status: Status = Status.PASS) -> Correctness:
    return Correctness(
        schema_version="1.0.0",
        status=status,
        device="cpu",
        planned_cases=0,
        passed_cases=0,
        cases=(),
        contract=(),
        workers_started=1,
        workers_lost=0,
        elapsed_s=1.0,
    )


def attempt(writer: AttemptWriter, task: TaskCard, machine: Environment, **changes: Any) -> Attempt:
    axes = ("build", "numerics", "contract", "memory", "timing")
    made = Attempt(
        schema_version="1.0.0",
        attempt_id=writer.attempt_id,
        task_id=task.task_id,
        operator=task.operator,
        operator_version=task.operator_version,
        candidate_id="v0_naive",
        candidate_version="1.0.0",
        candidate_folder=task.candidate,
        device=machine.device,
        suite_sha256=suite_hash(task),
        environment_key=machine.key,
        build_key=sha256_bytes(b"build"),
        reference_sha256=sha256_bytes(b"reference"),
        started_at=writer.started_at,
        elapsed_s=2.5,
        stage_elapsed_s={"compile": 1.0},
        complete=True,
        accepted=True,
        exit_code=0,
        axes=tuple(Axis(name=name, status=Status.PASS, code=None, message=None) for name in axes),
        findings=(),
        secret_seeds={"fresh": "00" * 8},
        benchmark_stable=True,
        geomean_speedup=2.0,
        primary_p50_us=10.0,
        files=(),
    )
    return msgspec.structs.replace(made, **changes)


def ticking_clock(start: datetime = START) -> Callable[[], datetime]:
    ticks = iter(range(1_000_000))
    return lambda: start + timedelta(seconds=next(ticks))


def counting_bytes(start: int = 0) -> Callable[[int], bytes]:
    numbers = iter(range(start, 1 << 31))
    return lambda count: next(numbers).to_bytes(count, "big")


def write_attempt(
    root: Path,
    *,
    task: TaskCard | None = None,
    machine: Environment | None = None,
    timed: Benchmark | None = None,
    clock: Callable[[], datetime] | None = None,
    random_bytes: Callable[[int], bytes] | None = None,
    files: dict[str, bytes] | None = None,
    **changes: Any,
) -> tuple[Attempt, AttemptWriter]:
    """Write one whole attempt (accepted, on a CPU, two cases) with ``changes`` to its record."""
    task, machine = task or card(), machine or environment()
    clock, random_bytes = clock or ticking_clock(), random_bytes or counting_bytes()
    speedup, stable = changes.get("geomean_speedup") or 2.0, changes.get("benchmark_stable") is not False
    timed = timed or timed_at(speedup, device=machine.device, stable=stable)
    changes = {"benchmark_stable": timed.stable, "geomean_speedup": timed.geomean_speedup} | changes
    with AttemptWriter(root, task.task_id, clock=clock, random_bytes=random_bytes) as writer:
        writer.add_json("task_card.json", task)
        candidate_id = changes.get("candidate_id", "v0_naive")
        writer.add_json(
            "candidate_manifest.json",
            msgspec.structs.replace(manifest(candidate_id), operator=task.operator),
        )
        writer.add_json("compile.json", build())
        writer.add_json("correctness.json", correctness())
        writer.add_json("environment.json", machine)
        writer.add_json("benchmark.json", timed)
        writer.add_tree(SOURCES if files is None else files)
        return writer.finish(attempt(writer, task, machine, **changes)), writer
