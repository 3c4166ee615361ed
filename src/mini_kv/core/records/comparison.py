"""``comparison.json``: two candidates gated and timed in one run, and which of them is faster."""

from __future__ import annotations

from typing import Literal

import msgspec

from mini_kv.core.record import Record
from mini_kv.core.records.attempt import ArchivedFile, Axis
from mini_kv.core.records.benchmark import TimingTrust
from mini_kv.core.records.card import AxisValue, DeviceKind, ParamValue
from mini_kv.core.records.results import Finding, Sha256

ComparedWord = Literal["faster", "slower", "no_difference", "undecided"]


class SideTime(Record, frozen=True, kw_only=True):
    """One case on one side, from the plan's samples; the whole record is in the side's ``benchmark.json``."""

    case_id: str
    stable: bool
    p50_us: float | None
    p95_us: float | None
    net_p50_us: float | None
    kernel_us: float | None
    gb_per_s: float | None
    robust_cv: float | None
    timing_trust: TimingTrust


class ComparedSide(Record, frozen=True, kw_only=True):
    """One of the two candidates: what was built and gated in this run. Its files lie below ``folder``."""

    label: Literal["A", "B"]
    folder: str
    candidate_id: str
    candidate_version: str
    candidate_folder: str
    manifest_sha256: Sha256
    build_key: Sha256 | None
    library_sha256: Sha256 | None
    source_sha256: dict[str, Sha256]
    exit_code: int
    axes: tuple[Axis, ...]
    findings: tuple[Finding, ...]
    times: tuple[SideTime, ...]


class RatioEstimate(Record, frozen=True, kw_only=True):
    """Net time of B over net time of A, geometric mean over pairs of fresh processes (> 1: B is slower).

    ``lower`` and ``upper`` are the two-sided interval at ``confidence`` by Student's t on ``log_ratios``,
    of which there is one a pair: the process is the unit of replication.
    """

    pairs: int
    ratio: float
    lower: float
    upper: float
    confidence: float
    log_ratios: tuple[float, ...]


class ComparedCase(Record, frozen=True, kw_only=True):
    """One timed case. ``word`` is what B is compared with A.

    ``sample_ratio`` is B / A of net P50 over the plan's samples in one pair of processes, ``kernel_ratio``
    the same of CUPTI's device times; neither has an interval. ``reference_spread`` is how far the
    reference's P50 moved between the repeats of this run, as a fraction.
    """

    case_id: str
    params: dict[str, ParamValue]
    word: ComparedWord
    message: str
    ratio: RatioEstimate | None
    sample_ratio: float | None
    kernel_ratio: float | None
    reference_p50_us: float | None
    reference_spread: float | None
    findings: tuple[Finding, ...]
    axis_values: dict[str, AxisValue] = msgspec.field(default_factory=dict)


class Comparison(Record, frozen=True, kw_only=True):
    """``comparison.json``. ``word`` and ``ratio`` are of the geometric mean over all cases, equal weights."""

    schema_version: str
    comparison_id: str
    task_id: str
    operator: str
    operator_version: str
    device: DeviceKind
    suite_sha256: Sha256
    card_sha256: Sha256
    environment_key: Sha256
    reference_sha256: Sha256 | None
    timer: str
    cache: Literal["cold", "hot"]
    started_at: str
    elapsed_s: float
    stage_elapsed_s: dict[str, float]
    complete: bool
    accepted: bool
    exit_code: int
    word: ComparedWord
    message: str
    ratio: RatioEstimate | None
    a: ComparedSide
    b: ComparedSide
    cases: tuple[ComparedCase, ...]
    findings: tuple[Finding, ...]
    secret_seeds: dict[str, str]
    files: tuple[ArchivedFile, ...]
