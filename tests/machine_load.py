"""How busy others keep the processors that this process may use, from ``/proc/stat``."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

# Of all processors' time: of two processors, a third of one.
QUIET_SHARE = 0.15
WINDOW_S = 1.0
# user, nice, system, irq, softirq, steal; idle and iowait are the rest. Guests are counted in user and nice.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
_COLUMNS = 8


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """Seconds since boot, summed over processors."""

    busy_s: float
    total_s: float


def parse(stat: str, cpus: Collection[int], ticks_per_s: int) -> CpuTimes:
    """Return the times of these processors from the text of ``/proc/stat``."""
    busy = total = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cpus:
            ticks = [int(column) for column in columns[:_COLUMNS]]
            busy += sum(ticks[column] for column in _BUSY_COLUMNS)
            total += sum(ticks)
    return CpuTimes(busy_s=busy / ticks_per_s, total_s=total / ticks_per_s)


def cpu_times() -> CpuTimes:
    """Return this moment's times of the processors that this process may use."""
    stat = Path("/proc/stat").read_text("ascii")
    return parse(stat, os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK"))


def own_s() -> float:
    """Return the processor time of this process and of its ended descendants."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def others_share(before: CpuTimes, after: CpuTimes, own_used_s: float) -> float:
    """Return which share of the time between the processors spent on others; 1 where no time has passed."""
    total_s = after.total_s - before.total_s
    if not total_s > 0.0:
        return 1.0
    return max(after.busy_s - before.busy_s - own_used_s, 0.0) / total_s


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What others took of the processors while something ran."""

    share: float
    load: float

    @property
    def quiet(self) -> bool:
        """Whether they left the machine alone."""
        return self.share <= QUIET_SHARE


def watched(action: Callable[[], object]) -> Watched:
    """Run ``action`` and return how busy others were meanwhile."""
    before, own_before_s = cpu_times(), own_s()
    action()
    share = others_share(before, cpu_times(), own_s() - own_before_s)
    return Watched(share=share, load=os.getloadavg()[0])


def wait_for_quiet(limit_s: float) -> Watched:
    """Wait until the machine is quiet for a moment, or ``limit_s`` have passed; return the last moment."""
    deadline = time.monotonic() + limit_s
    while True:
        moment = watched(lambda: time.sleep(WINDOW_S))
        if moment.quiet or time.monotonic() >= deadline:
            return moment
