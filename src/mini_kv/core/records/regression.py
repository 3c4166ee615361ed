"""What the regression gate leaves: the comparison with a baseline, and what was decided."""

from __future__ import annotations

import enum

from mini_kv.core.record import Record
from mini_kv.core.records.results import Sha256


class Decision(enum.Enum):
    """The gate's vocabulary: what is unclear stays unclear, and is no PASS."""

    PASS = "PASS"
    PASS_WITH_WARNING = "PASS_WITH_WARNING"
    SLOWER = "SLOWER"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INCOMPARABLE = "INCOMPARABLE"
    NO_BASELINE = "NO_BASELINE"


class PairedTest(Record, frozen=True, kw_only=True):
    """Candidate against rebuilt baseline over pairs of fresh processes, in net time.

    ``ratio`` is the geometric mean of candidate / baseline (> 1 is slower), ``lower`` and ``upper`` its
    one-sided bounds; ``adjusted_p_value`` is after Holm's correction over the cases. ``set_ratios`` are
    the same mean of each set of pairs alone: a second set is taken where the first leaves a doubt.
    """

    pairs: int
    ratio: float
    lower: float
    upper: float
    p_value: float
    adjusted_p_value: float
    log_ratios: tuple[float, ...] = ()
    set_ratios: tuple[float, ...] = ()


class CaseComparison(Record, frozen=True, kw_only=True):
    """Current against baseline for one case; ratios are current / baseline, > 1 is slower."""

    case_id: str
    decision: Decision
    code: str
    message: str
    p50_ratio: float | None
    p95_ratio: float | None
    reference_ratio: float | None
    confirmation_p50_ratio: float | None = None
    paired: PairedTest | None = None


class Regression(Record, frozen=True, kw_only=True):
    """``regression.json``."""

    schema_version: str
    decision: Decision
    code: str
    message: str
    baseline: str | None
    baseline_sha256: Sha256 | None
    cases: tuple[CaseComparison, ...]
