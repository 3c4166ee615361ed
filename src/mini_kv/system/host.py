"""Facts of the host: processor, memory, operating system, disk, and what its kernel offers for isolation."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import shutil
import subprocess
from pathlib import Path

from mini_kv.core.record import Record
from mini_kv.core.time_limits import NAMESPACE_TIMEOUT_S

_PR_GET_SECCOMP = 21
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_CREATE_RULESET_VERSION = 1


class HostFacts(Record, frozen=True, kw_only=True):
    """The host as a process of this container sees it."""

    os: str
    kernel: str
    machine: str
    cpu_model: str
    cpu_count: int
    memory_bytes: int
    python: str


class IsolationFacts(Record, frozen=True, kw_only=True):
    """What this kernel and user can isolate with. ``landlock_abi`` is 0 where there is none."""

    landlock_abi: int
    user_namespaces: bool
    seccomp: bool


def host_facts() -> HostFacts:
    """Read the host's facts; takes about a millisecond."""
    return HostFacts(
        os=_os_name(),
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu_model=_cpu_model(),
        cpu_count=usable_cpus(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        python=platform.python_version(),
    )


def usable_cpus() -> int:
    """Return how many processors this process may use: its affinity, and its container's quota."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):
        return count  # no cgroup v2 here, or "max": no quota


def free_disk_bytes(folder: Path) -> int:
    """Return the bytes free for this user on the file system of ``folder``."""
    return shutil.disk_usage(folder).free


def isolation_facts(search_path: str) -> IsolationFacts:
    """Try each way of isolating once; takes about 20 ms. Nothing of this process changes."""
    return IsolationFacts(
        landlock_abi=_landlock_abi(),
        user_namespaces=_user_namespaces(search_path),
        seccomp=_libc().prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0,
    )


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu_model() -> str:
    names = ("model name", "Model", "Hardware")
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                name, _, value = line.partition(":")
                if name.strip() in names and value.strip():
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _landlock_abi() -> int:
    version = _libc().syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint32(_LANDLOCK_CREATE_RULESET_VERSION),
    )
    return max(0, int(version))


def _user_namespaces(search_path: str) -> bool:
    """Try to enter a user namespace, since a kernel's settings alone do not tell (AppArmor, containers).

    Another program does it: a fork of this process would not be safe while its threads run.
    """
    program = shutil.which("unshare", path=search_path)
    if program is not None:
        return _succeeds([program, "--user", "true"])
    try:
        return int(Path("/proc/sys/user/max_user_namespaces").read_text(encoding="ascii")) > 0
    except (OSError, ValueError):
        return False


def _succeeds(argv: list[str]) -> bool:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=NAMESPACE_TIMEOUT_S, check=False)
        return done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
