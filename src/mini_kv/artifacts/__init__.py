"""Evidence on disk: attempts that are written once, the index over them, baselines made from them."""

from __future__ import annotations

from mini_kv.artifacts.attempts import (
    check_files,
    describe_environment,
    is_correct,
    read_attempt,
)
from mini_kv.artifacts.baselines import load_baseline, promote_baseline, read_baseline
from mini_kv.artifacts.index import changed_rows, read_index, rebuild_index
from mini_kv.artifacts.writer import AttemptWriter

__all__ = [
    "AttemptWriter",
    "changed_rows",
    "check_files",
    "describe_environment",
    "is_correct",
    "load_baseline",
    "promote_baseline",
    "read_attempt",
    "read_baseline",
    "read_index",
    "rebuild_index",
]
