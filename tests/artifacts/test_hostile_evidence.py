"""Archives, baselines, indexes and manifests that anybody may have written: refused, or read as they are."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attempt_factory as make
from mini_kv.artifacts import load_baseline, promote_baseline
from mini_kv.artifacts.attempts import check_files, read_attempt
from mini_kv.artifacts.index import read_index, rebuild_index
from mini_kv.core.errors import ExitCode, MiniKvError
from mini_kv.task_card import load_manifest

MiniKv = Callable[..., tuple[int, str, str]]
LIGHT = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

SCALARS = st.sampled_from([None, True, 0, -1, 1 << 70, 1.5, 1e308, "", "PASS", "../../x", "\x00", "é"])
JSON = st.recursive(
    SCALARS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
DEEP = [b"[" * 200_000, b'{"a":' * 200_000, b"[" * 200_000 + b"]" * 200_000]
ODD = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b'{"schema_version": 1e999}',
    b"9" * 5000,
    b'"' + b"x" * (1 << 20),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two attempts with its index, and a baseline of the first."""
    root = tmp_path_factory.mktemp("evidence")
    clock, numbers = make.ticking_clock(), make.counting_bytes()
    first = make.write_attempt(root / "artifacts", clock=clock, random_bytes=numbers)[1]
    make.write_attempt(root / "artifacts", clock=clock, random_bytes=numbers)
    rebuild_index(root / "artifacts")
    promote_baseline(first.folder, root / "baseline.json", now=make.START, replace=False)
    return root


@pytest.fixture
def archive(made: Path, tmp_path: Path) -> Path:
    """A copy to be harmed."""
    shutil.copytree(made, tmp_path / "evidence")
    return tmp_path / "evidence"


def attempt_of(archive: Path) -> Path:
    return min((archive / "artifacts" / "vector_add").iterdir())


def outcome(action: Callable[[], Any]) -> Any:
    """Return what the action gives, or the sentence with which it refuses; anything else is a failure."""
    try:
        return action()
    except MiniKvError as refused:
        return refused.message


def places(document: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return found + [below for key, value in items for below in places(value, (*path, key))]


def changed(document: Any, path: tuple[Any, ...], value: object, *, drop: bool) -> Any:
    made = copy.deepcopy(document)
    at = made
    for key in path[:-1]:
        at = at[key]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return made


def harmed(data: st.DataObject, raw: bytes) -> bytes:
    """Draw another document: one place changed or dropped, or one byte."""
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw) - 1))
        return raw[:at] + bytes([data.draw(st.integers(0, 255))]) + raw[at + 1 :]
    document = json.loads(raw)
    path = data.draw(st.sampled_from(places(document)))
    return json.dumps(changed(document, path, data.draw(JSON), drop=data.draw(st.booleans()))).encode()


# ---------------------------------------------------------------------------- attempts and index


@LIGHT
@given(data=st.data())
def test_a_harmed_attempt_is_refused_or_read_and_its_index_row_says_so(
    archive: Path, data: st.DataObject
) -> None:
    folder = attempt_of(archive)
    path = folder / data.draw(st.sampled_from(["attempt.json", "environment.json", "benchmark.json"]))
    before = path.read_bytes()
    try:
        path.write_bytes(harmed(data, before))
        read = outcome(lambda: read_attempt(folder))
        if not isinstance(read, str):
            changes = check_files(folder, read[0])
            # attempt.json itself is vouched for by the index; everything else by attempt.json.
            assert path.name == "attempt.json" or path.read_bytes() == before or changes
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("raw", [*DEEP, *ODD], ids=range(len(DEEP) + len(ODD)))
@pytest.mark.parametrize("name", ["attempt.json", "environment.json", "benchmark.json", "task_card.json"])
def test_no_file_of_an_archive_breaks_a_command(
    archive: Path, mini_kv: MiniKv, name: str, raw: bytes
) -> None:
    (attempt_of(archive) / name).write_bytes(raw)
    artifacts = str(archive / "artifacts")
    for argv in (
        ("rebuild-index", "--artifacts", artifacts),
        ("leaderboard", "--artifacts", artifacts),
        ("promote-baseline", "--attempt", str(attempt_of(archive)), "--output", str(archive / "new.json")),
    ):
        code, _, err = mini_kv(*argv)
        assert code in (ExitCode.ACCEPTED, ExitCode.CONFIGURATION, ExitCode.INTEGRITY), (argv, code, err)
        assert "Traceback" not in err
    assert not (archive / "new.json").exists()


@LIGHT
@given(raw=st.binary(max_size=300), cut=st.integers(0, 4096), keep=st.booleans())
def test_any_bytes_as_an_index_are_an_index_or_a_sentence(
    archive: Path, raw: bytes, cut: int, keep: bool
) -> None:
    path = archive / "artifacts" / "index.db"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:cut] + raw + (whole[cut + len(raw) :] if keep else b""))
        assert outcome(lambda: read_index(archive / "artifacts"))
    finally:
        for name in ("index.db-wal", "index.db-shm"):
            (archive / "artifacts" / name).unlink(missing_ok=True)
        path.write_bytes(whole)


# ---------------------------------------------------------------------------- baselines


@LIGHT
@given(data=st.data())
def test_a_harmed_baseline_never_stands_for_the_promoted_one(archive: Path, data: st.DataObject) -> None:
    path = archive / "baseline.json"
    before, whole = path.read_bytes(), load_baseline(path)
    try:
        path.write_bytes(harmed(data, before))
        read = outcome(lambda: load_baseline(path))
        if not isinstance(read, str):
            # No hash covers when it was promoted, and nothing is decided by that.
            same = msgspec.structs.replace(
                read, promoted_at=whole.promoted_at, schema_version=whole.schema_version
            )
            assert same == whole, "what was changed, and not refused, must mean the same"
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("raw", [*DEEP, *ODD], ids=range(len(DEEP) + len(ODD)))
def test_no_file_breaks_the_loader_of_baselines(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "baseline.json").write_bytes(raw)
    with pytest.raises(MiniKvError) as refused:
        load_baseline(tmp_path / "baseline.json")
    assert len(refused.value.message) < 2000


# ---------------------------------------------------------------------------- manifests

MANIFEST = """\
schema_version: "1.0.0"
candidate_id: tiny
operator: vector_add
version: 0.1.0
dispatcher: tiny::add
schema: "add(Tensor a, Tensor b) -> Tensor"
sources: [binding.cpp]
backends: [cpu]
autograd: false
kernel_name_regex: add
dtypes: [float32]
"""


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    folder = tmp_path / "candidates" / "vector_add" / "tiny"
    folder.mkdir(parents=True)
    (folder / "binding.cpp").write_text("")
    (folder / "candidate.yaml").write_text(MANIFEST)
    load_manifest(folder, tmp_path)
    return folder


@LIGHT
@given(
    content=st.binary(max_size=300)
    | st.text(alphabet="ab01.:-_&*!|>'\"{}[], \n\t", max_size=120).map(str.encode)
)
def test_any_bytes_give_a_manifest_or_a_sentence(candidate: Path, content: bytes) -> None:
    (candidate / "candidate.yaml").write_bytes(content)
    with pytest.raises(MiniKvError):
        load_manifest(candidate, candidate.parents[2])


@LIGHT
@given(
    key=st.sampled_from([line.partition(":")[0] for line in MANIFEST.splitlines()]),
    value=JSON,
)
def test_any_value_at_any_key_of_a_manifest_gives_one_or_a_sentence(
    candidate: Path, key: str, value: object
) -> None:
    lines = [line for line in MANIFEST.splitlines() if not line.startswith(f"{key}:")]
    (candidate / "candidate.yaml").write_text("\n".join([*lines, f"{key}: {json.dumps(value)}"]), "utf-8")
    loaded = outcome(lambda: load_manifest(candidate, candidate.parents[2]))
    assert isinstance(loaded, str) or all(".." not in name for name in loaded.manifest.sources)
