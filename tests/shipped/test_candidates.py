"""Every shipped candidate, built as `mini-kv verify` builds it: cases, refusals, contract, house rules."""

from __future__ import annotations

import functools
import importlib
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_kv.compiler import BuildRequest, build
from mini_kv.core.records.card import CandidateManifest, Case, CaseKind, DeviceKind
from mini_kv.core.records.results import Status
from mini_kv.references import rmsnorm
from mini_kv.system.toolchain import find_toolchain
from mini_kv.task_card.loading import load_manifest
from shipped_cards import CARDS, arguments_of, expected_of, mismatches

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = tuple(sorted(path.parent for path in (ROOT / "candidates").glob("*/*/candidate.yaml")))
MANIFESTS = {folder: load_manifest(folder, ROOT).manifest for folder in FOLDERS}
# One running float32 sum over more elements than these rounds worse than rtol 1e-5 allows; that is what
# a naive kernel costs in accuracy, and no defect of it.
SEQUENTIAL_SUM_LIMIT = 16384
each_candidate = pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f"{f.parent.name}-{f.name}")


@functools.cache
def toolchain() -> Any:
    return find_toolchain(ROOT / ".build", os.environ)


def built(folder: Path, device: DeviceKind, arch_list: tuple[str, ...] = ()) -> Path:
    request = BuildRequest(
        project_root=str(ROOT),
        candidate_folder=folder.relative_to(ROOT).as_posix(),
        manifest=MANIFESTS[folder],
        device=device,
        arch_list=arch_list,
        timeout_s=280,
    )
    result = build(request, toolchain())
    assert result.status is Status.PASS, result.first_error or result.message
    assert result.library is not None
    return ROOT / result.library


@functools.cache
def operator(folder: Path) -> Any:
    """Build and load a candidate once a process; where a GPU is in sight, its CUDA build."""
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        library = built(folder, "cuda", (f"{major}.{minor}",))
    else:
        library = built(folder, "cpu")
    torch.ops.load_library(str(library))
    manifest = MANIFESTS[folder]
    if manifest.python is not None:
        runpy.run_path(str(folder / manifest.python))
    namespace, name = manifest.dispatcher.split("::")
    return getattr(getattr(torch.ops, namespace), name).default


def on(arguments: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """Move the tensors among the arguments, strides and all; those on other devices stay (mismatches)."""
    return tuple(
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=device).copy_(a)
        if isinstance(a, torch.Tensor) and a.device.type == "cpu"
        else a
        for a in arguments
    )


def small_arguments(
    operator_name: str, dtype: str, *, layout: str = "contiguous", **more: Any
) -> tuple[Any, ...]:
    params = {"shape": (3, 17), "dtype": dtype, "layout": layout, **more}
    return arguments_of(CARDS[operator_name], Case(id="probe", kind=CaseKind.CORE, params=params))


def with_gradients(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments)


def legal_cases(manifest: CandidateManifest) -> list[Case]:
    kinds = (CaseKind.ILLEGAL, CaseKind.BENCHMARK)
    return [case for case in CARDS[manifest.operator].cases if case.kind not in kinds]


# ------------------------------------------------------------------------------------------ numbers


@each_candidate
def test_every_legal_case_passes_on_the_cpu(folder: Path) -> None:
    manifest, op = MANIFESTS[folder], operator(folder)
    card = CARDS[manifest.operator]
    for case in legal_cases(manifest):
        arguments = arguments_of(card, case)
        before = [a.clone() for a in arguments if isinstance(a, torch.Tensor)]
        actual, expected = op(*arguments), expected_of(card, arguments)
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), case.id
        assert actual.stride() == torch.empty(expected.shape).stride(), case.id
        assert mismatches(actual, expected, card.tolerances[str(case.params["dtype"])]) == 0, case.id  # type: ignore[index]
        for was, is_now in zip(before, arguments, strict=False):
            torch.testing.assert_close(is_now, was, rtol=0, atol=0, equal_nan=True)


@each_candidate
def test_every_illegal_case_is_refused_and_the_next_legal_one_passes(folder: Path) -> None:
    manifest, op = MANIFESTS[folder], operator(folder)
    card = CARDS[manifest.operator]
    legal = small_arguments(manifest.operator, "float32")
    for case in card.cases:
        if case.raises is None:
            continue
        with pytest.raises(RuntimeError, match=re.escape(case.raises.message)):
            op(*arguments_of(card, case))
        assert mismatches(op(*legal), expected_of(card, legal), card.tolerances["float32"]) == 0


@each_candidate
def test_meta_refuses_what_the_kernels_refuse(folder: Path) -> None:
    manifest, op = MANIFESTS[folder], operator(folder)
    card = CARDS[manifest.operator]
    for case in card.cases:
        if case.raises is None or "device" in case.id:  # on one device nothing mismatches
            continue
        arguments = (a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments_of(card, case))
        with pytest.raises(RuntimeError, match=re.escape(case.raises.message)):
            op(*arguments)


# ----------------------------------------------------------------------------------------- contract


@each_candidate
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda_here)])
def test_the_dispatcher_has_what_the_manifest_claims(folder: Path, device: str) -> None:
    manifest, op = MANIFESTS[folder], operator(folder)
    namespace = manifest.dispatcher.split("::")[0]
    assert str(op._schema) == f"{namespace}::{manifest.schema}"
    for backend in manifest.backends:
        if backend != "cuda" or device == "cuda":
            key = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}[backend]
            assert torch._C._dispatch_has_kernel_for_dispatch_key(manifest.dispatcher, key)


@each_candidate
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_opcheck_succeeds(folder: Path, layout: str) -> None:
    arguments = with_gradients(small_arguments(MANIFESTS[folder].operator, "float32", layout=layout))
    results = torch.library.opcheck(operator(folder), arguments)
    assert set(results.values()) == {"SUCCESS"} and len(results) == 4


@each_candidate
@pytest.mark.parametrize("shape", [(3, 5), (5,)])
def test_gradients_agree_with_finite_differences(folder: Path, shape: tuple[int, ...]) -> None:
    arguments = with_gradients(small_arguments(MANIFESTS[folder].operator, "float64", shape=shape))
    assert torch.autograd.gradcheck(operator(folder), arguments)


@each_candidate
def test_three_sizes_are_one_dynamic_graph(folder: Path) -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    op = operator(folder)

    def call(*arguments: Any) -> Any:
        return op(*arguments)

    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    for shape in ((3, 33), (4, 35), (5, 1025)):
        compiled(*small_arguments(MANIFESTS[folder].operator, "float32", shape=shape))
    assert len(graphs) == 1


# -------------------------------------------------------------------------------------- house rules


def test_dispatcher_names_and_ids_are_unique() -> None:
    assert len({m.dispatcher.split("::")[0] for m in MANIFESTS.values()}) == len(MANIFESTS)
    assert len({m.candidate_id for m in MANIFESTS.values()}) == len(MANIFESTS)


@each_candidate
def test_kernels_are_found_by_the_profilers_name_and_know_no_torch(folder: Path) -> None:
    source = "".join(path.read_text() for path in sorted(folder.glob("*.cu*")))
    kernels = re.findall(r"__global__ void\b[^;{]*?(\w+_kernel)\(", source)
    assert len(kernels) == source.count("__global__") > 0
    assert all(re.search(MANIFESTS[folder].kernel_name_regex, name) for name in kernels)
    assert not re.search(r"#include\s*<(torch|ATen|c10)/", source)


@each_candidate
def test_no_source_waits_for_the_device(folder: Path) -> None:
    for path in folder.glob("*.c*"):
        assert not re.search(r"Synchronize|cudaMemcpy\(|\.item\(", path.read_text()), path.name


@pytest.mark.slow
@each_candidate
def test_the_cuda_build_compiles_and_links(folder: Path) -> None:
    if toolchain().nvcc is None:
        pytest.skip("no CUDA compiler on this machine")
    assert built(folder, "cuda", ("9.0",)).stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "kernel", "count"),
    [
        ("vector_add/v1_vectorized", "add_packs_kernel", 8),
        ("fused_bias_relu/v1_vectorized", "bias_relu_flat_kernel", 12),
        ("fused_bias_relu/v1_vectorized", "bias_relu_wrapped_kernel", 12),
        ("rmsnorm/v2_vectorized", "rmsnorm_rows_kernel", 30),
        ("rmsnorm/v2_vectorized", "rmsnorm_staged_kernel", 16),
    ],
)
def test_no_wide_load_was_moved_behind_the_first_store(folder: str, kernel: str, count: int) -> None:
    # The assembler once put the last of vector_add's eight loads there: half a microsecond of four.
    tools = toolchain()
    if tools.nvcc is None or tools.cuobjdump is None:
        pytest.skip("no CUDA compiler or no disassembler on this machine")
    library = built(ROOT / "candidates" / folder, "cuda", ("9.0",))
    listing = subprocess.run(
        [tools.cuobjdump, "-sass", str(library)], capture_output=True, text=True, check=True
    ).stdout
    functions = [text for text in listing.split("Function : ")[1:] if kernel in text.partition("\n")[0]]
    assert len(functions) >= count
    for text in functions:
        order = re.findall(r"\b(LDG|STG)\.[.\w]*\b128\b", text)
        assert "STG" in order and order == sorted(order), text.partition("\n")[0]


# ---------------------------------------------------------------------------------------------- GPU


@pytest.mark.cuda_here
@each_candidate
def test_every_case_on_the_gpu(folder: Path) -> None:
    manifest, op = MANIFESTS[folder], operator(folder)
    card = CARDS[manifest.operator]
    for case in card.cases:
        module = importlib.import_module(f"mini_kv.references.{manifest.operator}")
        arguments = module.make_inputs(case.params, torch.Generator().manual_seed(5), torch.device("cuda"))
        if case.raises is not None:
            with pytest.raises(RuntimeError, match=re.escape(case.raises.message)):
                op(*arguments)
            continue
        actual, expected = op(*arguments), expected_of(card, arguments)
        assert actual.is_contiguous() and actual.device == arguments[0].device, case.id
        assert mismatches(actual, expected, card.tolerances[str(case.params["dtype"])]) == 0, case.id  # type: ignore[index]


@pytest.mark.cuda_here
@pytest.mark.parametrize("version", ["v0_naive", "v1_block_reduce", "v2_vectorized"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rmsnorm_over_the_hidden_sizes_that_choose_a_kernel(version: str, dtype: str) -> None:
    op, card = operator(ROOT / "candidates" / "rmsnorm" / version), CARDS["rmsnorm"]
    exact = (128, 256, 384, 512, 768, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
    for hidden in (*exact, 1, 7, 8, 1000, 4095, 4097, 8193, 16392, 40000, 131072):
        if version == "v0_naive" and dtype == "float32" and hidden > SEQUENTIAL_SUM_LIMIT:
            continue
        for layout in ("contiguous", "offset"):
            params: dict[str, Any] = {"shape": (5, hidden), "dtype": dtype, "layout": layout}
            arguments = rmsnorm.make_inputs(
                params, torch.Generator().manual_seed(hidden), torch.device("cuda")
            )
            first, second = op(*arguments), op(*arguments)
            assert mismatches(first, expected_of(card, arguments), card.tolerances[dtype]) == 0, params  # type: ignore[index]
            assert torch.equal(first, second), params


@pytest.mark.cuda_here
@pytest.mark.parametrize(("hidden", "rows"), [(4096, 8193), (8192, 4099)])
def test_rmsnorm_of_many_rows_keeps_the_last_ones_apart(hidden: int, rows: int) -> None:
    op, card = operator(ROOT / "candidates" / "rmsnorm" / "v2_vectorized"), CARDS["rmsnorm"]
    params: dict[str, Any] = {"shape": (rows, hidden), "dtype": "float16", "layout": "contiguous"}
    arguments = rmsnorm.make_inputs(params, torch.Generator().manual_seed(7), torch.device("cuda"))
    assert mismatches(op(*arguments), expected_of(card, arguments), card.tolerances["float16"]) == 0


@pytest.mark.cuda_here
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("units", [640, 768, 896, 1024, 1536, 2048, 4096])
def test_rmsnorm_of_long_rows_keeps_nan_and_infinity_in_their_row(units: int, dtype: str) -> None:
    op, card = operator(ROOT / "candidates" / "rmsnorm" / "v2_vectorized"), CARDS["rmsnorm"]
    hidden = units * 16 // (4 if dtype == "float32" else 2)
    for rows in (1, 2, 3, 1023, 1024):  # two rows a block, the last of them alone in its block or not
        params: dict[str, Any] = {"shape": (rows, hidden), "dtype": dtype, "layout": "contiguous"}
        x, weight, eps = rmsnorm.make_inputs(
            params, torch.Generator().manual_seed(rows), torch.device("cuda")
        )
        assert isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor)
        for spoiled in (False, True):
            if spoiled:
                x[0, hidden - 1], x[rows - 1, 0] = float("nan"), float("inf")
            first, second = op(x, weight, eps), op(x, weight, eps)
            expected = expected_of(card, (x, weight, eps))
            assert mismatches(first, expected, card.tolerances[dtype]) == 0, (params, spoiled)  # type: ignore[index]
            torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
            assert int(first.isnan().any(dim=-1).sum()) == (min(rows, 2) if spoiled else 0)


def every_half_width_value(dtype: torch.dtype) -> torch.Tensor:
    """All 65536 bit patterns: subnormal values, infinities and NaN among them."""
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)


def same_bits_or_both_nan(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    same = actual.view(torch.int16) == expected.view(torch.int16)
    return bool((same | (actual.isnan() & expected.isnan())).all())


@pytest.mark.cuda_here
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_paired_sums_round_as_one_float_sum_does(dtype: torch.dtype) -> None:
    add = operator(ROOT / "candidates" / "vector_add" / "v1_vectorized")
    bias_relu = operator(ROOT / "candidates" / "fused_bias_relu" / "v1_vectorized")
    a = every_half_width_value(dtype).cuda()
    for seed in range(32):
        b = a[torch.randperm(a.numel(), generator=torch.Generator().manual_seed(seed)).cuda()]
        total = a.float() + b.float()
        assert same_bits_or_both_nan(add(a, b), total.to(dtype))
        expected = torch.where(total < 0, torch.zeros_like(total), total).to(dtype)
        assert same_bits_or_both_nan(bias_relu(a.view(1, -1), b).view(-1), expected)
        unaligned = torch.cat([b[:1], b])[1:]
        assert same_bits_or_both_nan(bias_relu(a.view(1, -1), unaligned).view(-1), expected)


@pytest.mark.cuda_here
@pytest.mark.parametrize("shape", [(3, 16), (1000, 264), (2000, 1032), (3000, 2056), (8200, 4096)])
@pytest.mark.parametrize("more", [0, 1, 7])
def test_bias_relu_finds_the_column_at_every_size_that_chooses_a_kernel(
    shape: tuple[int, int], more: int
) -> None:
    op = operator(ROOT / "candidates" / "fused_bias_relu" / "v1_vectorized")
    rows, hidden = shape[0] + more, shape[1] + more
    x = torch.randn((rows, hidden), device="cuda", dtype=torch.float16)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for offset in (0, 1):
            bias = torch.randn(hidden + offset, device="cuda", dtype=dtype)[offset:]
            assert torch.equal(op(x.to(dtype), bias), torch.relu(x.to(dtype) + bias))


@pytest.mark.cuda_here
@each_candidate
def test_work_is_enqueued_on_the_current_stream(folder: Path) -> None:
    op, name = operator(folder), MANIFESTS[folder].operator
    arguments = on(small_arguments(name, "float32", shape=(64, 1024)), "cuda")
    replacement = on(small_arguments(name, "float32", shape=(64, 1024), values="wide"), "cuda")
    expected = op(*replacement)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        arguments[0].copy_(replacement[0])
        arguments[1].copy_(replacement[1])
        actual = op(*arguments)  # right only if it waits for the copies, which wait for the sleep
        assert not side.query()  # and the call did not wait for the device
    side.synchronize()
    assert torch.equal(actual, expected)


@pytest.mark.cuda_here
@each_candidate
def test_a_call_is_captured_in_a_cuda_graph(folder: Path) -> None:
    op, name = operator(folder), MANIFESTS[folder].operator
    arguments = on(small_arguments(name, "float16"), "cuda")
    expected = op(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = op(*arguments)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)
