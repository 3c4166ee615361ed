"""What is kept of honest runs, and what it adds up to."""

from __future__ import annotations

import msgspec

from mini_kv.core.record import Record
from research.gate_study.summary import Proportion, proportion

SCHEMA_VERSION = "1.0.0"
# The quality gate's word on the machine, which accuses nobody.
NO_ACCUSATION = ("UNSTABLE", "UNSTABLE_ON_CPU", "TIME_UNVERIFIED")


class HonestRun(Record, frozen=True, kw_only=True):
    """One fresh process of an honest candidate, timed on one case; times in microseconds.

    ``status`` and ``code`` are of the verdict's axis ``timing``, ``state`` of the check of the process.
    """

    number: int
    wave: int
    candidate: str
    case_id: str
    status: str
    code: str | None
    message: str | None
    state: str
    state_message: str | None
    codes: tuple[str, ...]
    messages: tuple[str, ...]
    stable: bool
    timing_trust: str
    p50_us: float | None
    net_p50_us: float | None
    outside_us: float | None
    kernel_us: float | None
    floor_bound_us: float | None
    checked_outputs: int
    tries: int
    elapsed_s: float

    @property
    def accused(self) -> str | None:
        """Return the code of what an honest candidate was accused of, if of anything."""
        if self.state != "PASS":
            return "GLOBAL_STATE_CHANGED"
        if self.status == "FAIL" and self.code not in NO_ACCUSATION:
            return self.code or "FAIL"
        return None


class HonestRuns(Record, frozen=True, kw_only=True):
    """``honest_runs.json``: all runs of one machine, on which ``busy`` other processes kept cores busy."""

    schema_version: str
    device: str
    device_name: str
    torch: str
    busy: int
    cores: int
    elapsed_s: float
    runs: tuple[HonestRun, ...]


def load_runs(raw: bytes) -> HonestRuns:
    """Decode ``honest_runs.json``; raises ``msgspec.ValidationError``."""
    return msgspec.json.decode(raw, type=HonestRuns)


def accused(found: HonestRuns) -> Proportion:
    """Return how many runs were accused of anything, of how many, with exact bounds."""
    return proportion(sum(run.accused is not None for run in found.runs), len(found.runs))


CHECKS = (
    ("the judge's own clock", ("CLOCK_CONTRADICTS",), "outside_us"),
    ("outputs of timed calls", ("TIMED_OUTPUT_WRONG",), "checked_outputs"),
    ("inputs after timed calls", ("INPUT_MUTATED_WHILE_TIMED",), "checked_outputs"),
    ("inputs never seen before (CPU)", ("REPEATED_INPUTS_FASTER",), "cpu"),
    ("physical floor (CUDA)", ("IMPOSSIBLE_TIME",), "floor_bound_us"),
    ("CUPTI's kernel times (CUDA)", ("WORK_OUTSIDE_PAIR",), "kernel_us"),
    ("state of the process", ("GLOBAL_STATE_CHANGED",), "state"),
    ("transcript and samples", ("SHORT_TRANSCRIPT", "NOT_A_TIME", "PROTOCOL_VIOLATION"), "state"),
)
"""Every check that can accuse a timed candidate: its codes, and the field that says it was live in a run."""


def by_check(found: HonestRuns) -> tuple[tuple[str, Proportion], ...]:
    """Return accusations by check, each over the runs in which it was live; left out where it never was."""
    rows: list[tuple[str, Proportion]] = []
    for name, codes, live in CHECKS:
        runs = [run for run in found.runs if _was_live(run, live, found.device)]
        hit = sum(run.accused in codes or bool({*codes} & {*run.codes}) for run in runs)
        if runs:
            rows.append((name, proportion(hit, len(runs))))
    return tuple(rows)


def _was_live(run: HonestRun, field: str, device: str) -> bool:
    if field == "cpu":
        return device == "cpu" and run.p50_us is not None
    return bool(getattr(run, field))
