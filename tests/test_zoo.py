"""Every member of tests/zoo gets the verdict that its expect.yaml states; docs/trust.md lists them all."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import zoo_harness as zoo
from mini_kv.cli import self_test

MEMBERS = zoo.members()
HOSTILE = tuple(one for one in MEMBERS if one.kind == "broken" and not one.known_undetected)
TWINS = tuple(one for one in MEMBERS if one.kind == "twin")
EVIDENCE = sorted((zoo.ROOT / "evidence").glob("*/zoo_gpu*.json"))
# Members that have not been on a GPU since they were written.
NOT_RUN_YET: set[str] = set()
PAGE = zoo.ROOT / "docs" / "trust.md"
BEGIN, END = "<!-- zoo: begin -->\n", "<!-- zoo: end -->\n"


def marks(member: zoo.Expectation) -> list[pytest.MarkDecorator]:
    gpu = [pytest.mark.gpu] if member.device == "cuda" else []
    if member.gpus > max(len(glob.glob("/dev/nvidia[0-9]*")), 1):
        gpu.append(pytest.mark.skip(reason=f"needs {member.gpus} GPUs"))
    # Every change must pass the quick ones. The others demand of a defence what a quick one, the self-test or
    # tests/e2e demands of it already, by another trick; 'make zoo' and 'make test-all' run them all.
    nightly = [] if member.quick else [pytest.mark.nightly]
    # Its tries alone, and the waiting for quiet, follow on the first one.
    patient = [pytest.mark.timeout(1200)] if member.timed else []
    return [pytest.mark.zoo, pytest.mark.slow, *nightly, *gpu, *patient]


@pytest.mark.parametrize("member", [pytest.param(one, id=one.name, marks=marks(one)) for one in MEMBERS])
def test_member_gets_its_verdict(
    member: zoo.Expectation, tmp_path: Path, machine_alone: Callable[[], AbstractContextManager[None]]
) -> None:
    folder = zoo.ZOO / member.name
    before = zoo.fingerprint(folder)
    outcomes = [zoo.run_member(member, tmp_path / "archive")]

    def again() -> zoo.Alone:
        with machine_alone():
            tried = zoo.run_alone(member, tmp_path / f"alone-{len(outcomes)}")
        outcomes.append(tried.outcome)
        return tried

    settled = zoo.settle(member, outcomes[0], again)
    assert settled.differences == (), outcomes[-1].text
    assert zoo.fingerprint(folder) == before
    assert zoo.leftovers() == []
    if settled.undecided is not None:
        pytest.skip(settled.undecided)


def test_zoo_is_large_enough_to_mean_something() -> None:
    assert len(HOSTILE) >= 45
    assert len(TWINS) >= 12
    assert all(one.exit_code != 0 for one in HOSTILE)
    assert all(one.exit_code == 0 and one.code is None for one in TWINS)


def test_every_change_meets_every_kind_of_defence() -> None:
    # What catches a member names the method's principles (P1 to P14): each has a quick member, or one that
    # the self-test verifies in the same run of the tests.
    known = {one.name for one in self_test.KNOWN}
    hostile = [one for one in HOSTILE if one.device == "cpu"]
    met = [one for one in hostile if one.quick or one.name in known]
    assert principles(met) == principles(hostile) >= {"P1", "P14"}
    elsewhere = {"forged answers", "form"}  # tests/e2e/test_misfits.py
    assert {one.group for one in met} == {one.group for one in hostile} - elsewhere


def principles(met: Iterable[zoo.Expectation]) -> set[str]:
    return {name for one in met for name in re.findall(r"\bP\d+\b", one.caught_by)}


def test_documented_table_is_the_one_that_the_expectations_make() -> None:
    text = PAGE.read_text("utf-8")
    assert BEGIN in text and END in text
    assert text.partition(BEGIN)[2].partition(END)[0] == zoo.table(MEMBERS)


def test_committed_gpu_results_are_what_every_member_must_get() -> None:
    found = {result["name"]: result for path in EVIDENCE for result in json.loads(path.read_text("utf-8"))}
    if not found:
        pytest.skip("no results of GPU members are committed")
    missing = {one.name for one in MEMBERS if one.device == "cuda" and one.gpus == 1} - found.keys()
    assert missing == NOT_RUN_YET
    for one in MEMBERS:
        if one.name in found:
            assert found[one.name]["differences"] == [], one.name
            assert found[one.name]["exit_code"] == one.exit_code
