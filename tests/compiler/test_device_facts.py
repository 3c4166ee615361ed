"""What compiler and disassembler say of kernels is read right, and its lack never breaks a build."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mini_kv.compiler.device_facts import (
    access_bytes,
    describe,
    function_name,
    parse_ptxas,
    parse_sass,
    with_memory,
)
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.build import Build
from mini_kv.core.records.device_code import MAX_REMARKS, AccessWidth, DeviceCode, KernelCode, remarks
from mini_kv.core.records.results import Status
from mini_kv.system.toolchain import find_cuda_tool

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/device_code"
PTXAS = (FIXTURES / "ptxas.txt").read_text()
SASS = (FIXTURES / "sass.txt").read_text()


def by_name(kernels: tuple[KernelCode, ...]) -> dict[str, KernelCode]:
    return {kernel.name: kernel for kernel in kernels}


def test_ptxas_tells_registers_shared_memory_stack_and_spills() -> None:
    kernels = by_name(parse_ptxas(PTXAS))
    assert list(kernels) == ["spilling_kernel", "array_kernel", "packs_kernel"]
    spilling = kernels["spilling_kernel"]
    assert (spilling.arch, spilling.registers_per_thread) == ("sm_90", 32)
    assert (spilling.stack_bytes, spilling.spill_store_bytes, spilling.spill_load_bytes) == (376, 532, 640)
    packs = kernels["packs_kernel"]
    assert (packs.static_shared_bytes, packs.barriers, packs.stack_bytes) == (1024, 1, 0)


def test_a_function_that_was_not_inlined_is_no_kernel_of_its_own() -> None:
    array = by_name(parse_ptxas(PTXAS))["array_kernel"]
    assert (array.stack_bytes, array.spill_store_bytes) == (64, 0)
    assert "helper" not in by_name(parse_ptxas(PTXAS))


@pytest.mark.parametrize(
    "text",
    ["", "kernel.cu(3): error: expected a ';'", "ptxas info    : Compiling entry function 'k' for 'sm_90'\n"],
)
def test_output_without_a_finished_kernel_gives_none(text: str) -> None:
    assert parse_ptxas(text) == ()
    assert describe(text, Path("missing.so"), None) is None


def test_sass_gives_the_width_of_each_global_access() -> None:
    memory = {function_name(symbol): found for (symbol, _), found in parse_sass(SASS).items()}
    packs = memory["packs_kernel"]
    assert packs.global_loads == (
        AccessWidth(size_bytes=16, instructions=1),
        AccessWidth(size_bytes=2, instructions=1),
    )
    assert packs.global_stores == (AccessWidth(size_bytes=16, instructions=1),)
    assert (packs.local_loads, packs.local_stores) == (0, 0)
    spilling = memory["spilling_kernel"]
    assert spilling.local_stores > 0
    assert [width.size_bytes for width in spilling.global_loads] == [4]


@pytest.mark.parametrize(
    ("modifiers", "size_bytes"),
    [
        ("", 4),
        (".E", 4),
        (".E.64", 8),
        (".E.128.CONSTANT", 16),
        (".E.U8", 1),
        (".E.LTC128B.S16.STRONG.GPU", 2),
        (".E.ENL2.256", 32),
        (".E.BYPASS.LTC128B.128", 16),
    ],
)
def test_an_access_is_as_wide_as_its_modifiers_say(modifiers: str, size_bytes: int) -> None:
    assert access_bytes(modifiers) == size_bytes


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("plain_c_kernel", "plain_c_kernel"),
        ("_Z3addPfi", "add"),
        ("_ZL3addPfi", "add"),
        ("_ZN5space36_GLOBAL__N__71cc6a35_4_s_cu_1e9b4a946kernelIfEEvPKT_", "kernel"),
        ("_Z", "_Z"),
        ("_ZN", "_ZN"),
    ],
)
def test_a_function_is_named_without_namespace_and_parameters(symbol: str, name: str) -> None:
    assert function_name(symbol) == name


def test_predicated_instructions_are_counted() -> None:
    instruction = "        /*00f0*/              @!P0 LDG.E.64 R2, desc[UR4][R2.64] ;\n"
    listing = f"\tcode for sm_90\n\t\tFunction : k\n{instruction}"
    assert parse_sass(listing)["k", "sm_90"].global_loads == (AccessWidth(size_bytes=8, instructions=1),)


def test_spills_and_local_arrays_are_remarked_and_nothing_else() -> None:
    said = remarks(DeviceCode(kernels=parse_ptxas(PTXAS)))
    assert len(said) == 2
    assert "spilling_kernel" in said[0] and "532 bytes of stores" in said[0]
    assert "array_kernel" in said[1] and "64 bytes a thread" in said[1]


def test_many_spilling_kernels_do_not_flood_the_report() -> None:
    spilling = parse_ptxas(PTXAS)[0]
    said = remarks(DeviceCode(kernels=(spilling,) * 40))
    assert len(said) == MAX_REMARKS + 1
    assert said[-1].startswith("34 more")


def fake_tool(folder: Path, body: str) -> str:
    path = folder / "cuobjdump"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_disassembler_adds_widths(tmp_path: Path) -> None:
    tool = fake_tool(
        tmp_path, f'[ "$1" = --version ] && echo "release 13.0, V13.0.85" || cat {FIXTURES}/sass.txt'
    )
    library = tmp_path / "made.so"
    library.touch()
    code = describe(PTXAS, library, tool)
    assert code is not None
    assert code.disassembler == "cuobjdump 13.0.85"
    assert all(kernel.memory is not None for kernel in code.kernels)
    assert code.kernels == with_memory(parse_ptxas(PTXAS), parse_sass(SASS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cuobjdump", "made.so"]


@pytest.mark.parametrize("body", ["exit 1", "kill -9 $$", "sleep 30"])
def test_a_disassembler_that_fails_costs_only_its_own_facts(tmp_path: Path, body: str) -> None:
    code = describe(PTXAS, tmp_path / "made.so", fake_tool(tmp_path, body), timeout_s=0.5)
    assert code is not None
    assert code.disassembler is None
    assert [kernel.memory for kernel in code.kernels] == [None] * 3
    assert len(list(tmp_path.iterdir())) == 1


def test_a_record_of_before_device_code_is_still_read() -> None:
    build = Build(
        schema_version="1.0.0",
        status=Status.PASS,
        code=None,
        message=None,
        key="0" * 64,
        cached=False,
        elapsed_s=1.0,
        device="cuda",
        library=None,
        library_sha256=None,
        library_bytes=None,
        torch="2.11.0",
        cxx=None,
        cuda_compiler=None,
        arch_list=("9.0",),
        units=(),
        source_sha256={},
        device_code=DeviceCode(kernels=parse_ptxas(PTXAS)),
    )
    document = json.loads(to_json(build))
    assert from_json(to_json(build), Build) == build
    del document["device_code"]
    assert from_json(json.dumps(document).encode(), Build).device_code is None


def test_a_tool_is_found_next_to_nvcc_on_path_or_in_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "triton/backends/nvidia/bin"
    wheel.mkdir(parents=True)
    in_wheel = fake_tool(wheel, "exit 0")
    nowhere = {"PATH": str(tmp_path / "none"), "CUDA_HOME": str(tmp_path / "none")}
    assert find_cuda_tool("cuobjdump", None, nowhere, [str(tmp_path)]) in (
        in_wheel,
        *([] if not os.path.exists("/usr/local/cuda/bin/cuobjdump") else ["/usr/local/cuda/bin/cuobjdump"]),
    )
    on_path = fake_tool(tmp_path, "exit 0")
    assert find_cuda_tool("cuobjdump", None, {"PATH": str(tmp_path)}, []) == on_path
    assert find_cuda_tool("no-such-tool", None, nowhere, [str(tmp_path)]) is None
