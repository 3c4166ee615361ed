"""The timer plan's name stands for the code that shapes samples: a change of one alone is seen."""

from __future__ import annotations

import ast
import re

import pytest

from mini_kv.benchmark.plan import TIMER_FINGERPRINT, TIMER_PLAN
from timer_fingerprint import OPAQUE, ROOTS, Source, fingerprint, met_opaque, package_source

CPU, CUDA, BATCHES = "worker.cpu_timer", "worker.cuda_timer", "worker.batches"
ROTATION, SAMPLES = "worker.rotation", "benchmark.samples"
CHANGED = (
    "the code that shapes samples on '{device}' is not what it was under the plan '{plan}': if times may "
    "come out otherwise, give that plan a new name in TIMER_PLAN (benchmark/plan.py); then record in "
    "TIMER_FINGERPRINT what 'python tests/timer_fingerprint.py' prints"
)


def edited(module: str, *changes: tuple[str, str], moved: dict[str, str] | None = None) -> Source:
    """Return the package's sources with one module's text changed; each change must find its place."""
    text = package_source(module)
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count, f"{module} has nothing like {pattern}"
    texts = {module: text, **(moved or {})}
    return lambda name: texts[name] if name in texts else package_source(name)


def changed_devices(source: Source) -> set[str]:
    return {device for device in ROOTS if fingerprint(device, source) != fingerprint(device)}


@pytest.mark.parametrize("device", ROOTS)
def test_a_plan_is_the_code_that_it_was_named_for(device: str) -> None:
    assert set(TIMER_PLAN) == set(TIMER_FINGERPRINT) == set(ROOTS)
    assert fingerprint(device) == TIMER_FINGERPRINT[device], CHANGED.format(
        device=device, plan=TIMER_PLAN[device]
    )


def test_plans_have_names_of_their_own() -> None:
    assert len(set(TIMER_PLAN.values())) == len(TIMER_PLAN)


def test_what_shapes_samples_says_so_where_it_stands() -> None:
    modules = {root.partition(":")[0] for roots in ROOTS.values() for root in roots}
    for module in (*sorted(modules), ROTATION, "worker.output_samples"):
        assert "TIMER_PLAN" in package_source(module), f"{module} does not name TIMER_PLAN"


def acting(module: str) -> list[str]:
    """Return what a module does when it is imported, besides naming things: no unfolding comes by there."""
    naming = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.AnnAssign
    return [
        ast.unparse(node)
        for node in ast.parse(package_source(module)).body[1:]
        if not isinstance(node, naming)
        if not (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Attribute))
    ]


@pytest.mark.parametrize("module", [CPU, CUDA, BATCHES, ROTATION, "worker.timed_cases", "worker.device"])
def test_a_module_that_shapes_samples_sets_nothing_when_imported(module: str) -> None:
    assert acting(module) == []


def test_unfolding_ends_where_it_says() -> None:
    assert met_opaque() == OPAQUE


@pytest.mark.parametrize(
    ("module", "pattern", "replacement", "devices"),
    [
        (CUDA, r"^FLUSHED_L2 = 2", "FLUSHED_L2 = 3", {"cuda"}),
        (CUDA, r"^CHUNK_SAMPLES = 20", "CHUNK_SAMPLES = 10", {"cuda"}),
        (CUDA, r"^DELAY_US, DELAY_FACTOR = 200.0, 2.0", "DELAY_US, DELAY_FACTOR = 200.0, 3.0", {"cuda"}),
        (BATCHES, r"range\(max\(warmup, 1\)\)", "range(max(warmup, 2))", {"cuda", "cpu"}),
        (CPU, r"^MIN_CPU_SAMPLE_NS = 1_000_000", "MIN_CPU_SAMPLE_NS = 2_000_000", {"cpu"}),
        (CUDA, r"\.fill_\(position & 0x7F\)", ".zero_()", {"cuda"}),
        (CUDA, r"^( +)end\.record\(\)\n +if start\.query", r"\1if start.query", {"cuda"}),
        (CPU, r"^        with one_thread\(\):", "        if True:", {"cpu"}),
        ("worker.device", r"set_num_threads\(1\)", "set_num_threads(2)", {"cpu"}),
        (ROTATION, r"^MAX_COPIES = 24", "MAX_COPIES = 12", {"cuda", "cpu"}),
        (SAMPLES, r"^ROTATING_SETS = 3", "ROTATING_SETS = 4", {"cuda", "cpu"}),
        (SAMPLES, r"^REWARM_CALLS = 2", "REWARM_CALLS = 5", {"cuda", "cpu"}),
        (SAMPLES, r"if repeat % 2 == 0 else \(CANDIDATE, REFERENCE\)", "if True else ()", {"cuda", "cpu"}),
        (
            "worker.timed_cases",
            r"with torch.no_grad\(\):\n +batch =",
            "if True:\n            batch =",
            {"cuda", "cpu"},
        ),
        ("worker.timed_cases", r"warmup=request.warmup", "warmup=request.warmup // 2", {"cuda", "cpu"}),
        (BATCHES, r"^def warm\(", "@torch.inference_mode()\ndef warm(", {"cuda", "cpu"}),
        (CUDA, r"^( +)def batch\(", r"\1@torch.inference_mode()\n\1def batch(", {"cuda"}),
        ("worker.timed_cases", r"FLUSHED_L2 \* self", "1 * self", {"cuda", "cpu"}),
        ("worker.output_samples", r"^PLACES = 64", "PLACES = 32", {"cpu"}),
    ],
)
def test_another_value_call_or_order_is_seen(
    module: str, pattern: str, replacement: str, devices: set[str]
) -> None:
    assert changed_devices(edited(module, (pattern, replacement))) >= devices
    if devices == {"cpu"}:
        assert changed_devices(edited(module, (pattern, replacement))) == {"cpu"}


@pytest.mark.parametrize(
    ("module", "pattern", "replacement"),
    [
        (CUDA, r"\b_samples\b", "_taken"),
        (CUDA, r"\bCHUNK_SAMPLES\b", "CALLS_BEHIND_A_DELAY"),
        (CUDA, r"\b_flush_buffer\b", "_buffer"),
        (CUDA, r"\bself\._cycles_per_us\b", "self._rate"),
        (CUDA, r"\bhost_us\b", "host_time_us"),
        (CPU, r"\A", "# Another comment.\n"),
        (CPU, r'"""Take the samples;', '"""Other words;'),
        (CUDA, r"2_000_000", "2 * 10**6"),
        (BATCHES, r"-> range:", "-> Sequence[int]:"),
        ("worker.output_samples", r"could not be read when", "cannot be read when"),
        ("worker.timed_cases", r"case\.kept_at = kept_at\n", "case.kept_at = float(kept_at)\n"),
    ],
)
def test_another_name_comment_or_way_to_write_a_value_is_none(
    module: str, pattern: str, replacement: str
) -> None:
    assert changed_devices(edited(module, (pattern, replacement))) == set()


def test_a_function_or_constant_that_moved_is_the_same() -> None:
    source = edited(
        CUDA,
        (r"^CHUNK_SAMPLES = 20$", "from mini_kv.worker.chunks import CHUNK_SAMPLES"),
        (
            r"^def _empty_kernel\(\) -> None:\n    torch.cuda._sleep\(0\)\n",
            "from mini_kv.worker.chunks import _empty_kernel\n",
        ),
        moved={"worker.chunks": "CHUNK_SAMPLES = 20\ndef _empty_kernel():\n    torch.cuda._sleep(0)\n"},
    )
    assert changed_devices(source) == set()


def test_a_root_that_is_gone_is_named() -> None:
    with pytest.raises(
        AssertionError, match=r"mini_kv\.worker\.cpu_timer has no CpuTimer: give its new place in ROOTS"
    ):
        fingerprint("cpu", edited(CPU, (r"\bCpuTimer\b", "ProcessorTimer")))
