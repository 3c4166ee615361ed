"""A trick that a busy machine hides is tried again alone; unseen on a quiet machine, it is a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

import machine_load
import zoo_harness as zoo
from machine_load import CpuTimes, Watched, others_share, parse

MEMBERS = {one.name: one for one in zoo.members()}
TRICK = MEMBERS["cache_by_content"]
TWIN = MEMBERS["short_calls"]
QUIET, BUSY = Watched(share=0.02, load=0.3), Watched(share=0.6, load=5.34)
# What is found in the times of a process, and nowhere else.
CODES_OF_TIMES = {"REPEATED_INPUTS_FASTER", "CLOCK_CONTRADICTS"}


def outcome(exit_code: int, status: str, code: str | None) -> zoo.Outcome:
    axis = {"name": "timing", "status": status, "code": code}
    return zoo.Outcome(
        exit_code=exit_code,
        attempt={"accepted": exit_code == 0, "axes": [axis]},
        codes=frozenset([code] if code else []),
        text="",
        elapsed_s=1.0,
    )


SEEN = outcome(7, "FAIL", "REPEATED_INPUTS_FASTER")
UNSEEN = outcome(0, "PASS", None)
DOUBTED = outcome(0, "UNVERIFIED", "UNSTABLE_ON_CPU")
BROKEN_TOOL = outcome(70, "UNVERIFIED", "NOT_REACHED")


def tries(*alone: tuple[zoo.Outcome, Watched, Watched]) -> Callable[[], zoo.Alone]:
    """Return tries in this order; one more is an error."""
    left = iter(alone)

    def again() -> zoo.Alone:
        found, before, meanwhile = next(left)
        return zoo.Alone(outcome=found, before=before, meanwhile=meanwhile)

    return again


def test_what_is_seen_at_once_is_not_tried_again() -> None:
    assert zoo.settle(TRICK, SEEN, tries()) == zoo.Settled()


@pytest.mark.parametrize("unseen", [UNSEEN, DOUBTED], ids=["accepted", "doubted"])
def test_a_trick_that_a_quiet_machine_does_not_see_is_a_failure(unseen: zoo.Outcome) -> None:
    settled = zoo.settle(TRICK, UNSEEN, tries((unseen, QUIET, QUIET)))
    assert "exit code 0, not 7" in settled.differences
    assert settled.undecided is None


def test_a_busy_machine_decides_nothing_and_a_quiet_one_after_it_does() -> None:
    settled = zoo.settle(TRICK, DOUBTED, tries((UNSEEN, BUSY, QUIET), (UNSEEN, QUIET, QUIET)))
    assert settled.differences and settled.undecided is None


def test_a_trick_that_is_seen_on_a_busy_machine_is_seen() -> None:
    assert zoo.settle(TRICK, UNSEEN, tries((UNSEEN, BUSY, BUSY), (SEEN, BUSY, BUSY))) == zoo.Settled()


@pytest.mark.parametrize(("before", "meanwhile"), [(BUSY, QUIET), (QUIET, BUSY), (BUSY, BUSY)])
def test_what_no_quiet_moment_decides_is_said_as_that(before: Watched, meanwhile: Watched) -> None:
    settled = zoo.settle(TRICK, UNSEEN, tries(*[(UNSEEN, before, meanwhile)] * zoo.TRIES_ALONE))
    assert settled.differences == ()
    assert settled.undecided == (
        f"could not be decided: the machine was busy (load {meanwhile.load:.1f}; others took 60% of its "
        "processors' time)"
    )


def test_load_excuses_no_accusation_of_an_honest_member() -> None:
    accused = outcome(7, "FAIL", "REPEATED_INPUTS_FASTER")
    for twin in (TWIN, replace(TWIN, timed=True)):
        assert zoo.settle(twin, accused, tries()).differences


def test_load_excuses_no_fault_of_the_tool() -> None:
    assert zoo.settle(TRICK, BROKEN_TOOL, tries()).differences
    assert zoo.settle(TRICK, UNSEEN, tries((BROKEN_TOOL, BUSY, BUSY))).differences


def test_load_excuses_no_member_whose_trick_takes_no_time() -> None:
    assert zoo.settle(replace(TRICK, timed=False), UNSEEN, tries()).differences


def test_every_trick_that_only_times_tell_is_marked() -> None:
    caught = [one for one in MEMBERS.values() if one.kind == "broken" and not one.known_undetected]
    of_times = {one.name for one in caught if one.code in CODES_OF_TIMES}
    assert {"cache_by_content", "remembers_short_calls"} <= of_times
    assert of_times <= {one.name for one in caught if one.timed}
    assert not [one.name for one in MEMBERS.values() if one.timed and one not in caught]


# ---------------------------------------------------------------------------- how busy others are

STAT = """\
cpu  30 4 16 150 10 2 2 6 9 0
cpu0 10 2 8 70 5 1 1 3 9 0
cpu1 20 2 8 80 5 1 1 3 0 0
cpu10 900 0 0 0 0 0 0 0 0 0
intr 5 5
"""


def test_only_the_processors_that_may_be_used_count() -> None:
    assert parse(STAT, {0, 1}, 10) == CpuTimes(busy_s=6.0, total_s=22.0)
    assert parse(STAT, {1}, 10) == CpuTimes(busy_s=3.5, total_s=12.0)


def test_ones_own_work_is_not_others() -> None:
    before, after = CpuTimes(busy_s=100.0, total_s=400.0), CpuTimes(busy_s=115.0, total_s=420.0)
    assert others_share(before, after, 0.0) == pytest.approx(0.75)
    assert others_share(before, after, 13.0) == pytest.approx(0.1)
    # Ticks are coarse: a little more than all is nothing.
    assert others_share(before, after, 15.2) == 0.0


def test_all_that_lies_below_a_process_is_its_own() -> None:
    processes = {1: (0, 9.0), 5: (1, 1.0), 7: (5, 2.0), 8: (7, 4.0), 6: (1, 8.0)}
    assert machine_load.descendants_s(processes, 5) == {7: 2.0, 8: 4.0}
    assert machine_load.descendants_s(processes, 8) == {}


def test_what_nobody_waited_for_is_seen_as_ones_own() -> None:
    """A caged worker's time reaches no parent: two seconds in three of a member's run were others'."""
    spending = machine_load.Spending()
    spending.start()
    # The child that works is ended together with its parent, and nobody is left to ask for its time.
    child = subprocess.Popen(["sh", "-c", "while :; do :; done & wait"], start_new_session=True)
    deadline = time.monotonic() + 60.0
    while sum(spending.seen().values()) < 0.5 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert spending.stop() >= 0.5


def test_no_time_at_all_is_no_quiet_time() -> None:
    same = CpuTimes(busy_s=1.0, total_s=2.0)
    assert not Watched(share=others_share(same, same, 0.0), load=0.0).quiet
    assert not Watched(share=float("nan"), load=0.0).quiet
    assert Watched(share=machine_load.QUIET_SHARE, load=9.0).quiet


def test_this_machine_tells_its_times() -> None:
    moment = machine_load.cpu_times()
    assert 0.0 < moment.busy_s < moment.total_s


def test_waiting_for_quiet_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.9, 0.5, 0.1, 0.0])
    monkeypatch.setattr(machine_load, "watched", lambda action: Watched(share=next(shares), load=1.0))
    assert machine_load.wait_for_quiet(60.0).share == 0.1
    shares = iter([0.9])
    assert machine_load.wait_for_quiet(0.0).share == 0.9
