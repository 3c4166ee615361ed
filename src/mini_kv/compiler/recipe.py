"""How a candidate is built: one command a translation unit, one link, and the key over all of it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping

from mini_kv.compiler.device_facts import VERBOSE_ASSEMBLER
from mini_kv.compiler.snapshot import Snapshot
from mini_kv.compiler.stable_abi import TORCH_TARGET, is_stable
from mini_kv.core.canonical import canonical_sha256
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.record import Record
from mini_kv.core.records.card import CandidateManifest, DeviceKind
from mini_kv.system.toolchain import Compiler, CudaFacts, Toolchain, TorchFacts, release_of

RECIPE_VERSION = 2
"""Raise it whenever the same inputs would give another library."""

CXX_SUFFIXES = (".cpp", ".cc", ".cxx")
CUDA_SUFFIX = ".cu"
HEADER_SUFFIXES = (".h", ".hpp", ".hxx", ".cuh", ".inl")

_SOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
# nvcc hands its arguments to a shell, so no flag may hold anything that a shell would act on.
_FLAG = re.compile(r"-[A-Za-z0-9_+=.,:/%@-]+|[A-Za-z0-9_+=.,:@-]+")
_ARCH = re.compile(r"(\d{1,2})\.(\d)([af]?)(\+PTX)?")


class BuildRequest(Record, frozen=True, kw_only=True):
    """What to build. ``arch_list`` is like ``("9.0",)`` for CUDA and empty for the CPU.

    ``candidate_folder`` is relative to ``project_root`` unless it is absolute.
    """

    project_root: str
    candidate_folder: str
    manifest: CandidateManifest
    device: DeviceKind
    arch_list: tuple[str, ...]
    timeout_s: float


class Unit(Record, frozen=True, kw_only=True):
    """One compiler invocation, run inside the copied sources. ``object`` is relative to there."""

    source: str
    argv: tuple[str, ...]
    object: str
    dependencies: str


class Plan(Record, frozen=True, kw_only=True):
    """The whole build. ``places`` maps a machine's folders to the words that stand for them."""

    key: str
    library: str
    units: tuple[Unit, ...]
    link: tuple[str, ...]
    places: dict[str, str]


class _Key(Record, frozen=True, kw_only=True):
    """Everything that decides what the library is. Folders are named by their role, not their place."""

    recipe: int
    candidate_id: str
    device: DeviceKind
    arch_list: tuple[str, ...]
    machine: str
    host_features: str | None
    cxx: str
    nvcc: str | None
    torch: str
    torch_git: str | None
    torch_cuda: str | None
    cuda: str | None
    python: str
    units: tuple[tuple[str, ...], ...]
    link: tuple[str, ...]
    files: dict[str, str]


class _Parts(Record, frozen=True, kw_only=True):
    """The toolchain after it was found to be complete for this request."""

    cxx: Compiler
    nvcc: Compiler | None
    torch: TorchFacts
    cuda: CudaFacts | None
    python_include: str | None


def make_plan(request: BuildRequest, toolchain: Toolchain, snapshot: Snapshot) -> Plan:
    """Plan the build and compute its key. Raises :class:`ConfigurationError` when it cannot be built here.

    ``units`` is empty when no source is for this device: that is the candidate's fault, not ours.
    """
    manifest = request.manifest
    sources = _sources(manifest, request.device, snapshot)
    _check_flags(manifest)
    parts = _check_toolchain(request, toolchain, any(name.endswith(CUDA_SUFFIX) for name in sources))
    places = _places(parts)
    units = tuple(
        _unit(number, name, request, parts, stable=is_stable(name, snapshot.files))
        for number, name in enumerate(sources)
    )
    library = f"{manifest.candidate_id}_{{key}}.so"
    link = _link(library, units, request, parts)
    key = canonical_sha256(
        _Key(
            recipe=RECIPE_VERSION,
            candidate_id=manifest.candidate_id,
            device=request.device,
            arch_list=request.arch_list if request.device == "cuda" else (),
            machine=platform.machine(),
            host_features=_host_features(manifest),
            cxx=parts.cxx.identity,
            nvcc=parts.nvcc.identity if parts.nvcc else None,
            torch=parts.torch.version,
            torch_git=parts.torch.git_version,
            torch_cuda=parts.torch.cuda,
            cuda=parts.cuda.version if parts.cuda else None,
            python=toolchain.python_version,
            units=tuple(symbolic(unit.argv, places) for unit in units),
            link=symbolic(link, places),
            files=snapshot.sha256,
        )
    )
    name = library.format(key=key[:16])
    return Plan(
        key=key,
        library=name,
        units=units,
        link=tuple(word.replace(library, name) for word in link),
        places=places,
    )


def symbolic(argv: tuple[str, ...], places: Mapping[str, str]) -> tuple[str, ...]:
    """Write a machine's folders as ``{torch}``, ``{cuda}`` and so on, the longest match first."""
    return tuple(symbolic_text(word, places) for word in argv)


def symbolic_text(text: str, places: Mapping[str, str]) -> str:
    """Do the same to any text, such as a compiler's log."""
    for path in sorted(places, key=len, reverse=True):
        text = text.replace(path, places[path])
    return text


def _places(parts: _Parts) -> dict[str, str]:
    places = {parts.torch.root: "{torch}", parts.cxx.path: os.path.basename(parts.cxx.path)}
    if parts.cxx.cxx_runtime is not None:
        places[os.path.dirname(parts.cxx.cxx_runtime)] = "{cxx_runtime}"
    if parts.cuda is not None:
        for folder in parts.cuda.include_folders:
            if os.path.basename(folder) == "include":
                places[os.path.dirname(folder)] = "{cuda_wheel}"
        if parts.cuda.runtime_library is not None:
            places[os.path.dirname(parts.cuda.runtime_library)] = "{cuda_runtime}"
    if parts.nvcc is not None and parts.nvcc.root is not None:
        places[parts.nvcc.root] = "{cuda}"
        places[parts.nvcc.path] = "nvcc"
    if parts.python_include is not None:
        places[parts.python_include] = "{python}"
    return places


# --------------------------------------------------------------------------- checks


def _sources(manifest: CandidateManifest, device: DeviceKind, snapshot: Snapshot) -> tuple[str, ...]:
    for name in manifest.sources:
        if not _SOURCE.fullmatch(name) or ".." in name.split("/"):
            raise ConfigurationError(
                Code.BAD_SOURCE,
                f"The source name '{name}' is not a plain path inside the candidate's folder.",
            )
        if not name.endswith((*CXX_SUFFIXES, CUDA_SUFFIX, *HEADER_SUFFIXES)):
            raise ConfigurationError(
                Code.BAD_SOURCE,
                f"The source '{name}' is neither C++ (.cpp, .cc, .cxx), nor CUDA (.cu), nor a header.",
            )
        if name not in snapshot.files:
            raise ConfigurationError(
                Code.SOURCE_MISSING,
                f"The manifest names the source '{name}', which the folder does not hold.",
            )
    compiled = (*CXX_SUFFIXES, CUDA_SUFFIX) if device == "cuda" else CXX_SUFFIXES
    return tuple(name for name in manifest.sources if name.endswith(compiled))


def _check_flags(manifest: CandidateManifest) -> None:
    for flag in (*manifest.cxx_flags, *manifest.cuda_flags):
        if not _FLAG.fullmatch(flag):
            raise ConfigurationError(
                Code.BAD_FLAG, f"The flag '{flag}' holds characters that a compiler flag may not hold here."
            )


def _check_toolchain(request: BuildRequest, toolchain: Toolchain, has_cuda_sources: bool) -> _Parts:
    if toolchain.cxx is None:
        raise ConfigurationError(
            Code.CXX_MISSING,
            "No C++ compiler was found: install g++, or point CXX at one (what CXX names must exist).",
        )
    torch = toolchain.torch
    if torch is None:
        raise ConfigurationError(Code.TORCH_MISSING, "PyTorch was not found: install torch 2.11 or newer.")
    if request.device == "cpu":
        return _Parts(
            cxx=toolchain.cxx, nvcc=None, torch=torch, cuda=None, python_include=toolchain.python_include
        )
    if torch.cuda is None:
        raise ConfigurationError(
            Code.TORCH_WITHOUT_CUDA,
            f"torch {torch.version} is a CPU-only build: install a CUDA build, or use --device cpu.",
        )
    nvcc = toolchain.nvcc if has_cuda_sources else None
    if has_cuda_sources:
        _check_nvcc(toolchain.nvcc, torch.cuda)
        _check_arch_list(request.arch_list)
    return _Parts(
        cxx=toolchain.cxx,
        nvcc=nvcc,
        torch=torch,
        cuda=toolchain.cuda,
        python_include=toolchain.python_include,
    )


def _check_nvcc(nvcc: Compiler | None, torch_cuda: str) -> None:
    if nvcc is None:
        raise ConfigurationError(
            Code.NVCC_MISSING,
            "No CUDA compiler was found: install the CUDA toolkit and put nvcc on PATH or set CUDA_HOME, "
            "or install mini-kv's extra 'nvcc', or use --device cpu.",
        )
    release = release_of(nvcc.version)
    if release.split(".")[0] != torch_cuda.split(".", maxsplit=1)[0]:
        raise ConfigurationError(
            Code.CUDA_MISMATCH,
            f"nvcc is of CUDA {release} but torch was built with CUDA {torch_cuda}: "
            f"the major versions must be equal; set CUDA_HOME to a toolkit of CUDA {torch_cuda}.",
        )


def _check_arch_list(arch_list: tuple[str, ...]) -> None:
    if not arch_list:
        raise ConfigurationError(
            Code.ARCH_MISSING, "A CUDA build needs a compute capability to build for, such as 9.0."
        )
    for arch in arch_list:
        if not _ARCH.fullmatch(arch):
            raise ConfigurationError(
                Code.BAD_ARCH, f"'{arch}' is not a compute capability such as 9.0, 9.0a or 9.0+PTX."
            )


def _host_features(manifest: CandidateManifest) -> str | None:
    """Return the CPU's feature flags when a flag makes the library depend on them (-march=native)."""
    if not any("native" in flag for flag in (*manifest.cxx_flags, *manifest.cuda_flags)):
        return None
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            return next((line for line in stream if line.startswith(("flags", "Features"))), "unknown")
    except OSError:
        return "unknown"


# --------------------------------------------------------------------------- commands


def _unit(number: int, source: str, request: BuildRequest, parts: _Parts, *, stable: bool) -> Unit:
    stem = f"../objects/{number}_{os.path.basename(source)}"
    target, dependencies = f"{stem}.o", f"{stem}.d"
    make = _cuda_command if source.endswith(CUDA_SUFFIX) else _cxx_command
    return Unit(
        source=source,
        argv=(
            *make(request, parts),
            *((TORCH_TARGET,) if stable else ()),
            "-MD",
            "-MF",
            dependencies,
            "-c",
            source,
            "-o",
            target,
        ),
        object=target,
        dependencies=dependencies,
    )


def _defines(request: BuildRequest) -> tuple[str, ...]:
    defines = (f"-DTORCH_EXTENSION_NAME={request.manifest.candidate_id}",)
    # USE_CUDA uncovers the CUDA part of the stable ABI's C shim, the current stream among it.
    return (*defines, "-DMINI_KV_WITH_CUDA=1", "-DUSE_CUDA=1") if request.device == "cuda" else defines


def _system_includes(folders: tuple[str, ...]) -> tuple[str, ...]:
    # -isystem: warnings inside torch's headers are not the candidate's.
    return tuple(word for folder in folders for word in ("-isystem", folder))


def _cxx_command(request: BuildRequest, parts: _Parts) -> tuple[str, ...]:
    clang = "clang" in parts.cxx.version
    folders = parts.torch.include_folders
    folders += parts.cuda.include_folders if parts.cuda else ()
    folders += (parts.python_include,) if parts.python_include else ()
    return (
        parts.cxx.path,
        *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fdiagnostics-color=never"),
        "-ferror-limit=20" if clang else "-fmax-errors=20",
        *_defines(request),
        *_system_includes(folders),
        *request.manifest.cxx_flags,
    )


def _cuda_command(request: BuildRequest, parts: _Parts) -> tuple[str, ...]:
    assert parts.nvcc is not None
    assert parts.cuda is not None
    own = f"{parts.nvcc.root}{os.sep}"  # nvcc finds its own toolkit's headers without being told
    others = tuple(folder for folder in parts.cuda.include_folders if not folder.startswith(own))
    folders = (*parts.torch.include_folders, *others)
    folders += (parts.python_include,) if parts.python_include else ()
    return (
        parts.nvcc.path,
        *("-std=c++17", "-O3", "-lineinfo", "--expt-relaxed-constexpr", *VERBOSE_ASSEMBLER),
        *("-ccbin", parts.cxx.path, "-Xcompiler", "-fPIC,-fvisibility=hidden"),
        *(word for arch in request.arch_list for word in ("-gencode", _gencode(arch))),
        *_defines(request),
        *_system_includes(folders),
        *request.manifest.cuda_flags,
    )


def _gencode(arch: str) -> str:
    """Return ``arch=compute_90,code=[sm_90,compute_90]`` for ``9.0+PTX``."""
    found = _ARCH.fullmatch(arch)
    assert found is not None
    number = "".join(part or "" for part in found.group(1, 2, 3))
    code = f"[sm_{number},compute_{number}]" if found[4] else f"sm_{number}"
    return f"arch=compute_{number},code={code}"


def _link(library: str, units: tuple[Unit, ...], request: BuildRequest, parts: _Parts) -> tuple[str, ...]:
    """Return the link command. No rpath: torch's libraries are in the process before this one is.

    Unresolved symbols are warnings here and judged afterwards: those of Python are there at run time,
    all others are an error better told now than by the loader.
    """
    libraries = ["-ltorch_cpu", "-lc10", "-ltorch"]
    if os.path.exists(os.path.join(parts.torch.library_folder, "libtorch_python.so")):
        libraries.append("-ltorch_python")
    if request.device == "cuda":
        libraries += ["-ltorch_cuda", "-lc10_cuda"]
        if parts.cuda is not None and parts.cuda.runtime_library is not None:
            libraries.append(parts.cuda.runtime_library)
    if parts.cxx.cxx_runtime is not None:
        # Named before the compiler's own choice: one that links libstdc++ statically would give the
        # library a second copy next to torch's, and an exception thrown in one crashes in the other.
        libraries.insert(0, parts.cxx.cxx_runtime)
    return (
        parts.cxx.path,
        *("-shared", "-o", f"../{library}"),
        *(unit.object for unit in units),
        *request.manifest.cxx_flags,
        f"-L{parts.torch.library_folder}",
        *("-Wl,--as-needed", "-Wl,-z,defs", "-Wl,--warn-unresolved-symbols"),
        *libraries,
    )
