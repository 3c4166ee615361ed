"""The judge's side of the cage: what a candidate's process on this machine may see, and for how much."""

from __future__ import annotations

import glob
import os
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.isolation import LEVEL_FEATURES, IsolationLevel
from mini_kv.system.sandbox import landlock
from mini_kv.system.sandbox.mounts import is_below

Policy = dict[str, Any]

SCRATCH_BYTES = 1 << 30
FILE_BYTES = 4 << 30
PROCESSES = 2048
CPU_SECONDS = 24 * 3600
LEAST_ADDRESS_SPACE = 8 << 30
_AF_UNIX = 1
# Users of systemd's dynamic range own no file anywhere; one each keeps workers apart from each other.
_FIRST_USER, _USERS = 61184, 4336

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys"),
    *("/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ssl/openssl.cnf"),
    *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "version", "filesystems", "modules")),
    *(f"/proc/{name}" for name in ("devices", "uptime", "loadavg", "driver", "sys")),
)
_WITH_FILE_ACCESS = frozenset({"tcp_rules", "scoped_signals"})
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CUDA_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dxg")
_VEILED = ("/run", "/tmp", "/var", "/home", "/root", "/mnt", "/media", "/srv")
# Parts of this package that the worker's side imports; the judge's own are no business of a candidate.
_OWN_PARTS = ("__init__.py", "core", "worker", "system/__init__.py", "system/sandbox")


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a policy needs to know of this machine, this Python and this project."""

    device: DeviceKind
    import_path: tuple[str, ...]
    readable: tuple[str, ...]
    listed: tuple[str, ...]
    must_read: tuple[str, ...]
    veiled: tuple[str, ...]


def survey(device: DeviceKind, import_path: Sequence[str], hidden: Sequence[Path]) -> Ground:
    """Find what the worker must be able to read; ``hidden`` (project, archives) stays out of it."""
    own = str(Path(__file__).resolve().parents[3])
    closed = [os.path.realpath(folder) for folder in hidden]
    kept = [entry for entry in import_path if entry == own or _may_import(entry, own, closed)]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    granted = [
        *(sys.prefix, sys.base_prefix, sys.exec_prefix),
        *(entry for entry in kept if entry != own or _holds_packages(entry)),
        *(f"{own}/mini_kv/{part}" for part in _OWN_PARTS),
        *(entry for entry in libraries if entry.startswith("/") and not _holds(entry, closed)),
    ]
    readable = tuple(
        dict.fromkeys(
            part
            for path in (*_SYSTEM, *granted)
            for both in _with_real(path)
            for part in _around(both, closed)
        )
    )
    return Ground(
        device=device,
        import_path=tuple(kept),
        readable=readable,
        listed=(own, "/dev"),
        must_read=tuple(_must_read(kept, own)),
        veiled=tuple(dict.fromkeys(_veiled([*readable, own], closed))),
    )


def _holds(entry: str, closed: Sequence[str]) -> bool:
    return any(is_below(folder, os.path.realpath(entry)) for folder in closed)


def _may_import(entry: str, own: str, closed: Sequence[str]) -> bool:
    """Say whether an import folder is Python's own or holds packages, and nothing of the judge's."""
    real = os.path.realpath(entry)
    python = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    if _holds(entry, (*closed, own)):
        return False
    if any(is_below(real, prefix) for prefix in python):
        return True
    return _holds_packages(real) and not any(is_below(real, folder) for folder in closed)


def _holds_packages(folder: str) -> bool:
    if os.path.basename(folder) in ("site-packages", "dist-packages"):
        return True
    return any(os.path.isdir(os.path.join(folder, name)) for name in ("torch", "msgspec"))


def _with_real(path: str) -> tuple[str, ...]:
    whole = os.path.abspath(path)
    return (whole, os.path.realpath(whole))


def _around(path: str, closed: Sequence[str]) -> Iterator[str]:
    """Yield ``path``, or where a closed folder lies in it all that lies next to that one.

    A grant covers what lies below it, without exception: a project in ``/usr/src`` would be in sight.
    """
    real = os.path.realpath(path)
    if real in closed:
        return
    if not _holds(real, closed):
        yield path
        return
    try:
        entries = list(os.scandir(real))
    except OSError:
        return
    for entry in entries:
        if not entry.is_symlink():
            yield from _around(entry.path, closed)


def _must_read(import_path: Sequence[str], own: str) -> Iterator[str]:
    yield os.__file__
    yield f"{own}/mini_kv/worker/main.py"
    for name in ("torch/__init__.py", "torch/lib/libtorch_cpu.so", "msgspec/__init__.py"):
        yield from [path for entry in import_path if os.path.exists(path := os.path.join(entry, name))][:1]


def _veiled(readable: Sequence[str], closed: Sequence[str]) -> Iterator[str]:
    """Yield what to cover: places of others, the project, and folders that a stranger could not enter."""
    home = os.path.realpath(os.path.expanduser("~"))
    for folder in (*_VEILED, home, os.path.realpath(tempfile.gettempdir()), *closed):
        if folder != "/" and not os.path.islink(folder):
            yield folder
    for path in readable:
        for above in reversed(Path(path).parents):
            if str(above) != "/" and not _is_open(str(above)):
                yield str(above)


def _is_open(folder: str) -> bool:
    try:
        return bool(os.stat(folder).st_mode & stat.S_IXOTH)
    except OSError:
        return True  # what is not there needs no cover


# --------------------------------------------------------------------------- policies


def wanted_features(landlock_abi: int, highest: IsolationLevel = IsolationLevel.ISOLATED) -> tuple[str, ...]:
    """Return every feature that is worth trying by this user on this kernel, none above ``highest``."""
    below = {name for level, names in LEVEL_FEATURES.items() if highest.reaches(level) for name in names}
    below |= _WITH_FILE_ACCESS if "file_access" in below else frozenset()
    every = _every_feature(landlock_abi)
    return tuple(name for name in every if highest is IsolationLevel.ISOLATED or name in below)


def _every_feature(landlock_abi: int) -> tuple[str, ...]:
    names = ["own_process", "scrubbed_environment", "no_new_privileges", "no_capabilities"]
    names += ["resource_limits", "system_call_filter", "file_access"]
    names += ["process_namespace", "network_namespace", "ipc_namespace", "host_namespace"]
    names += ["mount_namespace", "own_proc"]
    if landlock_abi >= landlock.TCP_ABI:
        names.append("tcp_rules")
    if landlock_abi >= landlock.SCOPE_ABI:
        names.append("scoped_signals")
    if os.geteuid() == 0:
        names.append("own_user")
    if not _may_administer():
        names.append("user_namespace")
    return tuple(names)


def _may_administer() -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
        held = next((line.split()[1] for line in stream if line.startswith("CapEff:")), "0")
    return bool(int(held, 16) >> 21 & 1)  # CAP_SYS_ADMIN


def user_for(number: int, features: Collection[str]) -> int:
    """Return the user id of the ``number``-th process, the judge's own where it cannot be another."""
    if "own_user" not in features:
        return os.getuid()
    return _FIRST_USER + (os.getpid() * 8 + number) % _USERS


def _is_needed(device: str) -> bool:
    # The nodes below nvidia-caps are for partitioned GPUs' administration: root's alone, and not needed.
    is_node = stat.S_ISCHR(os.stat(device).st_mode)
    return is_node and "nvidia-caps" not in device and os.access(device, os.R_OK | os.W_OK)


def worker_policy(
    ground: Ground, features: Collection[str], *, scratch: Path, inbox: Path, user: int
) -> Policy:
    """Return what one candidate worker enters: ``scratch`` to write in, ``inbox`` to read from."""
    cuda = ground.device == "cuda"
    devices = [*_DEVICES, *(path for form in _CUDA_DEVICES if cuda for path in glob.glob(form))]
    limits = {
        "CORE": 0,
        "FSIZE": FILE_BYTES,
        "NOFILE": 4096,
        "NPROC": PROCESSES,
        "CPU": CPU_SECONDS,
    }
    if not cuda:  # a CUDA context reserves far more addresses than it uses
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limits["AS"] = max(LEAST_ADDRESS_SPACE, memory * 3 // 4)
    return {
        "features": sorted(features),
        "listed": list(ground.listed),
        "readable": [*ground.readable, str(inbox)],
        "devices": devices,
        "writable": [str(scratch)],
        "private": ["/dev/shm"],
        "veiled": list(ground.veiled),
        "scratch": str(scratch),
        "scratch_bytes": SCRATCH_BYTES,
        "user": user,
        "must_read": list(ground.must_read),
        "must_open": [path for path in devices if _is_needed(path)],
        "limits": limits,
        # The CUDA driver makes an abstract socket when it starts; torch itself needs none.
        "socket_families": [_AF_UNIX],
        # On a CPU the judge's clock asks the kernel for the CPU time of all that the worker started.
        "accountable": not cuda,
    }


_COMPILER_FEATURES = frozenset({"no_capabilities", "no_new_privileges", "file_access", "system_call_filter"})


def compiler_policy(features: Collection[str], readable: Sequence[str]) -> Policy:
    """Return what a compiler enters: no network, files of the tools alone, one folder to write in.

    Its user stays the judge's, so that what it makes belongs to the judge.
    """
    return {
        "features": sorted(_COMPILER_FEATURES & set(features)),
        "listed": [],
        "readable": [*_SYSTEM, *dict.fromkeys(both for path in readable for both in _with_real(path))],
        "devices": list(_DEVICES),
        "private": [],
        "veiled": [],
        "user": os.getuid(),
        "must_read": [],
        "must_open": [],
        "limits": {},
        "socket_families": [_AF_UNIX],
        "accountable": False,
        "parent": os.getpid(),
    }
