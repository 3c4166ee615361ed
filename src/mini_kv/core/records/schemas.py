"""JSON Schema (Draft 2020-12) of every record that is written, generated from the model itself."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import msgspec

from mini_kv.core.record import Record
from mini_kv.core.records.attempt import ArtifactIndex, Attempt, Baseline, Leaderboard
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.build import Build
from mini_kv.core.records.calibration import Calibration
from mini_kv.core.records.card import SAME_MAJOR, SCHEMA_VERSION, CandidateManifest, TaskCard
from mini_kv.core.records.card_audit import CardAudit
from mini_kv.core.records.comparison import Comparison
from mini_kv.core.records.correctness import Correctness
from mini_kv.core.records.environment import Environment
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.profile import Profile, ProfileComparison
from mini_kv.core.records.regression import Regression

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILE_SUFFIX = ".schema.json"

RECORDS: Mapping[str, type[Record]] = types.MappingProxyType(
    {
        "task_card": TaskCard,
        "candidate_manifest": CandidateManifest,
        "environment": Environment,
        "compile": Build,
        "correctness": Correctness,
        "benchmark": Benchmark,
        "regression": Regression,
        "attempt": Attempt,
        "artifact_index": ArtifactIndex,
        "leaderboard": Leaderboard,
        "baseline": Baseline,
        "calibration": Calibration,
        "card_audit": CardAudit,
        "comparison": Comparison,
        "pairs": PairSet,
        "profile": Profile,
        "profile_comparison": ProfileComparison,
    }
)


def schema_id(name: str) -> str:
    """Return the ``$id`` of the named schema, for example ``urn:mini-kv:schema:task_card:1.0.0``."""
    return f"urn:mini-kv:schema:{name}:{SCHEMA_VERSION}"


def schema_document(name: str) -> dict[str, Any]:
    """Return the named record's schema; raises ``KeyError`` for a name that is not in ``RECORDS``.

    The record itself is the document's root, the records below it stand in ``$defs``. A top-level
    ``schema_version`` is held to this major version.
    """
    kind = RECORDS[name]
    _, definitions = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    root = dict(definitions.pop(kind.__name__))
    version = root["properties"].get("schema_version")
    if version is not None:
        root["properties"] = root["properties"] | {"schema_version": version | {"pattern": SAME_MAJOR}}
    document = {"$schema": DIALECT, "$id": schema_id(name), **root}
    if definitions:
        document["$defs"] = {key: definitions[key] for key in sorted(definitions)}
    return document


def schema_text(name: str) -> str:
    """Return the bytes of ``schemas/<name>.schema.json`` as text: the same on every run and machine."""
    raw = msgspec.json.format(msgspec.json.encode(schema_document(name)), indent=2)
    return raw.decode("utf-8") + "\n"


def schema_file_name(name: str) -> str:
    """Return the file name of the named schema in ``schemas/``."""
    return name + FILE_SUFFIX


def drift(found: Mapping[str, str]) -> tuple[str, ...]:
    """Compare files (name -> text) with the model; return one sentence for each difference.

    A missing file, a file whose text is not what the model generates, and a schema file of no record
    are differences.
    """
    problems: list[str] = []
    for name in RECORDS:
        file_name = schema_file_name(name)
        if file_name not in found:
            problems.append(f"{file_name} is missing")
        elif found[file_name] != schema_text(name):
            problems.append(f"{file_name} differs from the model of {RECORDS[name].__name__}")
    known = {schema_file_name(name) for name in RECORDS}
    problems += [f"{file_name} belongs to no record" for file_name in sorted(set(found) - known)]
    return tuple(problems)
