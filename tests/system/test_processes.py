"""Process trees are found and ended whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from mini_kv.system.processes import (
    Family,
    adopt_orphans,
    children,
    continue_processes,
    cpu_time_ns,
    descendants,
    kill_descendants,
    kill_group,
    process_name,
    stop_tree,
    sweep_orphans,
)

SLEEP = "import time; time.sleep(600)"
# A child in the same group and a grandchild in a session of its own; the pids go to stdout.
TREE = f"""
import subprocess, sys
a = subprocess.Popen([sys.executable, "-Sc", {SLEEP!r}])
b = subprocess.Popen([sys.executable, "-Sc", {SLEEP!r}], start_new_session=True)
print(a.pid, b.pid, flush=True)
import time; time.sleep(600)
"""


def start(source: str, **options: bool) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-Sc", source], stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def tree() -> tuple[subprocess.Popen[str], list[int]]:
    leader = start(TREE, start_new_session=True)
    assert leader.stdout is not None
    return leader, [int(word) for word in leader.stdout.readline().split()]


def test_children_and_descendants_are_found_whatever_their_session() -> None:
    leader, below = tree()
    try:
        assert leader.pid in children(os.getpid())
        assert set(children(leader.pid)) == set(below)
        assert {leader.pid, *below} <= set(descendants(os.getpid()))
    finally:
        kill_descendants(leader.pid)
        leader.wait()


def test_killing_a_tree_reaches_those_that_fled_to_another_session() -> None:
    leader, below = tree()
    assert kill_descendants(leader.pid) == 3
    leader.wait()
    assert eventually(lambda: not any(map(alive, below)))


def test_killing_what_is_gone_is_no_error() -> None:
    process = start("pass")
    process.wait()
    kill_group(process.pid)
    assert kill_descendants(process.pid) == 0
    assert descendants(process.pid) == ()


def test_a_name_with_parentheses_does_not_hide_a_process() -> None:
    # Field 2 of /proc/PID/stat is the name in parentheses; ") 1 (" would shift the parent's number.
    source = f"open('/proc/self/comm', 'w').write(') S 1 ('); print('x', flush=True); {SLEEP}"
    process = start(source)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in children(os.getpid())
    finally:
        process.kill()
        process.wait()


def test_orphans_are_adopted_and_swept_and_own_children_are_spared() -> None:
    assert adopt_orphans()
    older = children(os.getpid())
    mine = start(SLEEP)
    try:
        parent = start(
            "import os, sys, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        os.close(1)\n"
            "        time.sleep(600)\n"
            "    os._exit(0)\n"
            "os.wait()"
        )
        parent.wait()
        known = frozenset({mine.pid, *older})
        strays = set(children(os.getpid())) - known
        assert len(strays) == 1
        assert sweep_orphans(known) == 1
        assert not any(map(alive, strays))
        assert alive(mine.pid)
        assert sweep_orphans(known) == 0
    finally:
        mine.kill()
        mine.wait()


def test_a_swept_process_that_ignores_signals_is_gone() -> None:
    adopt_orphans()
    source = f"import signal; signal.pthread_sigmask(0, range(1, 65)); print('x', flush=True); {SLEEP}"
    process = start(source, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGTERM)
    assert kill_descendants(process.pid) == 1
    assert process.wait(5) == -signal.SIGKILL


def test_a_family_is_this_process_and_all_it_started_also_what_has_just_ended() -> None:
    family = Family()
    leader, below = tree()
    assert {os.getpid(), leader.pid, *below} <= family.members()
    kill_descendants(leader.pid)
    leader.wait()
    assert eventually(lambda: not any(alive(process) for process in below))
    # The driver of a GPU may list them for a moment longer.
    assert {leader.pid, *below} <= family.members()
    assert leader.pid not in Family().members()


def test_a_living_process_that_is_no_descendant_is_no_family_though_its_number_was_one() -> None:
    family = Family()
    family._seen.add(os.getppid())
    assert os.getppid() not in family.members()


def test_a_process_has_the_kernels_name_and_none_once_it_is_gone() -> None:
    process = start(SLEEP)
    assert process_name(process.pid)
    process.kill()
    process.wait()
    assert process_name(process.pid) is None


def test_a_stopped_tree_uses_no_time_and_goes_on_afterwards() -> None:
    """A candidate's threads and children could take the cores from whoever was timed next to it."""
    spin = "import os; os.fork(); print('ready', flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() and process.stdout.readline()
        stopped = stop_tree(process.pid)
        assert set(stopped) == {process.pid, *descendants(process.pid)} and len(stopped) == 2
        time.sleep(0.05)
        before = [cpu_time_ns(one) for one in stopped]
        time.sleep(0.2)
        assert [cpu_time_ns(one) for one in stopped] == before
        continue_processes(stopped)
        deadline = time.monotonic() + 10.0
        while any(cpu_time_ns(one) == was for one, was in zip(stopped, before, strict=True)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        kill_descendants(process.pid)
        process.wait()
    continue_processes(stopped)


SPEND = """
import os, sys, threading, time
def spend():
    until = time.thread_time() + 0.3
    while time.thread_time() < until: pass
if sys.argv[1] == "thread":
    one = threading.Thread(target=spend); one.start(); one.join()
elif os.fork() == 0:
    spend()
    if sys.argv[1] == "child": os._exit(0)
    print("spent", flush=True)
    time.sleep(600)
elif sys.argv[1] == "child":
    os.wait()
if sys.argv[1] != "living child": print("spent", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("where", ["thread", "child", "living child"])
def test_work_of_threads_and_children_that_ended_is_counted(where: str) -> None:
    """Only living threads were: a claim stayed unbounded when the work was done by a thread a call."""
    process = subprocess.Popen([sys.executable, "-c", SPEND, where], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"spent\n"
        used_ns = cpu_time_ns(process.pid)
        assert used_ns is not None and used_ns >= 280_000_000
    finally:
        kill_descendants(process.pid)
        process.wait()
    assert cpu_time_ns(process.pid) is None
