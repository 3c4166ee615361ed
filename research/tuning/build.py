"""Generate translation units from the variants and compile them concurrently into shared libraries."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from research import ROOT
from research.tuning.variants import Variant

HERE = Path(__file__).resolve().parent
PER_UNIT = 12
FLAGS = ("-std=c++17", "-O3", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC")
HEADERS = {
    "rmsnorm": "rmsnorm.cuh", "bias_relu": "pointwise.cuh", "vector_add": "pointwise.cuh",
    "copy": "oneshot.cuh",
}  # fmt: skip
KIND_HEADERS = {
    "once": "oneshot.cuh", "row": "oneshot.cuh", "bulk_once": "oneshot.cuh", "stream": "oneshot.cuh",
    "reread": "wide.cuh", "staged": "wide.cuh", "cluster": "wide.cuh", "odd": "odd.cuh",
    "shipped": "shipped.cuh",
}  # fmt: skip
ARGUMENTS = "const void* a, const void* b, void* out, int64_t rows, int64_t hidden, double eps, void* stream"

# Shipped candidates: name, group, folder, call. `E` is the element enum of the candidate's namespace.
_RMSNORM = "launch_rmsnorm(E, a, b, out, rows, hidden, eps, stream)"
_BIAS_RELU = "launch_bias_relu(E, a, b, out, rows * hidden, hidden, stream)"
CANDIDATES = (
    ("rmsnorm_v0", "rmsnorm", "rmsnorm/v0_naive", _RMSNORM),
    ("rmsnorm_v1", "rmsnorm", "rmsnorm/v1_block_reduce", _RMSNORM),
    ("rmsnorm_v2", "rmsnorm", "rmsnorm/v2_vectorized", _RMSNORM),
    ("bias_v1", "bias_relu", "fused_bias_relu/v1_vectorized", _BIAS_RELU),
    ("add_v1", "vector_add", "vector_add/v1_vectorized", "launch_add(E, a, b, out, hidden, stream)"),
)
ALL_SHIPPED = tuple(candidate[0] for candidate in CANDIDATES)
ELEMENT = {"f16": "kFloat16", "bf16": "kBFloat16", "f32": "kFloat32"}


def symbol(index: int) -> str:
    """Return the exported name of a variant."""
    return f"variant_{index}"


def header_of(variant: Variant) -> str:
    """Return the header that a variant's launcher stands in."""
    return KIND_HEADERS.get(variant.kind, HEADERS[variant.group])


def unit_text(header: str, numbered: Sequence[tuple[int, Variant]]) -> str:
    """Return the source of one translation unit, whose variants stand in one header."""
    lines = [f'#include "{header}"']
    for index, variant in numbered:
        lines.append(
            f'extern "C" const char* {symbol(index)}({ARGUMENTS}) {{\n'
            f"  {variant.call}(a, b, out, rows, hidden, eps, stream);\n"
            "  const cudaError_t error = cudaGetLastError();\n"
            "  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);\n}"
        )
    return "\n".join(lines) + "\n"


def candidate_text(name: str, folder: str, call: str) -> str:
    """Return a unit that exports one shipped candidate for each dtype."""
    kernel = ROOT / "candidates" / folder / "kernel.cu"
    found = re.search(r"^namespace (\w+) \{", kernel.read_text(), re.MULTILINE)
    assert found is not None
    # A candidate may spread its element types over several units: here they become one.
    others = sorted(path for path in kernel.parent.glob("*.cu") if path != kernel)
    lines = [f'#include "{path}"' for path in (kernel, *others)]
    for dtype, element in ELEMENT.items():
        body = call.replace("E,", f"{found.group(1)}::Element::{element},")
        lines.append(
            f'extern "C" const char* {name}_{dtype}({ARGUMENTS}) {{ return {found.group(1)}::{body}; }}'
        )
    return "\n".join(lines) + "\n"


def compile_unit(source: Path) -> Path:
    """Compile one unit and return the library. Raises ``RuntimeError`` with what the compiler said."""
    library = source.with_suffix(".so")
    command = ["nvcc", *FLAGS, "-I", str(HERE), "-I", str(source.parent), "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{source.name}: {done.stderr[:3000]}")
    return library


class Builds:
    """All units, compiling in the background; `group(name)` waits for one operator's."""

    def __init__(
        self,
        folder: Path,
        variants: Sequence[Variant],
        stride: int = 1,
        shipped: Sequence[str] = ALL_SHIPPED,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 2)
        self.variants = list(enumerate(variants))[::stride]
        self.futures: dict[str, list[Future[Path]]] = {}
        groups = dict.fromkeys(v.group for v in variants)
        for group in groups:
            for name, of, place, call in CANDIDATES:
                if of == group and name in shipped:
                    self._submit(group, folder / f"{name}.cu", candidate_text(name, place, call))
        for group in groups:
            mine = [(i, v) for i, v in self.variants if v.group == group]
            for header in dict.fromkeys(header_of(v) for _, v in mine):
                alike = [(i, v) for i, v in mine if header_of(v) == header]
                for start in range(0, len(alike), PER_UNIT):
                    name = f"{group}_{header.partition('.')[0]}_{start}.cu"
                    self._submit(group, folder / name, unit_text(header, alike[start : start + PER_UNIT]))

    def _submit(self, group: str, path: Path, text: str) -> None:
        path.write_text(text)
        self.futures.setdefault(group, []).append(self.pool.submit(compile_unit, path))

    def group(self, name: str) -> tuple[list[Path], list[str]]:
        """Wait; returns the group's libraries and the errors of units that failed."""
        libraries, errors = [], []
        for future in self.futures[name]:
            try:
                libraries.append(future.result())
            except RuntimeError as error:
                errors.append(str(error))
        return libraries, errors
