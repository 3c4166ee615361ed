"""A view of the file system of one's own: what the candidate has no use for is not there.

A veiled folder is an empty tmpfs in which only what the policy names is mounted back. So a file keeps
its path, also below a home folder that a stranger could not enter.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from mini_kv.system.sandbox.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    mount,
)

_NVIDIA_PROC = "/proc/driver/nvidia"


def make_private() -> None:
    """Keep what is mounted from here on to this namespace."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def mount_proc() -> None:
    """Mount a ``/proc`` that shows this process namespace alone; raises ``OSError`` where it is refused.

    A container's own view of the NVIDIA driver lies on top of the host's: it is put back there.
    """
    driver = None
    with contextlib.suppress(OSError):
        driver = os.open(_NVIDIA_PROC, os.O_PATH | os.O_CLOEXEC)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if driver is not None:
        with contextlib.suppress(OSError):
            mount(f"/proc/self/fd/{driver}", _NVIDIA_PROC, None, MS_BIND | MS_REC)
        os.close(driver)


def veil(policy: dict[str, Any]) -> None:
    """Cover the policy's ``veiled`` folders, mount back what it grants below them.

    What may be written is memory of a bounded size: nothing reaches the disk, nothing is left.
    """
    granted = [*policy["listed"], *policy["readable"], *policy["devices"]]
    covered: list[str] = []
    for folder in sorted(policy["veiled"], key=len):
        if any(is_below(folder, above) for above in covered) or not os.path.isdir(folder):
            continue
        _cover(folder, [path for path in granted if is_below(path, folder) and path != folder])
        covered.append(folder)
    options = f"mode=0777,size={policy['scratch_bytes']},nr_inodes=100k"
    for folder in (*policy["writable"], *policy["private"]):
        os.makedirs(folder, exist_ok=True)
        mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, options)


def is_below(path: str, folder: str) -> bool:
    """Say whether ``path`` is ``folder`` or lies in it; both are absolute and without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _cover(folder: str, granted: list[str]) -> None:
    sources: list[tuple[str, int]] = []
    # An outer grant holds the inner ones, unless something covers them again.
    for path in sorted(granted, key=len):
        if not any(is_below(path, outer) for outer, _ in sources) and os.path.lexists(path):
            sources.append((path, os.open(path, os.O_PATH | os.O_CLOEXEC)))
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")
    for path, descriptor in sources:
        _mount_back(path, descriptor)
        os.close(descriptor)


def _mount_back(path: str, descriptor: int) -> None:
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    mount(source, path, None, MS_BIND | MS_REC)
