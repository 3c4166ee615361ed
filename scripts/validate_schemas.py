"""Check that schemas and records agree, and that every committed file keeps its schema.

The schemas come from the msgspec records, the verdict on the files from the independent ``jsonschema``
package: a mistake in one of the two cannot hide itself. Exit code 1 names every difference.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError

from mini_kv.core.records.archived_files import (
    ATTEMPT_FILES,
    BUILD_STDERR_FILE,
    BUILD_STDOUT_FILE,
    COMPARISON_FILES,
    PROFILE_FILES,
    SIDE_FILES,
    RecordFile,
)
from mini_kv.core.records.schemas import DIALECT, FILE_SUFFIX, RECORDS, drift, schema_document, schema_id


def archived_schemas() -> tuple[tuple[str, str], ...]:
    """Return each file of an archive that holds a record, and its schema's name."""
    names = {record: name for name, record in RECORDS.items()}
    kept = dict.fromkeys((*ATTEMPT_FILES, *PROFILE_FILES, *COMPARISON_FILES, *SIDE_FILES))
    return tuple((file.name, names[file.record]) for file in kept if isinstance(file, RecordFile))


# Names in evidence/ and what they hold, first match wins.
EVIDENCE_SCHEMAS: tuple[tuple[str, str], ...] = (
    *archived_schemas(),
    ("artifact_index.json", "artifact_index"),
    ("*calibration*.json", "calibration"),
    ("*profile_comparison*.json", "profile_comparison"),
    ("*leaderboard*.json", "leaderboard"),
    ("*baseline*.json", "baseline"),
)

RAW_LOGS = (BUILD_STDOUT_FILE.name, BUILD_STDERR_FILE.name)
# JSON files in evidence/ that no record describes: name patterns, each with its reason.
EVIDENCE_WITHOUT_SCHEMA: tuple[str, ...] = (
    "gate_study_*.json",  # raw times and tables of research/gate_study, which is no part of the product
    "honest_runs*.json",  # runs of research/honest_runs, decoded strictly where its tables are filled in
    "zoo_*.json",  # verdicts of tests/zoo_harness.py, held against the members by a test
    "sweep.json",  # points of a curve over sizes, drawn by research/sweep; no verdict rests on them
)

MAX_ERRORS_PER_FILE = 5
MAX_MESSAGE_CHARACTERS = 200


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
    if twice:
        raise ValueError(f"duplicate key {twice[0]!r}")
    return dict(pairs)


def load_json(path: Path) -> Any:
    """Read strict JSON: no NaN, no duplicate keys. Raises ``ValueError`` or ``OSError``."""
    return json.loads(
        path.read_text("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates
    )


class _Loader(yaml.SafeLoader):
    """Plain types only, and ``1e-6`` is a number, as in JSON and YAML 1.2; PyYAML keeps it a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), "-+0123456789"
)


def load_yaml(path: Path) -> Any:
    """Read one YAML document of plain types. Raises ``ValueError`` or ``OSError``."""
    try:
        return yaml.load(path.read_text("utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def load(path: Path) -> Any:
    """Read a JSON or YAML file by its suffix. Raises ``ValueError`` or ``OSError``."""
    return load_json(path) if path.suffix == ".json" else load_yaml(path)


def drift_problems(root: Path) -> list[str]:
    """Compare ``schemas/`` with the model, byte for byte."""
    folder = root / "schemas"
    found = {path.name: path.read_text("utf-8") for path in folder.glob(f"*{FILE_SUFFIX}")}
    problems = [f"schemas/{difference}" for difference in drift(found)]
    for name in RECORDS:
        try:
            Draft202012Validator.check_schema(schema_document(name))
        except SchemaError as error:
            problems.append(f"schemas/{name}{FILE_SUFFIX}: not a Draft 2020-12 schema: {error.message}")
    return problems


def committed_files(root: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield every card, manifest, baseline and evidence file with its schema's name, or ``None``."""
    for path in sorted(root.glob("tasks/**/*.yaml")):
        yield path, "task_card"
    for path in sorted(root.glob("candidates/*/*/candidate.yaml")):
        yield path, "candidate_manifest"
    for path in sorted(root.glob("baselines/*.json")):
        yield path, "baseline"
    for path in sorted(root.glob("evidence/**/*.json")):
        if "sources" in path.relative_to(root).parts:
            continue  # what was compiled, not what was found
        if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in EVIDENCE_WITHOUT_SCHEMA):
            continue
        matches = (name for pattern, name in EVIDENCE_SCHEMAS if fnmatch.fnmatchcase(path.name, pattern))
        yield path, next(matches, None)


def schema_errors(value: Any, name: str) -> list[str]:
    """Return what ``jsonschema`` finds wrong with ``value``, the first few, one sentence each."""
    found: list[ValidationError] = []
    for error in Draft202012Validator(schema_document(name)).iter_errors(value):
        found.append(error)
        if len(found) == MAX_ERRORS_PER_FILE:
            break
    return [f"at {error.json_path}: {_short(error.message)}" for error in found]


def _short(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    half = MAX_MESSAGE_CHARACTERS // 2
    return f"{message[:half]} ... {message[-half:]}"


def file_problems(path: Path, name: str | None) -> list[str]:
    """Validate one file against the named schema, or against the one that it names itself."""
    try:
        value = load(path)
    except (OSError, ValueError) as error:
        return [f"cannot be read: {error}"]
    if name is None:
        named = value.pop("$schema", None) if isinstance(value, dict) else None
        if named == DIALECT:
            return []
        name = next((known for known in RECORDS if schema_id(known) == named), None)
        if name is None:
            return ["no schema is known for this name, and it names none of this project's schemas itself"]
    return schema_errors(value, name)


def archive_problems(attempt: Path) -> list[str]:
    """Compare the files next to an ``attempt.json`` with the sizes and hashes that it holds.

    A compiler's raw log may have been left out; one that is there must be the one that was hashed.
    """
    problems: list[str] = []
    for entry in load_json(attempt)["files"]:
        path = attempt.parent / entry["path"]
        if entry["path"] in RAW_LOGS and not path.exists():
            continue
        if not path.is_file():
            problems.append(f"{entry['path']} is listed and missing")
            continue
        raw = path.read_bytes()
        if (len(raw), hashlib.sha256(raw).hexdigest()) != (entry["size_bytes"], entry["sha256"]):
            problems.append(f"{entry['path']} is not the file that was archived (size or SHA-256 differs)")
    return problems


def main(argv: list[str] | None = None) -> int:
    """Check one checkout; print every problem, or one line of counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root: Path = parser.parse_args(argv).root
    problems = drift_problems(root)
    counts: dict[str, int] = {}
    for path, name in committed_files(root):
        where = path.relative_to(root)
        counts[where.parts[0]] = counts.get(where.parts[0], 0) + 1
        found = file_problems(path, name)
        if name == "attempt" and not found:
            found = archive_problems(path)
        problems += [f"{where}: {problem}" for problem in found]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"validate_schemas: {len(problems)} problems", file=sys.stderr)
        return 1
    files = ", ".join(f"{folder} {count}" for folder, count in counts.items()) or "no files yet"
    print(f"{len(RECORDS)} schemas agree with the records; valid files: {files}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
