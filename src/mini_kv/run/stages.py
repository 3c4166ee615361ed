"""The steps that several commands take: build, look at the device while it is timed, archive a build."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mini_kv import compiler
from mini_kv.core.benchmark import Telemetry
from mini_kv.core.build import Build
from mini_kv.core.progress import Event, Progress
from mini_kv.core.record import to_json
from mini_kv.run.inputs import RunInputs
from mini_kv.system.gpu import Nvml, open_nvml
from mini_kv.system.workers import Nursery

BUILD_TIMEOUT_S = 900.0


def build_candidate(inputs: RunInputs, progress: Progress) -> Build:
    """Build the candidate, or take it from the store."""
    gpus = inputs.gpus.gpus
    progress(Event(stage="build", done=0, total=1, detail=inputs.manifest.folder))
    result = compiler.build(
        compiler.BuildRequest(
            project_root=str(inputs.root),
            candidate_folder=inputs.manifest.folder,
            manifest=inputs.manifest.manifest,
            device=inputs.device,
            arch_list=(gpus[0].compute_capability,) if inputs.device == "cuda" else (),
            timeout_s=BUILD_TIMEOUT_S,
        ),
        inputs.toolchain,
        progress=lambda text: progress(Event(stage="build", done=0, total=1, detail=text)),
        launcher=inputs.cage.launcher(inputs.toolchain),
    )
    progress(Event(stage="build", done=1, total=1, detail="cached" if result.cached else "built"))
    return result


def build_files(inputs: RunInputs, build: Build) -> dict[str, bytes]:
    """Return what an archive keeps of a build, by name: its record, its logs, the very sources."""
    logs = compiler.logs_folder(inputs.root, build)
    files = {"compile.json": to_json(build)}
    for name in ("compile_stdout.log", "compile_stderr.log"):
        path = logs / name
        files[name] = path.read_bytes() if path.is_file() else b""
    sources = logs / "sources"
    for path in sorted(sources.rglob("*")) if sources.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            files[f"sources/{path.relative_to(sources).as_posix()}"] = path.read_bytes()
    return files


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """What is read of the measured device, and which of its processes are this run's own."""

    nvml: Nvml | None
    nursery: Nursery

    def read(self) -> Telemetry | None:
        """Return one reading of the GPU; ``None`` on the CPU."""
        return self.nvml.telemetry(0) if self.nvml is not None else None

    def own_processes(self) -> frozenset[int]:
        """Return the ids of this process and of all that it started, ended ones included."""
        return self.nursery.own_processes()


@contextmanager
def device_state(inputs: RunInputs, nursery: Nursery) -> Iterator[DeviceState]:
    """Open what tells about the measured device; ``nursery`` knows which processes are the run's own."""
    with open_nvml(os.environ) as nvml:
        yield DeviceState(nvml=nvml if inputs.device == "cuda" else None, nursery=nursery)
