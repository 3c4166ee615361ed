"""The steps that several commands take: build, look at the device while it is timed, archive a build."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mini_kv import compiler
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.progress import Event, Progress
from mini_kv.core.record import to_json
from mini_kv.core.records.archived_files import (
    BUILD_FILE,
    BUILD_STDERR_FILE,
    BUILD_STDOUT_FILE,
    SOURCES_FOLDER,
)
from mini_kv.core.records.benchmark import Telemetry
from mini_kv.core.records.build import Build
from mini_kv.core.time_limits import BUILD_TIMEOUT_S
from mini_kv.run.run_inputs import RunInputs
from mini_kv.system.archive_folder import reason
from mini_kv.system.files import read_regular
from mini_kv.system.gpu import Nvml, open_nvml
from mini_kv.system.workers import Nursery

MAX_BUILD_FILE_BYTES = 256 << 20


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
    """Return what an archive keeps of a build, by name: its record, its logs, the very sources.

    Raises ``ConfigurationError`` where the build's folder does not give them.
    """
    logs = compiler.logs_folder(inputs.root, build)
    printed = (BUILD_STDOUT_FILE.name, BUILD_STDERR_FILE.name)
    files = {BUILD_FILE.name: to_json(build)} | dict.fromkeys(printed, b"")
    sources = logs / SOURCES_FOLDER
    paths = {name: logs / name for name in printed}
    paths |= {
        f"{SOURCES_FOLDER}/{path.relative_to(sources).as_posix()}": path
        for path in sorted(sources.rglob("*"))
        if not path.is_dir() and not path.is_symlink()
    }
    for name, path in paths.items():
        try:
            files[name] = read_regular(path, MAX_BUILD_FILE_BYTES)
        except FileNotFoundError:
            continue  # a build that ended early has no logs
        except (OSError, ValueError) as error:
            message = f"{name} of the build in {logs} cannot be read: {reason(error)}."
            raise ConfigurationError(Code.BUILD_FOLDER, message) from error
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
