"""YAML -> TaskCard and CandidateManifest: strict, every error at once, with file and line."""

from mini_kv.system.paths import find_project_root
from mini_kv.task_card.embedded_manifest import unpack_candidate
from mini_kv.task_card.loading import (
    MANIFEST_FILE,
    LoadedCard,
    LoadedManifest,
    load_manifest,
    load_task_card,
    problems_at,
)
from mini_kv.task_card.manifest_rules import check_pair
from mini_kv.task_card.reference_rules import reference_findings

__all__ = [
    "MANIFEST_FILE",
    "LoadedCard",
    "LoadedManifest",
    "check_pair",
    "find_project_root",
    "load_manifest",
    "load_task_card",
    "problems_at",
    "reference_findings",
    "unpack_candidate",
]
