"""What a Task Card must obey beyond its shape. Works on plain data of any shape, so that it never stops."""

from __future__ import annotations

import builtins
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mini_kv.core.dtypes import CARD_DTYPES
from mini_kv.core.records.card import (
    IDENTIFIER,
    RESERVED_TASK_IDS,
    SCHEMA_VERSION,
    SEMANTIC_VERSION,
    CaseKind,
)
from mini_kv.system.paths import PathRefused, confined_path
from mini_kv.task_card.document import Plain
from mini_kv.task_card.structure import Finding
from mini_kv.task_card.wording import choice, found_text, suggestion

LEGAL_KINDS: tuple[str, ...] = tuple(kind.value for kind in CaseKind if kind is not CaseKind.ILLEGAL)
MAX_LIST_ITEMS = 1024
EXCEPTIONS: tuple[str, ...] = tuple(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)
# Nearer than any two that Python has: OutOfMemoryError, which is torch's, has 0.81 with MemoryError.
MISSPELT, MAX_NAME = 0.88, 64
_CLASS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_IDENTIFIER = re.compile(IDENTIFIER)
_VERSION = re.compile(SEMANTIC_VERSION)


def version_finding(data: dict[str, Any]) -> Finding | None:
    """Return what is wrong with ``schema_version``: text of another major version, or no version."""
    version = data.get("schema_version")
    if not isinstance(version, str):
        return None
    major = SCHEMA_VERSION.partition(".")[0]
    if not _VERSION.fullmatch(version):
        return (
            "schema_version",
        ), f"found {found_text(version)}; allowed: a version such as {SCHEMA_VERSION}"
    if version.partition(".")[0] != major:
        allowed = f"versions {major}.x.y, which this mini-kv reads"
        return ("schema_version",), f"found {found_text(version)}, another major version; allowed: {allowed}"
    return None


def card_findings(data: dict[str, Any], project_root: Path) -> Iterator[Finding]:
    """Yield every breach of the rules between and inside a card's keys."""
    yield from _task_id(data.get("task_id"))
    yield from _candidate(data.get("candidate"), project_root)
    cases = data.get("cases")
    kinds: dict[str, object] = {}
    for index, case in enumerate(cases if isinstance(cases, list) else ()):
        if isinstance(case, dict):
            yield from _case(index, case, kinds)
    if isinstance(cases, list):
        yield from _tolerances(data.get("tolerances"), cases)
        yield from _benchmark(data.get("benchmark"), kinds)


def _task_id(task_id: Plain) -> Iterator[Finding]:
    if isinstance(task_id, str) and task_id in RESERVED_TASK_IDS:
        others = " and ".join(sorted(RESERVED_TASK_IDS))
        allowed = f"any name but {others}, folders of the archive that hold other evidence"
        yield ("task_id",), f"found {found_text(task_id)}; allowed: {allowed}"


def _candidate(text: Plain, project_root: Path) -> Iterator[Finding]:
    if not isinstance(text, str) or not text:
        return
    try:
        folder = confined_path(text, project_root, "the project")
        if folder.exists() and not folder.is_dir():
            yield (
                ("candidate",),
                f"found {found_text(text)}, which is no folder; allowed: a candidate's folder",
            )
    except PathRefused as refusal:
        yield ("candidate",), str(refusal)
    except OSError:
        yield ("candidate",), f"found {found_text(text)}; allowed: a path that this file system can hold"


def _case(index: int, case: dict[str, Any], kinds: dict[str, object]) -> Iterator[Finding]:
    path = ("cases", index)
    name, kind, raises = case.get("id"), case.get("kind"), case.get("raises")
    if isinstance(name, str):
        if name in kinds:
            yield (*path, "id"), f"found the case id {found_text(name)} again; allowed: each id once"
        kinds.setdefault(name, kind)
    if kind == "illegal" and raises is None:
        yield (
            path,
            (
                "found an illegal case without 'raises'; required: raises with the exception's class name "
                "and a part of its message"
            ),
        )
    if kind in LEGAL_KINDS and raises is not None:
        yield (
            (*path, "raises"),
            f"found 'raises' in a {kind} case; allowed: in cases of kind illegal only",
        )
    if isinstance(raises, dict):
        yield from _exception((*path, "raises", "exception"), raises.get("exception"))
    params = case.get("params")
    if isinstance(params, dict):
        yield from _params((*path, "params"), params)


def _exception(path: tuple[str | int, ...], name: Plain) -> Iterator[Finding]:
    """A class of the candidate's own is allowed; a built-in one misspelt would be demanded of it in vain."""
    if not isinstance(name, str) or name in EXCEPTIONS or not _CLASS_NAME.fullmatch(name):
        return
    near = difflib.get_close_matches(name[:MAX_NAME], EXCEPTIONS, n=1, cutoff=MISSPELT)
    if near:
        allowed = f"an exception's class name (did you mean {near[0]!r}?)"
        what = "which is no exception of Python's but nearly one"
        yield path, f"found {found_text(name)}, {what}; allowed: {allowed}"


def _params(path: tuple[str | int, ...], params: dict[str, Any]) -> Iterator[Finding]:
    for key, value in params.items():
        if not _IDENTIFIER.fullmatch(key):
            yield (
                (*path, key),
                f"found the key {found_text(key)}; allowed: 1 to 64 of a-z, 0-9 and _, a letter first",
            )
        if isinstance(value, list) and len(value) > MAX_LIST_ITEMS:
            yield (*path, key), f"found {found_text(value)}; allowed: lists of at most {MAX_LIST_ITEMS}"
    dtype = params.get("dtype")
    if "dtype" in params and dtype not in CARD_DTYPES:
        hint = suggestion(dtype, CARD_DTYPES) if isinstance(dtype, str) else ""
        yield (*path, "dtype"), f"found {found_text(dtype)}; allowed: {choice(CARD_DTYPES)}{hint}"


def _tolerances(tolerances: Plain, cases: list[Any]) -> Iterator[Finding]:
    if not isinstance(tolerances, dict):
        return
    users: dict[str, object] = {}
    for case in cases:
        params = case.get("params") if isinstance(case, dict) else None
        if isinstance(params, dict) and case.get("kind") in LEGAL_KINDS:
            dtype = params.get("dtype")
            if isinstance(dtype, str) and dtype in CARD_DTYPES:
                users.setdefault(dtype, case.get("id"))
    for dtype, case_id in users.items():
        if dtype not in tolerances:
            yield (
                ("tolerances", dtype),
                (
                    f"found no tolerance for {dtype}, which case {found_text(case_id)} uses; "
                    "required: {rtol, atol} for each dtype of a legal case"
                ),
            )


def _benchmark(benchmark: Plain, kinds: dict[str, object]) -> Iterator[Finding]:
    if not isinstance(benchmark, dict):
        return
    case_ids, primary = benchmark.get("case_ids"), benchmark.get("primary_case_id")
    listed = case_ids if isinstance(case_ids, list) else []
    seen: set[str] = set()
    for index, name in enumerate(listed):
        if isinstance(name, str):
            if name in seen:
                yield (
                    ("benchmark", "case_ids", index),
                    f"found {found_text(name)} again; allowed: each case once",
                )
            seen.add(name)
            yield from _timed_case(("benchmark", "case_ids", index), name, kinds)
    if isinstance(primary, str):
        path = ("benchmark", "primary_case_id")
        wrong = list(_timed_case(path, primary, kinds))
        yield from wrong
        if not wrong and seen and primary not in seen:
            yield path, f"found {found_text(primary)}, which is not timed; allowed: {choice(sorted(seen))}"


def _timed_case(path: tuple[str | int, ...], name: str, kinds: dict[str, object]) -> Iterator[Finding]:
    legal = [known for known, kind in kinds.items() if kind != "illegal"]
    if name not in kinds:
        hint = suggestion(name, legal)
        yield path, f"found {found_text(name)}, which names no case; allowed: the id of a legal case{hint}"
    elif kinds[name] == "illegal":
        yield path, f"found {found_text(name)}, an illegal case; allowed: the id of a legal case"
