"""A GPU's second witness: what is kept of it, and that its silence is told and leaves a case unstable."""

from __future__ import annotations

import pytest

from fake_seats import CRASHED, TIMED, Crew, double_card, said
from mini_kv.benchmark import witnesses
from mini_kv.benchmark.case_timing import finish_case, take_case
from mini_kv.benchmark.plan import measure_timer, overall
from mini_kv.benchmark.witnesses import WITNESS_CALLS, Kernels, witness_kernels
from mini_kv.core import protocol as p
from mini_kv.core.records.benchmark import BenchmarkCase, KernelWitness
from mini_kv.core.records.results import Status
from mini_kv.system.workers import Answer, Lost

CASE = double_card().case(TIMED)
SEEN = KernelWitness(kernel_us=9.0, samples_us=(9.0,), marker_us=0.02, kernels=(), outside_us=0.0)
TRACED = said(p.KernelsWitnessed(witness=SEEN))
REFUSED = said(p.Failed(code="X", message="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"))


def crew_with(reference: Answer, candidate: Answer | Lost) -> Crew:
    crew = Crew()
    crew.on("oracle", p.WitnessKernels, lambda *_: reference)
    crew.on("candidate", p.WitnessKernels, lambda *_: candidate)
    return crew


def heard(reference: Answer, candidate: Answer | Lost) -> Kernels:
    return witness_kernels(crew_with(reference, candidate).timed(device="cuda"), CASE)


def test_both_sides_are_traced_as_the_card_times_them() -> None:
    crew = crew_with(TRACED, TRACED)
    card = double_card(plan={"cache": "cold"})
    assert witness_kernels(crew.timed(device="cuda", card=card), CASE) == Kernels(
        candidate=SEEN, reference=SEEN
    )
    asked = [(one.role, one.request) for one in crew.asked(p.WitnessKernels)]
    request = p.WitnessKernels(case_id=TIMED, calls=WITNESS_CALLS, cache="cold")
    assert asked == [("oracle", request), ("candidate", request)]


@pytest.mark.parametrize(
    ("reference", "candidate", "why"),
    [
        (REFUSED, TRACED, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
        (said(p.Done()), TRACED, "no answer"),
        (TRACED, REFUSED, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
        (TRACED, said(p.Done()), "the candidate could not be timed: Done"),
        (TRACED, CRASHED, CRASHED.message),
    ],
)
def test_a_side_without_kernel_times_is_told(reference: Answer, candidate: Answer | Lost, why: str) -> None:
    found = heard(reference, candidate)
    assert found.candidate is None
    assert found.reference == (SEEN if reference is TRACED else None)
    assert found.finding is not None
    assert (found.finding.code, why in found.finding.message) == ("WITNESS_MISSING", True)


def judged(monkeypatch: pytest.MonkeyPatch, reference: Answer, candidate: Answer | Lost) -> BenchmarkCase:
    monkeypatch.setattr(witnesses, "outside_slope_us", lambda *_, **__: 9.0)  # the judge's clock agrees
    crew = crew_with(reference, candidate)
    subject = crew.timed(device="cuda")
    timer = measure_timer(subject)
    return finish_case(subject, take_case(subject, CASE), timer)


def test_a_case_without_its_second_witness_is_not_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    record = judged(monkeypatch, TRACED, REFUSED)
    assert [finding.code for finding in record.findings] == ["WITNESS_MISSING"]
    assert (record.status, record.stable, record.candidate_kernel) == (Status.PASS, False, None)
    assert record.kernel_speedup is None
    assert overall([record], unstable_fails=True) is Status.FAIL


def test_a_case_with_both_witnesses_is_stable_and_its_floor_is_without_the_empty_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = judged(monkeypatch, TRACED, TRACED)
    assert (record.findings, record.stable, record.kernel_speedup) == ((), True, 1.0)
    assert record.candidate is not None
    assert record.candidate.floor_us == pytest.approx(0.05 - SEEN.marker_us)
    assert overall([record], unstable_fails=True) is Status.PASS


def test_a_cpu_has_no_second_witness_and_misses_none() -> None:
    crew = crew_with(REFUSED, REFUSED)
    assert witness_kernels(crew.timed(), CASE) == Kernels()
    assert not crew.asked(p.WitnessKernels)
