"""The blocks of README.md in Markdown: commands and candidates from the code, figures from the evidence."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from mini_kv.cli import verdict_text
from mini_kv.cli.main import COMMANDS
from mini_kv.core.record import Record, from_json
from mini_kv.core.records.attempt import Attempt
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.build import Build
from mini_kv.core.records.correctness import Correctness
from mini_kv.pipeline import Verdict
from research.markdown import table
from research.pages import evidence

# The attempt that is shown is the one that this baseline was promoted from.
SHOWN_BASELINE = "baselines/h200-rmsnorm.json"
SHOWN_COMMAND = "mini-kv verify --task tasks/rmsnorm.yaml --candidate candidates/rmsnorm/v1_block_reduce"
ROWS = (
    ("vector_add", "v0_naive", "bench_1m_f16", "1M float16"),
    ("vector_add", "v1_vectorized", "bench_1m_f16", "1M float16"),
    ("fused_bias_relu", "v0_naive", "bench_1024x4096_f16", "[1024, 4096] float16"),
    ("fused_bias_relu", "v1_vectorized", "bench_1024x4096_f16", "[1024, 4096] float16"),
    ("rmsnorm", "v0_naive", "bench_1024x4096_f16", "[1024, 4096] float16"),
    ("rmsnorm", "v1_block_reduce", "bench_1024x4096_f16", "[1024, 4096] float16"),
    ("rmsnorm", "v2_vectorized", "bench_1024x4096_f16", "[1024, 4096] float16"),
)
TIMED_CANDIDATE = "rmsnorm_v1_block_reduce"

_R = TypeVar("_R", bound=Record)


def blocks(root: Path) -> dict[str, str]:
    """Return every block of the README by name."""
    return {
        "transcript": transcript(root),
        "h200_kernels": kernels_table(root),
        "h200_times": times(root),
        "commands": commands_table(),
        "candidates": candidates_table(root),
    }


def commands_table() -> str:
    """Return the commands with what each does, as the command line says it."""
    rows = [(f"`mini-kv {name}`", text) for name, (_, text) in COMMANDS.items()]
    return table(("command", "what it does"), rows)


def candidates_table(root: Path) -> str:
    """Return the candidates that ship, from their manifests."""
    rows = []
    for path in sorted(root.glob("candidates/*/*/candidate.yaml")):
        manifest = yaml.safe_load(path.read_text("utf-8"))
        folder = path.parent.relative_to(root).as_posix()
        rows.append(
            (
                manifest["operator"],
                f"[`{path.parent.name}`]({folder})",
                f"`{manifest['schema']}`",
                ", ".join(manifest["backends"]),
                ", ".join(manifest["dtypes"]),
            )
        )
    return table(("operator", "candidate", "schema", "backends", "dtypes"), rows)


def transcript(root: Path) -> str:
    """Return what the command printed for the attempt behind :data:`SHOWN_BASELINE`."""
    attempt_id = json.loads((root / SHOWN_BASELINE).read_text("utf-8"))["attempt"]["attempt_id"]
    folder = next((root / "evidence").glob(f"**/{attempt_id}"))

    def record(name: str, kind: type[_R]) -> _R:
        return from_json((folder / name).read_bytes(), kind)

    attempt = record("attempt.json", Attempt)
    verdict = Verdict(
        attempt=attempt,
        folder=Path("artifacts") / attempt.task_id / attempt_id,
        build=record("compile.json", Build),
        correctness=record("correctness.json", Correctness),
        benchmark=record("benchmark.json", Benchmark),
        regression=None,
        warnings=(),
    )
    kept = folder.relative_to(root)
    return (
        f"```console\n$ {SHOWN_COMMAND}\n{verdict_text.as_text(verdict)}```\n\n"
        f"That is the text of the attempt kept under `{kept}`."
    )


def kernels_table(root: Path) -> str:
    """Return the shipped candidates and eager PyTorch: P50 and CUPTI's kernel times, microseconds."""
    found = evidence.last_benchmarks(root)
    head = ("candidate", "case", "P50", "kernel", "eager P50", "eager kernel", "kernel speedup")
    return table(
        head,
        [
            (f"{task} {candidate}", shown, *_numbers(_case(found[task, f"{task}_{candidate}"], case_id)))
            for task, candidate, case_id, shown in ROWS
        ],
    )


def _case(benchmark: dict[str, Any], case_id: str) -> dict[str, Any]:
    cases: Sequence[dict[str, Any]] = benchmark["cases"]
    return next(case for case in cases if case["case_id"] == case_id)


def _numbers(case: dict[str, Any]) -> tuple[str, ...]:
    mine, eager = case["candidate_kernel"]["kernel_us"], case["reference_kernel"]["kernel_us"]
    return (
        f"{case['candidate']['p50_us']:.2f}",
        f"{mine:.2f}",
        f"{case['reference']['p50_us']:.2f}",
        f"{eager:.2f}",
        f"{eager / mine:.2f}",
    )


def times(root: Path) -> str:
    """Return the sentence about the tool's own time on the H200, with and without a build in the cache."""
    cold: list[float] = []
    warm: list[float] = []
    for path, attempt in evidence.documents(root, "attempt.json"):
        if attempt["candidate_id"] != TIMED_CANDIDATE or attempt["device"] != "cuda":
            continue
        build = json.loads(path.with_name("compile.json").read_text("utf-8"))
        (warm if build["cached"] else cold).append(attempt["elapsed_s"])
    return textwrap.fill(
        f"There, `verify` of the rmsnorm card took {_listed(cold)} s without a build in the cache, and "
        f"{_listed(warm)} s with one (the attempts of `{TIMED_CANDIDATE}`).",
        width=118,
    )


def _listed(seconds: Sequence[float]) -> str:
    shown = [f"{one:.1f}" for one in seconds]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
