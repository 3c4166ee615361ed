"""Owning processes whole: adopt orphans, kill trees, leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Make this process the reaper of all descendants, so that a double fork cannot escape it."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _parents() -> dict[int, int]:
    # One pass over /proc: the kernel's own list of children is a build option that is often off.
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            # Unbuffered bytes: this is asked often, and text through pathlib takes twice as long.
            with contextlib.suppress(OSError, ValueError), open(f"{entry.path}/stat", "rb", 0) as stat:
                # The command name (field 2) is in parentheses and may itself hold any character.
                parents[int(entry.name)] = int(stat.read().rpartition(b")")[2].split()[1])
    return parents


def children(parent: int) -> tuple[int, ...]:
    """Return the direct children of a process, zombies included."""
    return tuple(process for process, of in _parents().items() if of == parent)


def descendants(parent: int) -> tuple[int, ...]:
    """Return all descendants of a process, nearest first."""
    parents = _parents()
    found = [process for process, of in parents.items() if of == parent]
    for ancestor in found:
        found += [process for process, of in parents.items() if of == ancestor]
    return tuple(found)


def process_name(process: int) -> str | None:
    """Return the name that the kernel has for a process; ``None`` where it is gone or out of sight."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
    return None


class Family:
    """This process and all it has started, those included that have ended since.

    A GPU's driver may list a process for a moment longer than /proc does. One that was a descendant at
    some look and is gone is still counted; its number in the hands of a living stranger is not.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def members(self) -> frozenset[int]:
        """Look, and return all members."""
        now = {os.getpid(), *descendants(os.getpid())}
        self._seen |= now
        ended = {process for process in self._seen - now if not os.path.exists(f"/proc/{process}")}
        return frozenset(now | ended)


def cpu_time_ns(leader: int) -> int | None:
    """Return the CPU time that a process and all its descendants have used, by the kernel's own account.

    Threads that have ended count, and so do children that have, by ticks of 10 ms: work that is handed to
    either is work all the same. ``None`` where the process is gone or the kernel does not tell.
    """
    total = _own_cpu_time_ns(leader)
    if total is None:
        return None
    # One that ends between the two looks is in its parent's account by then, or is missed once.
    return total + sum(_own_cpu_time_ns(process) or 0 for process in descendants(leader))


def _own_cpu_time_ns(process: int) -> int | None:
    # clock_getcpuclockid(3) for a process: its id's complement, and 2 for the scheduler's own account.
    try:
        used_ns = time.clock_gettime_ns((~process << 3) | 2)
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        reaped_ticks = int(fields[13]) + int(fields[14])
    except (OSError, ValueError, IndexError):
        return None
    return used_ns + reaped_ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def stop_tree(leader: int) -> tuple[int, ...]:
    """Stop a process and all its descendants; return their ids, for :func:`continue_processes`.

    What is forked meanwhile is met by another look, until a look finds nothing new.
    """
    stopped: list[int] = []
    while fresh := [process for process in (leader, *descendants(leader)) if process not in stopped]:
        for process in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGSTOP)
        stopped += fresh
    return tuple(stopped)


def continue_processes(stopped: Sequence[int]) -> None:
    """Let processes go on; one that is gone is fine."""
    for process in stopped:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGCONT)


def kill_group(leader: int) -> None:
    """Send SIGKILL to a process group; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_descendants(leader: int) -> int:
    """Kill a process, its group and every descendant, whatever session they fled to."""
    fled = descendants(leader)
    kill_group(leader)
    killed = 0
    for process in (leader, *fled):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
            killed += 1
    return killed


def sweep_orphans(known: frozenset[int]) -> int:
    """Kill and reap children of this process that it did not start itself; return how many.

    Only an adopted orphan of a worker is such a child: its parent has died and it was re-parented
    here (:func:`adopt_orphans`). Killing one may orphan more, so this repeats until none is left.
    """
    swept = 0
    for _ in range(100):
        strays = [process for process in children(os.getpid()) if process not in known]
        if not strays:
            break
        for process in strays:
            kill_descendants(process)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
            swept += 1
    return swept
