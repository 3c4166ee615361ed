"""Evidence on disk: attempts that are written once, the index over them, baselines made from them."""

from __future__ import annotations

from mini_kv.artifacts.attempts import (
    check_files,
    describe_environment,
    is_correct,
    new_attempt_id,
    read_attempt,
    utc_text,
)
from mini_kv.artifacts.baselines import load_baseline, promote_baseline
from mini_kv.artifacts.folder import ArchiveFolder
from mini_kv.artifacts.index import changed_rows, read_index, rebuild_index
from mini_kv.artifacts.writer import AttemptWriter

__all__ = [
    "ArchiveFolder",
    "AttemptWriter",
    "changed_rows",
    "check_files",
    "describe_environment",
    "is_correct",
    "load_baseline",
    "new_attempt_id",
    "promote_baseline",
    "read_attempt",
    "read_index",
    "rebuild_index",
    "utc_text",
]
