"""What the null candidates' passes say of a case: values, form only, or nothing."""

from __future__ import annotations

import pytest

from mini_kv.core import protocol as p
from mini_kv.core.rules.null_candidates import common_nulls, judge_audits


def audit(*passed: str, elements: int = 4) -> p.CaseAudited:
    return p.CaseAudited(element_count=elements, passed=passed)


def test_a_null_that_chance_let_through_once_was_believed() -> None:
    assert common_nulls([audit("zeros", "the mean"), audit("the mean"), audit("the mean", "zeros")]) == (
        "the mean",
    )
    assert common_nulls([audit("zeros"), audit()]) == ()
    assert common_nulls([audit(), audit("zeros")]) == ()
    assert common_nulls([audit("zeros")]) == ("zeros",)
    assert common_nulls([]) == ()


def test_an_empty_result_proves_form_and_is_no_fault_of_the_card() -> None:
    assert judge_audits([audit("zeros", elements=0), audit("zeros", elements=0)]) == ("form", None)
    word, finding = judge_audits([audit("zeros", elements=0), audit("zeros", elements=1)])
    assert (word, finding is not None) == ("nothing", True)


def test_a_case_that_no_null_passes_proves_values() -> None:
    assert judge_audits([audit("zeros"), audit()]) == ("values", None)


@pytest.mark.parametrize(
    ("passed", "listed"),
    [
        (("zeros",), "zeros would"),
        (("zeros", "input 0"), "zeros and input 0 would"),
        (("zeros", "the mean", "input 0"), "zeros, the mean and input 0 would"),
    ],
)
def test_every_null_that_passes_is_named(passed: tuple[str, ...], listed: str) -> None:
    word, finding = judge_audits([audit(*passed)])
    assert finding is not None
    assert (word, finding.code, finding.evidence) == ("nothing", "NULL_PASSES", passed)
    assert finding.message.startswith(f"{listed} pass too, without computing anything")
