"""What the product says of honest processes, and of the negative controls."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.benchmark.witnesses import disagreement, judge_claim
from mini_kv.core.record import Record
from mini_kv.core.records.benchmark import KernelWitness
from mini_kv.core.rules.quality import judge_quality
from research.gate_study.bounds import Proportion, proportion
from research.gate_study.decisions import Evidence, series_of
from research.gate_study.records import Control, cell_name


class ControlVerdict(Record, frozen=True, kw_only=True):
    """What the product says of a negative control; ``flagged`` is what it must be (not of ``clean``)."""

    name: str
    kernel: str
    flagged: bool
    codes: tuple[str, ...]
    p50_us: float
    robust_cv: float
    strangers: tuple[str, ...] = ()


class Claims(Record, frozen=True, kw_only=True):
    """Honest claims held against the judge's own clock, one kernel a process."""

    contradicted: Proportion
    unbounded: int
    widest_us: float | None


def claims(sessions: Sequence[Evidence]) -> Claims:
    """Return how often the clock contradicted an honest time, and the widest it exceeded one by.

    Every process counts, of whatever session: that a kernel was measured again makes none less honest.
    """
    contradicted, judged, unbounded = 0, 0, 0
    beyond: list[float] = []
    every = [
        (evidence, number, process)
        for evidence in sessions
        for number, process in enumerate(evidence.raw.processes)
    ]
    for evidence, number, process in every:
        if process.bounded is None:
            continue
        series = evidence.series(number, cell_name(process.bounded, 0))
        trust, _ = judge_claim(series, process.outside_us, evidence.device, checked=0, wrong=())
        if process.outside_us is None:
            unbounded += 1
            continue
        judged += 1
        contradicted += trust == "unverified"
        beyond.append(process.outside_us - series.net_p50_us)
    return Claims(
        contradicted=proportion(contradicted, judged),
        unbounded=unbounded,
        widest_us=max(beyond, default=None),
    )


def judge_control(control: Control) -> ControlVerdict:
    """Return what the product's quality gate and its second witness say of a control."""
    marker_us = control.marker_us or 0.0
    candidate = series_of(control.cell, marker_us, repeats=5)
    reference = series_of(control.reference, marker_us, repeats=5)
    found = list(judge_quality(candidate, reference, "cuda"))
    if control.kernel_us is not None:
        witness = KernelWitness(kernel_us=control.kernel_us, samples_us=(), marker_us=marker_us, kernels=())
        found += disagreement(candidate, witness)
    codes = [finding.code for finding in found] + (["GPU_SHARED"] if control.strangers else [])
    return ControlVerdict(
        name=control.name,
        kernel=control.kernel,
        flagged=bool(codes),
        codes=tuple(codes),
        p50_us=candidate.p50_us,
        robust_cv=candidate.robust_cv,
        strangers=control.stranger_names,
    )
