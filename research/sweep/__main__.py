"""Kernel time against size: 2^10 to 2^28 elements, each operator's best candidate and its reference.

Times are device times of single calls (CUPTI) behind an L2 flush, median of the calls. Writes
``sweep.json`` and ``sweep.svg``:

    python -m research.sweep OUT_DIR [--dtype float16] [--calls 30]
    python -m research.sweep OUT_DIR --plot-only     draw an existing sweep.json again
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from research import ROOT
from research.sweep.picture import Point, Sweep, picture

BEST = {
    "vector_add": "candidates/vector_add/v1_vectorized",
    "fused_bias_relu": "candidates/fused_bias_relu/v1_vectorized",
    "rmsnorm": "candidates/rmsnorm/v2_vectorized",
}
BUILD_TIMEOUT_S = 120.0
EXPONENTS = range(10, 29)
HIDDEN = 4096
L2_FLUSHES = 2  # a buffer of so many L2 caches is overwritten before each call
# Small inputs rotate, so that no address stays warm; large ones evict themselves.
INPUT_SETS, LARGE_ELEMENTS = 4, 1 << 24


def shape_of(operator: str, elements: int) -> list[int]:
    """Return the shape that holds ``elements``: a vector, or rows of at most :data:`HIDDEN`."""
    if operator == "vector_add":
        return [elements]
    hidden = min(HIDDEN, elements)
    return [elements // hidden, hidden]


def load_candidate(folder: str) -> Callable[..., Any]:
    """Build a shipped candidate for this GPU and return its operator. Raises ``RuntimeError``."""
    import torch

    from mini_kv.compiler import BuildRequest, build
    from mini_kv.core.records.results import Status
    from mini_kv.system.toolchain import find_toolchain
    from mini_kv.task_card.loading import load_manifest

    manifest = load_manifest(ROOT / folder, ROOT).manifest
    major, minor = torch.cuda.get_device_capability()
    result = build(
        BuildRequest(
            project_root=str(ROOT),
            candidate_folder=folder,
            manifest=manifest,
            device="cuda",
            arch_list=(f"{major}.{minor}",),
            timeout_s=BUILD_TIMEOUT_S,
        ),
        find_toolchain(ROOT / ".build", os.environ),
    )
    if result.status is not Status.PASS or result.library is None:
        raise RuntimeError(f"{folder} was not built: {result.first_error or result.message}")
    torch.ops.load_library(str(ROOT / result.library))
    if manifest.python is not None:
        runpy.run_path(str(ROOT / folder / manifest.python))
    namespace, name = manifest.dispatcher.split("::")
    operator: Callable[..., Any] = getattr(getattr(torch.ops, namespace), name).default
    return operator


def arguments_of(operator: str, shape: Sequence[int], dtype: str, seed: int) -> tuple[object, ...]:
    """Return random arguments, drawn on the GPU: the factories of the references draw on the CPU."""
    import torch

    from mini_kv.references.rmsnorm import DEFAULT_EPS

    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(extents: Sequence[int]) -> torch.Tensor:
        return torch.randn(*extents, dtype=getattr(torch, dtype), device="cuda", generator=generator)

    first = draw(shape)
    second = draw(shape if operator == "vector_add" else shape[-1:])
    return (first, second, DEFAULT_EPS) if operator == "rmsnorm" else (first, second)


def measure(operator: str, call: Callable[..., Any], dtype: str, calls: int) -> list[Point]:
    """Time one operator over all sizes."""
    import torch

    from mini_kv.worker.cupti import witness

    module = importlib.import_module(f"mini_kv.references.{operator}")
    flush = torch.empty(
        L2_FLUSHES * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda"
    )
    points = []
    for exponent in EXPONENTS:
        elements = 1 << exponent
        shape = shape_of(operator, elements)
        params = {"shape": tuple(shape), "dtype": dtype}
        count = 1 if elements > LARGE_ELEMENTS else INPUT_SETS
        sets = [arguments_of(operator, shape, dtype, seed) for seed in range(count)]

        def clear(position: int) -> None:
            flush.fill_(position & 0x7F)

        mine, theirs = (witness(side, sets, calls, clear).kernel_us for side in (call, module.reference))
        point = Point(
            operator=operator,
            dtype=dtype,
            shape=shape,
            elements=elements,
            bytes_moved=module.cost_model(params).bytes_moved,
            candidate_us=mine,
            reference_us=theirs,
        )
        points.append(point)
        rate = point["bytes_moved"] / mine / 1e3
        print(
            f"{operator:<16} 2^{exponent:<3} {mine:10.2f} us {rate:7.0f} GB/s  {theirs / mine:7.2f}x",
            flush=True,
        )
    return points


def sweep(dtype: str, calls: int) -> Sweep:
    """Measure everything on the current GPU."""
    import torch

    from mini_kv.worker.cuda_timer import CudaTimer

    points = []
    for operator, folder in BEST.items():
        points += measure(operator, load_candidate(folder), dtype, calls)
    copy_gb_per_s = CudaTimer(torch.device("cuda")).copy_gb_per_s()
    return Sweep(
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        copy_gb_per_s=copy_gb_per_s or 0.0,
        calls=calls,
        points=points,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and draw; exit code 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--plot-only", action="store_true")
    arguments = parser.parse_args(argv)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.plot_only:
        measured = sweep(arguments.dtype, arguments.calls)
        (out / "sweep.json").write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    (out / "sweep.svg").write_text(picture(json.loads((out / "sweep.json").read_text("utf-8"))), "utf-8")
    print(f"wrote {out / 'sweep.json'} and {out / 'sweep.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
