"""How busy others keep the processors that this process may use, from ``/proc/stat``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

# Of all processors' time: of two processors, a third of one.
QUIET_SHARE = 0.15
WINDOW_S = 1.0
# Between two looks at the processes: what one uses between the last and its end is not seen.
LOOK_S = 0.25
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


def descendants_s(processes: Mapping[int, tuple[int, float]], root: int) -> dict[int, float]:
    """Return the seconds that each process below ``root`` has used; ``processes`` has parents and seconds."""
    children: dict[int, list[int]] = {}
    for process, (parent, _) in processes.items():
        children.setdefault(parent, []).append(process)
    found: dict[int, float] = {}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = processes[child][1]
            waiting.append(child)
    return found


def _processes() -> dict[int, tuple[int, float]]:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[int, float]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            # After the name, which may hold anything: state, parent, ..., times in user and in system mode.
            columns = Path("/proc", name, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(name)] = (int(columns[1]), (int(columns[11]) + int(columns[12])) / ticks_per_s)
    return found


class Spending(threading.Thread):
    """Looks at the processes below this one, again and again, until it is told to stop.

    What the system tells a parent of its ended children misses those of a caged worker, which are ended
    together with who would have waited for them.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stop_now = threading.Event()
        self._first = self._last = descendants_s(_processes(), os.getpid())

    def run(self) -> None:
        while not self._stop_now.wait(LOOK_S):
            self._last = self._last | descendants_s(_processes(), os.getpid())

    def seen(self) -> Mapping[int, float]:
        """Return the processor time of each process below this one when it was last seen."""
        return self._last

    def stop(self) -> float:
        """Return the processor time that they have used since the start, as far as it was seen."""
        self._stop_now.set()
        self.join()
        return sum(last_s - self._first.get(process, 0.0) for process, last_s in self._last.items())


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
    """Run ``action`` and return how busy others than this process and those below it were meanwhile."""
    before, own_before_s = cpu_times(), time.process_time()
    spending = Spending()
    spending.start()
    try:
        action()
    finally:
        below_s = spending.stop()
    own_s = below_s + time.process_time() - own_before_s
    return Watched(share=others_share(before, cpu_times(), own_s), load=os.getloadavg()[0])


def wait_for_quiet(limit_s: float) -> Watched:
    """Wait until the machine is quiet for a moment, or ``limit_s`` have passed; return the last moment."""
    deadline = time.monotonic() + limit_s
    while True:
        moment = watched(lambda: time.sleep(WINDOW_S))
        if moment.quiet or time.monotonic() >= deadline:
            return moment
