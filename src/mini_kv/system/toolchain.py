"""What builds here: compilers and their identity, torch's and CUDA's folders. Torch is not imported.

A compiler is asked for its version once; the answer is kept in ``.build/toolchain.json`` for as long
as none of the programs behind it changes in size or time of change, so a cache hit starts no process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from mini_kv.core.canonical import canonical_sha256
from mini_kv.core.record import Record, from_json
from mini_kv.system.commands import probe
from mini_kv.system.files import read_regular, write_json_atomic

PROBE_CACHE_NAME = "toolchain.json"
MAX_CACHE_BYTES = 16 << 20
SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class FileStamp(Record, frozen=True, kw_only=True):
    """What changes when a program on disk is replaced."""

    path: str
    size_bytes: int
    mtime_ns: int


CXX_RUNTIME = "libstdc++.so.6"
SYSTEM_LIBRARY_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
)


class Compiler(Record, frozen=True, kw_only=True):
    """A compiler driver. ``identity`` changes when it, or a program it runs, changes.

    ``include_folders`` are those it searches unasked; ``root`` is nvcc's toolkit folder, ``None`` for
    a host compiler; ``cxx_runtime`` is the shared C++ library of the system, which torch uses;
    ``library_folders`` are those a host compiler's linker searches.
    """

    path: str
    version: str
    identity: str
    programs: tuple[FileStamp, ...]
    include_folders: tuple[str, ...] = ()
    root: str | None = None
    cxx_runtime: str | None = None
    library_folders: tuple[str, ...] = ()


class TorchFacts(Record, frozen=True, kw_only=True):
    """An installed torch as its files tell it. ``cuda`` is ``None`` for a CPU-only build."""

    root: str
    version: str
    git_version: str | None
    cuda: str | None
    include_folders: tuple[str, ...]
    library_folder: str


class CudaFacts(Record, frozen=True, kw_only=True):
    """Headers and runtime for host code on a CUDA build, in the order they are searched."""

    version: str
    include_folders: tuple[str, ...]
    runtime_library: str | None


class Toolchain(Record, frozen=True, kw_only=True):
    """Everything a build needs from the machine; ``None`` where the machine lacks it.

    ``cuobjdump`` is a path. It looks into a finished library only, so it is no part of any key.
    """

    cxx: Compiler | None
    nvcc: Compiler | None
    torch: TorchFacts | None
    cuda: CudaFacts | None
    python_include: str | None
    python_version: str
    cuobjdump: str | None = None


class _ProbeCache(Record, frozen=True, kw_only=True):
    compilers: dict[str, Compiler]


def find_toolchain(
    cache_folder: Path | None,
    environ: Mapping[str, str],
    search_path: Sequence[str] | None = None,
) -> Toolchain:
    """Find compilers, torch and CUDA. ``search_path`` is ``sys.path`` unless given.

    ``cache_folder`` (``.build``) keeps the probes' answers and is made when it is missing; with
    ``None`` every compiler is asked afresh.
    """
    sites = tuple(sys.path if search_path is None else search_path)
    probes = _Probes(cache_folder / PROBE_CACHE_NAME if cache_folder else None)
    torch = torch_facts(sites)
    cxx = next((c for path in _cxx_paths(environ) if (c := probes.get(path, _probe_cxx))), None)
    nvcc = _choose_nvcc(
        [c for path in _nvcc_paths(environ, sites) if (c := probes.get(path, _probe_nvcc))],
        torch.cuda if torch else None,
    )
    probes.save()
    include = sysconfig.get_paths()["include"]
    return Toolchain(
        cxx=cxx,
        nvcc=nvcc,
        torch=torch,
        cuda=_cuda_facts(nvcc, sites, torch),
        python_include=include if os.path.exists(os.path.join(include, "Python.h")) else None,
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        cuobjdump=find_cuda_tool("cuobjdump", nvcc, environ, sites),
    )


# --------------------------------------------------------------------------- compilers


class _Probes:
    """Compilers already asked, by real path; a changed program is asked again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._changed = False
        self._known: dict[str, Compiler] = {}
        # A missing, truncated or foreign cache is no cache: every compiler is asked again.
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            raw = read_regular(path, MAX_CACHE_BYTES) if path else b"{}"
            self._known = from_json(raw, _ProbeCache).compilers

    def get(self, path: str, ask: Callable[[str], Compiler | None]) -> Compiler | None:
        known = self._known.get(path)
        if known is not None and all(stamp(one.path) == one for one in known.programs):
            return known
        compiler = ask(path)
        if compiler is not None:
            self._known[path] = compiler
            self._changed = True
        return compiler

    def save(self) -> None:
        if self._changed and self._path is not None:
            # Losing the cache costs a few probes; a read-only project must still build elsewhere.
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json_atomic(self._path, _ProbeCache(compilers=self._known))


def stamp(path: str) -> FileStamp | None:
    """Return the stamp of a file, links followed; ``None`` when there is none."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return FileStamp(path=path, size_bytes=facts.st_size, mtime_ns=facts.st_mtime_ns)


def tool_environ() -> dict[str, str]:
    """Return the environment that compilers and probes get: nothing of the caller's."""
    return {"PATH": SAFE_PATH, "LANG": "C", "LC_ALL": "C"}


def _which(name: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=environ.get("PATH", SAFE_PATH))


def _cxx_paths(environ: Mapping[str, str]) -> list[str]:
    """Return host compilers by preference: ``$CXX`` alone when it is set, else g++, c++, clang++."""
    # ``CXX="ccache g++"``: the compiler is the last word; its wrapper would only hide what ran.
    words = environ.get("CXX", "").split()
    names = words[-1:] or ["g++", "c++", "clang++"]
    return [found for name in names if (found := _which(name, environ))]


def _nvcc_paths(environ: Mapping[str, str], sites: Sequence[str]) -> list[str]:
    """Return every nvcc by preference: CUDA_HOME, PATH, the usual toolkit, then wheels."""
    named = [environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [os.path.join(folder, "bin", "nvcc") for folder in named if folder]
    places += [found for found in [_which("nvcc", environ)] if found]
    places += ["/usr/local/cuda/bin/nvcc"]
    for site in sites:
        for wheel in ("cu13", "cuda_nvcc", "cu12"):
            places.append(os.path.join(site, "nvidia", wheel, "bin", "nvcc"))
    usable = [path for path in places if os.path.isfile(path) and os.access(path, os.X_OK)]
    return list(dict.fromkeys(usable))


def _choose_nvcc(found: Sequence[Compiler], torch_cuda: str | None) -> Compiler | None:
    """Return the first nvcc of torch's CUDA major version, or else the first of any."""
    if torch_cuda is not None:
        for compiler in found:
            if release_of(compiler.version).split(".")[0] == torch_cuda.split(".")[0]:
                return compiler
    return found[0] if found else None


def release_of(nvcc_version: str) -> str:
    """Return ``13.0`` from nvcc's ``13.0.88``."""
    return ".".join(nvcc_version.split(".")[:2])


def _identify(version_text: str, programs: Sequence[str]) -> tuple[str, tuple[FileStamp, ...]]:
    """Digest version text and stamps. Folders stay out: equal images give equal identities."""
    stamps = tuple(one for path in dict.fromkeys(programs) if (one := stamp(path)))
    facts = [[os.path.basename(one.path), one.size_bytes, one.mtime_ns] for one in stamps]
    return canonical_sha256({"version": version_text, "programs": facts}), stamps


def _probe_cxx(path: str) -> Compiler | None:
    environ = tool_environ()
    answer = probe([path, "--version"], environ)
    if answer is None or answer.returncode != 0 or not answer.stdout:
        return None
    text = answer.stdout.decode("utf-8", "replace")
    programs = [path, os.path.realpath(path)]
    for name in ("cc1plus", "as", "ld"):
        shown = probe([path, f"-print-prog-name={name}"], environ)
        place = shown.stdout.decode("utf-8", "replace").strip() if shown else ""
        if place and not os.path.isabs(place):
            place = _which(place, environ) or ""
        programs += [os.path.realpath(place)] if place else []
    identity, stamps = _identify(text, programs)
    return Compiler(
        path=path,
        version=text.splitlines()[0],
        identity=identity,
        programs=stamps,
        include_folders=_searched_folders(path, environ),
        cxx_runtime=_shared_cxx_runtime(path, environ),
        library_folders=_library_folders(path, environ),
    )


def _library_folders(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    answer = probe([path, "-print-search-dirs"], environ)
    text = answer.stdout.decode("utf-8", "replace") if answer else ""
    listed = next((line for line in text.splitlines() if line.startswith("libraries:")), "")
    folders = (os.path.realpath(entry) for entry in listed.partition("=")[2].split(":") if entry)
    return tuple(dict.fromkeys(folder for folder in folders if os.path.isdir(folder) and folder != "/"))


def _shared_cxx_runtime(path: str, environ: Mapping[str, str]) -> str | None:
    answer = probe([path, f"-print-file-name={CXX_RUNTIME}"], environ)
    named = answer.stdout.decode("utf-8", "replace").strip() if answer else ""
    folders = (os.path.dirname(named) if os.path.isabs(named) else "", *SYSTEM_LIBRARY_FOLDERS)
    found = (os.path.join(folder, CXX_RUNTIME) for folder in folders if folder)
    return next((os.path.realpath(place) for place in found if os.path.exists(place)), None)


def _searched_folders(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    answer = probe([path, "-x", "c++", "-E", "-v", os.devnull], environ)
    if answer is None:
        return ()
    text = answer.stderr.decode("utf-8", "replace")
    found = re.search(
        r"#include <\.\.\.> search starts here:\n(.*?)^End of search list", text, re.MULTILINE | re.DOTALL
    )
    lines = found[1].splitlines() if found else []
    return tuple(dict.fromkeys(os.path.realpath(line.strip()) for line in lines))


def _probe_nvcc(path: str) -> Compiler | None:
    answer = probe([path, "--version"], tool_environ())
    if answer is None or answer.returncode != 0:
        return None
    text = answer.stdout.decode("utf-8", "replace")
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    root = _nvcc_root(path)
    if found is None or root is None:
        return None
    parts = ("bin/nvcc", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "bin/nvcc.profile", "nvvm/bin/cicc")
    programs = [path, os.path.realpath(path), *(os.path.join(root, part) for part in parts)]
    identity, stamps = _identify(text, programs)
    return Compiler(path=path, version=found[1], identity=identity, programs=stamps, root=root)


def _nvcc_root(path: str) -> str | None:
    """Return the toolkit folder. An nvcc on PATH may be a wrapper script, so nvcc itself is asked."""
    answer = probe([path, "--dryrun", "-x", "cu", "-E", os.devnull], tool_environ())
    if answer is None:
        return None
    found = re.search(rb"^#\$ TOP=(.+)$", answer.stderr, re.MULTILINE)
    return os.path.realpath(os.fsdecode(found[1].strip())) if found else None


def find_cuda_tool(
    name: str, nvcc: Compiler | None, environ: Mapping[str, str], sites: Sequence[str] = ()
) -> str | None:
    """Return the path of a tool that comes with CUDA: nvcc's own toolkit first, then PATH, then wheels.

    Triton's wheel carries a cuobjdump, and Nsight Compute may stand in a folder of its own.
    """
    roots = [nvcc.root if nvcc else None, environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [os.path.join(root, "bin") for root in roots if root]
    folders[1:1] = environ.get("PATH", SAFE_PATH).split(os.pathsep)
    folders += [str(path) for path in sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)]
    folders += [os.path.join(site, "triton", "backends", "nvidia", "bin") for site in sites]
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder))


# --------------------------------------------------------------------------- torch and CUDA


def torch_facts(sites: Sequence[str]) -> TorchFacts | None:
    """Find torch on ``sites`` and read its ``version.py`` as text; ``None`` when there is no torch.

    The first entry that holds a torch wins, as it would for ``import torch``.
    """
    for site in sites:
        root = os.path.join(site or os.curdir, "torch")
        include = os.path.join(root, "include")
        try:
            text = Path(root, "version.py").read_text(encoding="utf-8")
        except OSError:
            continue
        version = _assigned(text, "__version__")
        if version is None or not os.path.isdir(include):
            continue
        api = os.path.join(include, "torch", "csrc", "api", "include")
        return TorchFacts(
            root=os.path.realpath(root),
            version=version,
            git_version=_assigned(text, "git_version"),
            cuda=_assigned(text, "cuda"),
            include_folders=tuple(os.path.realpath(path) for path in (include, api) if os.path.isdir(path)),
            library_folder=os.path.realpath(os.path.join(root, "lib")),
        )
    return None


def _assigned(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}(?:\s*:[^=]+)?\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def _cuda_facts(nvcc: Compiler | None, sites: Sequence[str], torch: TorchFacts | None) -> CudaFacts | None:
    """Return nvcc's own headers first, then the wheels': ATen wants cuSPARSE's and its like."""
    version = nvcc.version if nvcc else torch.cuda if torch else None
    if version is None:
        return None
    major = version.split(".")[0]
    wheels = [os.path.join(site, "nvidia", f"cu{major}") for site in sites]
    if torch is not None:
        wheels.insert(0, os.path.join(os.path.dirname(torch.root), "nvidia", f"cu{major}"))
    toolkit = [nvcc.root] if nvcc and nvcc.root else []
    targets = [os.path.join(root, "targets", "x86_64-linux") for root in toolkit]
    includes: list[str] = []
    for root in (*toolkit, *targets, *wheels):
        folder = os.path.realpath(os.path.join(root, "include"))
        includes += [folder, os.path.join(folder, "cccl")]
    return CudaFacts(
        version=version,
        include_folders=tuple(dict.fromkeys(path for path in includes if os.path.isdir(path))),
        runtime_library=_runtime_library([*wheels, *toolkit], major),
    )


def _runtime_library(roots: Sequence[str], major: str) -> str | None:
    """Return ``libcudart.so.<major>``: torch's own copy first, since that one is loaded at run time.

    It is linked by file name because wheels carry no ``libcudart.so`` for ``-lcudart`` to find.
    """
    for root in roots:
        for folder in ("lib", "lib64", "targets/x86_64-linux/lib"):
            path = os.path.join(root, folder, f"libcudart.so.{major}")
            if os.path.exists(path):
                return os.path.realpath(path)
    return None
