"""What this machine can verify, what it lacks, and what to do about it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from mini_kv.core.record import Record
from mini_kv.core.records.card import SCHEMA_VERSION, DeviceKind
from mini_kv.core.records.isolation import LEVEL_MEANING, Isolation, IsolationLevel
from mini_kv.core.time_limits import DOCTOR_TOOL_TIMEOUT_S
from mini_kv.system.commands import Command, run_all
from mini_kv.system.gpu import GpuReport, read_gpus
from mini_kv.system.host import IsolationFacts, free_disk_bytes, isolation_facts
from mini_kv.system.sandbox.probe import probe_isolation
from mini_kv.system.scratch import scratch_place
from mini_kv.system.toolchain import Toolchain, find_toolchain, release_of, tool_environ

PACKAGES = ("jsonschema_rs", "msgspec", "pynvml", "rich", "yaml")
LEAST_FREE_BYTES = 2 << 30
OLDEST_TORCH = (2, 11)

LineState = Literal["ok", "missing", "note"]


class DoctorLine(Record, frozen=True, kw_only=True):
    """One thing looked for. ``missing`` and ``note`` carry advice."""

    name: str
    state: LineState
    detail: str
    advice: str | None = None


class Doctor(Record, frozen=True, kw_only=True):
    """What ``mini-kv doctor --json`` prints."""

    schema_version: str
    lines: tuple[DoctorLine, ...]
    can_verify: tuple[DeviceKind, ...]


def examine(project_root: Path, environ: Mapping[str, str]) -> Doctor:
    """Look at the machine without importing torch; writes nothing but ``.build/`` where that exists."""
    cache = project_root / ".build"
    toolchain = find_toolchain(cache if cache.is_dir() else None, environ)
    gpus = read_gpus(environ)
    lines = (
        _python_line(),
        _packages_line(),
        _torch_line(toolchain),
        _cxx_line(toolchain),
        _nvcc_line(toolchain),
        _gpu_line(toolchain, gpus),
        *_tool_lines(toolchain, environ),
        _disk_line(project_root),
        *_scratch_lines(),
        *isolation_lines(isolation_facts(environ.get("PATH", os.defpath))),
        isolation_line(probe_isolation("cuda" if gpus.gpus else "cpu", hidden=(project_root,))),
    )
    state = {line.name: line.state for line in lines}
    cpu = all(state[name] != "missing" for name in ("python", "packages", "torch", "g++"))
    cuda = cpu and all(state[name] == "ok" for name in ("nvcc", "gpu"))
    can: tuple[DeviceKind, ...] = (*(("cpu",) if cpu else ()), *(("cuda",) if cuda else ()))
    return Doctor(schema_version=SCHEMA_VERSION, lines=lines, can_verify=can)


def _ok(name: str, detail: str) -> DoctorLine:
    return DoctorLine(name=name, state="ok", detail=detail)


def _line(name: str, state: LineState, detail: str, advice: str) -> DoctorLine:
    return DoctorLine(name=name, state=state, detail=detail, advice=advice)


def _python_line() -> DoctorLine:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return _ok("python", version)
    return _line("python", "note", version, "mini-kv is tested on Python 3.11 to 3.13")


def _packages_line() -> DoctorLine:
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not absent:
        return _ok("packages", f"all {len(PACKAGES)} found")
    return _line("packages", "missing", ", ".join(absent), "install mini-kv with its dependencies")


def _torch_line(toolchain: Toolchain) -> DoctorLine:
    torch = toolchain.torch
    if torch is None:
        return _line("torch", "missing", "not installed", "install torch 2.11 or newer")
    kind = f"built with CUDA {torch.cuda}" if torch.cuda else "CPU only"
    detail = f"{torch.version}, {kind}"
    parts = torch.version.split("+")[0].split(".")[:2]
    if tuple(int(part) for part in parts if part.isdecimal()) < OLDEST_TORCH:
        return _line(
            "torch", "missing", detail, "install torch 2.11 or newer: older ones lack the stable ABI"
        )
    if torch.cuda is None:
        return _line("torch", "note", detail, "install a CUDA build of torch to verify on a GPU")
    return _ok("torch", detail)


def _cxx_line(toolchain: Toolchain) -> DoctorLine:
    if toolchain.cxx is None:
        return _line("g++", "missing", "no C++ compiler", "install g++ 11 or newer, or set CXX to a compiler")
    return _ok("g++", f"{toolchain.cxx.version} at {toolchain.cxx.path}")


def _nvcc_line(toolchain: Toolchain) -> DoctorLine:
    nvcc, torch = toolchain.nvcc, toolchain.torch
    if nvcc is None:
        advice = "install the CUDA toolkit, or mini-kv's extra 'nvcc', to build for a GPU; CPU needs none"
        return _line("nvcc", "missing", "no CUDA compiler", advice)
    detail = f"{nvcc.version} at {nvcc.path}"
    release = release_of(nvcc.version)
    if torch is not None and torch.cuda and release.split(".")[0] != torch.cuda.split(".", maxsplit=1)[0]:
        advice = f"torch wants CUDA {torch.cuda}: set CUDA_HOME to a toolkit of that major version"
        return _line("nvcc", "note", detail, advice)
    return _ok("nvcc", detail)


def _gpu_line(toolchain: Toolchain, gpus: GpuReport) -> DoctorLine:
    if not gpus.gpus:
        why = "no NVIDIA driver" if gpus.driver is None else f"driver {gpus.driver}, but no visible GPU"
        return _line("gpu", "missing", why, "verify with --device cpu, or run on a machine with a GPU")
    names = ", ".join(f"{gpu.name} (compute capability {gpu.compute_capability})" for gpu in gpus.gpus)
    detail = f"{names}; driver {gpus.driver}, CUDA up to {gpus.cuda_driver}"
    wanted = toolchain.torch.cuda if toolchain.torch else None
    if wanted and gpus.cuda_driver and _major(gpus.cuda_driver) < _major(wanted):
        return _line("gpu", "missing", detail, f"torch wants CUDA {wanted}: install a newer driver")
    return _ok("gpu", detail)


def _major(version: str) -> int:
    return int(version.split(".", maxsplit=1)[0])


def _tool_lines(toolchain: Toolchain, environ: Mapping[str, str]) -> tuple[DoctorLine, ...]:
    """Look for the tools that only some commands want; all are asked for their version at once."""
    wanted = (
        ("ncu", "install Nsight Compute to use 'mini-kv profile'"),
        ("compute-sanitizer", "install it with the CUDA toolkit to find races and out-of-bounds accesses"),
        ("cuobjdump", "install it with the CUDA toolkit to look into built kernels"),
    )
    paths = {name: _find_tool(name, toolchain, environ) for name, _ in wanted}
    versions = _versions([path for path in paths.values() if path is not None])
    lines: list[DoctorLine] = []
    for name, advice in wanted:
        path = paths[name]
        if path is None:
            lines.append(_line(name, "missing", "not found", advice))
        else:
            lines.append(_ok(name, f"{versions[path] or 'version not told'} at {path}"))
    return tuple(lines)


def _find_tool(name: str, toolchain: Toolchain, environ: Mapping[str, str]) -> str | None:
    roots = [environ.get("CUDA_HOME"), toolchain.nvcc.root if toolchain.nvcc else None, "/usr/local/cuda"]
    folders = [*environ.get("PATH", os.defpath).split(os.pathsep)]
    folders += [os.path.join(root, "bin") for root in roots if root]
    folders += [str(path) for path in sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)]
    return shutil.which(name, path=os.pathsep.join(folders))


def _versions(paths: Sequence[str]) -> dict[str, str | None]:
    commands = [Command(argv=(path, "--version"), cwd="/", environ=tool_environ()) for path in paths]
    try:
        answers = run_all(commands, timeout_s=DOCTOR_TOOL_TIMEOUT_S)
    except OSError:
        return dict.fromkeys(paths)
    found: dict[str, str | None] = {}
    for path, answer in zip(paths, answers, strict=True):
        lines = answer.stdout.decode("utf-8", "replace").splitlines()
        told = [line.strip() for line in lines if "version" in line.lower() or "release" in line.lower()]
        found[path] = told[0] if told else None
    return found


def _disk_line(project_root: Path) -> DoctorLine:
    free = free_disk_bytes(project_root)
    detail = f"{free / (1 << 30):.1f} GiB free"
    if free < LEAST_FREE_BYTES:
        return _line("disk", "note", detail, "free some space: builds and archives want about 2 GiB")
    return _ok("disk", detail)


def _scratch_lines() -> tuple[DoctorLine, ...]:
    """Say where scratch folders lie when that is not where TMPDIR says; nothing else is worth a line."""
    place, fault = scratch_place()
    if fault is None:
        return ()
    return (_line("scratch", "note", str(place), f"{fault[0].upper()}{fault[1:]}"),)


def isolation_line(isolation: Isolation) -> DoctorLine:
    """Say what candidates were shut in with when it was tried."""
    detail = f"{isolation.level.value}: {LEVEL_MEANING[isolation.level]}"
    if isolation.level is IsolationLevel.ISOLATED:
        return _ok("isolation", detail)
    missing = "; ".join(f"{one.name}: {one.reason}" for one in isolation.missing)
    return _line("isolation", "note", detail, f"for the next level ({missing})")


def isolation_lines(facts: IsolationFacts) -> tuple[DoctorLine, ...]:
    """Say what candidates can be shut in with; less isolation is a note, never a failure."""
    weaker = "candidates run with less isolation"
    return (
        _ok("landlock", f"ABI {facts.landlock_abi}")
        if facts.landlock_abi
        else _line("landlock", "note", "not in this kernel", f"use Linux 5.13 or newer; without it {weaker}"),
        _ok("user namespaces", "allowed")
        if facts.user_namespaces
        else _line("user namespaces", "note", "refused", f"allow them; without them {weaker}"),
        _ok("seccomp", "available")
        if facts.seccomp
        else _line("seccomp", "note", "not in this kernel", f"use a kernel that has it; else {weaker}"),
    )
