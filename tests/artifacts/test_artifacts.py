from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import attempt_factory as make
from mini_kv.artifacts import (
    AttemptWriter,
    check_files,
    is_correct,
    promote_baseline,
    read_attempt,
    read_index,
    rebuild_index,
)
from mini_kv.artifacts import index as index_module
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import ConfigurationError, IntegrityError, InternalError
from mini_kv.core.records.attempt import Axis
from mini_kv.core.records.results import Status
from mini_kv.system.archive_folder import new_folder_id, utc_text


def write_many(root: Path, count: int, **changes: Any) -> list[str]:
    clock, random_bytes = make.ticking_clock(), make.counting_bytes()
    return [
        make.write_attempt(root, clock=clock, random_bytes=random_bytes, **changes)[0].attempt_id
        for _ in range(count)
    ]


def indexed(root: Path) -> list[str]:
    with closing(sqlite3.connect(root / "index.db")) as connection:
        return [name for (name,) in connection.execute("SELECT attempt_id FROM attempts ORDER BY attempt_id")]


# ---------------------------------------------------------------------------- names


def test_attempt_ids_are_utc_and_sort_by_time() -> None:
    east = datetime(2026, 3, 1, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    assert new_folder_id(east, b"\x00\xab\xcd\xef") == "20260228T230203Z-00abcdef"
    assert utc_text(east) == "2026-02-28T23:02:03.000000Z"
    with pytest.raises(ValueError):
        new_folder_id(datetime(2026, 3, 1), b"1234")  # noqa: DTZ001
    with pytest.raises(ValueError):
        new_folder_id(east, b"123")


@pytest.mark.parametrize("task_id", ["../evil", "UPPER", "", "a/b", "profiles", "vector_add\n"])
def test_a_task_id_cannot_leave_its_folder(tmp_path: Path, task_id: str) -> None:
    with pytest.raises(ConfigurationError):
        AttemptWriter(tmp_path, task_id, clock=make.ticking_clock(), random_bytes=make.counting_bytes())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "a//b", "./a", "", "attempt.json", "a\0b", ".."])
def test_a_file_name_cannot_leave_the_attempt(tmp_path: Path, name: str) -> None:
    writer = AttemptWriter(
        tmp_path, "vector_add", clock=make.ticking_clock(), random_bytes=make.counting_bytes()
    )
    with pytest.raises(InternalError):
        writer.add_bytes(name, b"")


# ---------------------------------------------------------------------------- writing


def test_an_attempt_appears_whole_with_every_hash(tmp_path: Path) -> None:
    attempt, writer = make.write_attempt(tmp_path)
    assert writer.warnings == ()
    assert not writer.partial_folder.exists()
    on_disk = {
        path.relative_to(writer.folder).as_posix(): path.read_bytes()
        for path in writer.folder.rglob("*")
        if path.is_file()
    }
    raw = on_disk.pop("attempt.json")
    assert {file.path: (file.sha256, file.size_bytes) for file in attempt.files} == {
        name: (sha256_bytes(content), len(content)) for name, content in on_disk.items()
    }
    assert {"sources/kernels/add.cu", "environment.json"} <= on_disk.keys()
    assert read_attempt(writer.folder) == (attempt, sha256_bytes(raw))
    assert check_files(writer.folder, attempt) == ()


def test_nothing_but_partial_is_seen_before_the_end(tmp_path: Path) -> None:
    writer = AttemptWriter(
        tmp_path, "vector_add", clock=make.ticking_clock(), random_bytes=make.counting_bytes()
    )
    writer.add_bytes("compile_stderr.log", b"error")
    assert not writer.folder.exists()
    assert (writer.partial_folder / "compile_stderr.log").read_bytes() == b"error"
    assert rebuild_index(tmp_path).attempts == ()
    assert rebuild_index(tmp_path).damaged == ()


def test_a_failed_run_archives_what_it_has(tmp_path: Path) -> None:
    axes = (Axis(name="build", status=Status.FAIL, code="COMPILE_ERROR", message="It does not build."),)
    task, machine = make.card(), make.environment()
    with AttemptWriter(
        tmp_path, "vector_add", clock=make.ticking_clock(), random_bytes=make.counting_bytes()
    ) as writer:
        writer.add_bytes("compile_stderr.log", b"error: expected ';'\n")
        failed = make.attempt(
            writer, task, machine, accepted=False, exit_code=3, axes=axes, benchmark_stable=None,
            geomean_speedup=None, primary_p50_us=None, environment_key=None, device=None, build_key=None,
        )  # fmt: skip
        writer.finish(failed)
    (row,) = read_index(tmp_path)[0]
    assert (row.exit_code, row.accepted, row.correct, row.environment) == (3, False, False, None)


def interrupt(writer: AttemptWriter) -> None:
    with writer:
        writer.add_bytes("x", b"x")
        raise KeyboardInterrupt


def test_an_exception_leaves_partial_evidence_and_is_not_hidden(tmp_path: Path) -> None:
    writer = AttemptWriter(
        tmp_path, "vector_add", clock=make.ticking_clock(), random_bytes=make.counting_bytes()
    )
    with pytest.raises(KeyboardInterrupt):
        interrupt(writer)
    assert (writer.partial_folder / "x").exists()


def test_a_forgotten_finish_is_a_fault_of_the_tool(tmp_path: Path) -> None:
    with (
        pytest.raises(InternalError),
        AttemptWriter(tmp_path, "vector_add", clock=make.ticking_clock(), random_bytes=make.counting_bytes()),
    ):
        pass


def test_an_existing_attempt_is_never_overwritten(tmp_path: Path) -> None:
    _, first = make.write_attempt(tmp_path)
    before = (first.folder / "attempt.json").read_bytes()
    # The same second and the same first draw: the second draw is taken.
    second, writer = make.write_attempt(tmp_path)
    assert writer.folder != first.folder
    assert second.attempt_id.endswith("00000001")
    assert (first.folder / "attempt.json").read_bytes() == before
    with pytest.raises(InternalError):
        AttemptWriter(tmp_path, "vector_add", clock=make.ticking_clock(), random_bytes=lambda n: b"\0" * n)


def test_a_file_changed_while_the_run_lasted_is_tampering(tmp_path: Path) -> None:
    task, machine = make.card(), make.environment()
    (tmp_path / "outside").write_bytes(b"secret")
    with AttemptWriter(
        tmp_path, "vector_add", clock=make.ticking_clock(), random_bytes=make.counting_bytes()
    ) as writer:
        writer.add_bytes("compile.json", b"{}")
        writer.add_bytes("benchmark.json", b"{}")
        (writer.partial_folder / "benchmark.json").write_bytes(b"[]")
        (writer.partial_folder / "planted.json").write_bytes(b"1")
        (writer.partial_folder / "link").symlink_to(tmp_path / "outside")
        archived = writer.finish(make.attempt(writer, task, machine))
    assert (archived.accepted, archived.exit_code) == (False, 7)
    assert archived.findings[-1].code == "ARCHIVE_TAMPERED"
    assert archived.findings[-1].evidence == ("benchmark.json", "link", "planted.json")
    assert check_files(writer.folder, archived) == ()
    assert read_index(tmp_path)[0][0].correct is False


def test_a_linked_folder_does_not_lead_writes_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    writer = AttemptWriter(
        tmp_path / "artifacts", "vector_add", clock=make.ticking_clock(), random_bytes=make.counting_bytes()
    )
    (writer.partial_folder / "sources").symlink_to(outside)
    with pytest.raises(IntegrityError):
        writer.add_tree(make.SOURCES)
    assert list(outside.iterdir()) == []


def test_an_archive_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_bytes(b"a file where a folder should be")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        make.write_attempt(tmp_path / "artifacts")


# ---------------------------------------------------------------------------- what may be believed


def axes(**statuses: Status) -> tuple[Axis, ...]:
    named = {"build": Status.PASS, "numerics": Status.PASS, "contract": Status.PASS, **statuses}
    return tuple(Axis(name=name, status=status, code=None, message=None) for name, status in named.items())


@pytest.mark.parametrize(
    ("changes", "correct"),
    [
        ({}, True),
        ({"exit_code": 6, "accepted": False, "axes": axes(regression=Status.FAIL)}, True),
        ({"axes": axes(contract=Status.SKIPPED, isolation=Status.UNVERIFIED)}, True),
        ({"axes": axes(contract=Status.UNVERIFIED)}, False),
        ({"axes": axes(numerics=Status.SKIPPED)}, False),
        ({"axes": axes(memory=Status.FAIL)}, False),
        ({"axes": axes(memory=Status.ERROR)}, False),
        ({"axes": axes()[:2]}, False),
        ({"axes": ()}, False),
        ({"axes": axes() + axes()}, False),
        ({"exit_code": 4}, False),
        ({"exit_code": 5}, False),
        ({"exit_code": 7}, False),
    ],
)
def test_only_explicit_evidence_is_correct(tmp_path: Path, changes: dict[str, Any], correct: bool) -> None:
    attempt, _ = make.write_attempt(tmp_path, **changes)
    assert is_correct(attempt) is correct


# ---------------------------------------------------------------------------- index


def test_the_index_knows_every_attempt_by_task_and_id(tmp_path: Path) -> None:
    ids = write_many(tmp_path, 3)
    other, _ = make.write_attempt(tmp_path, task=make.card("rmsnorm"))
    rows, warnings = read_index(tmp_path)
    assert warnings == ()
    assert [(row.task_id, row.attempt_id) for row in rows] == [
        ("rmsnorm", other.attempt_id),
        *(("vector_add", name) for name in ids),
    ]
    assert rows[1].environment == "Example CPU, torch 2.11.0"
    assert rows[1].path == f"vector_add/{ids[0]}"
    assert rows[1].attempt_sha256 == sha256_bytes((tmp_path / rows[1].path / "attempt.json").read_bytes())
    assert [row.attempt_id for row in read_index(tmp_path, "rmsnorm")[0]] == [other.attempt_id]
    with sqlite3.connect(tmp_path / "index.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_missing_index_is_made_again_with_all_attempts_and_a_remark(tmp_path: Path) -> None:
    ids = write_many(tmp_path, 2)
    for path in tmp_path.glob("index.db*"):
        path.unlink()
    rows, warnings = read_index(tmp_path)
    assert [row.attempt_id for row in rows] == ids
    assert [warning.code for warning in warnings] == ["INDEX_MISSING"]
    third, writer = make.write_attempt(tmp_path, random_bytes=make.counting_bytes(9))
    assert [warning.code for warning in writer.warnings] == ["INDEX_RECREATED"]
    assert sorted(indexed(tmp_path)) == sorted([*ids, third.attempt_id])


@pytest.mark.parametrize("harm", ["garbage", "truncated", "folder", "other layout", "bad row"])
def test_a_harmed_index_leaves_the_attempt_safe_and_is_healed(tmp_path: Path, harm: str) -> None:
    ids = write_many(tmp_path, 2)
    database = tmp_path / "index.db"
    if harm == "garbage":
        database.write_bytes(b"not a database" * 500)
    elif harm == "truncated":
        database.write_bytes(database.read_bytes()[:600])
    elif harm == "folder":
        database.unlink()
        database.mkdir()
    else:
        with sqlite3.connect(database) as connection:
            connection.execute(
                "PRAGMA user_version=99" if harm == "other layout" else "UPDATE attempts SET row='{}'"
            )
        connection.close()
    rows, warnings = read_index(tmp_path)
    assert [row.attempt_id for row in rows] == ids, "the folders are read instead"
    assert "rebuild-index" in warnings[0].message
    third, writer = make.write_attempt(tmp_path, random_bytes=make.counting_bytes(9))
    assert read_attempt(writer.folder)[0] == third
    if harm != "bad row":
        assert writer.warnings[-1].code == "INDEX_UNUSABLE"
        assert third.attempt_id in writer.warnings[-1].message
    if harm == "folder":
        with pytest.raises(ConfigurationError):
            rebuild_index(tmp_path)
        database.rmdir()
    assert len(rebuild_index(tmp_path).attempts) == 3
    assert sorted(indexed(tmp_path)) == sorted([*ids, third.attempt_id])


def test_rebuild_is_byte_identical_however_often_it_runs(tmp_path: Path) -> None:
    write_many(tmp_path, 3)
    (tmp_path / "vector_add" / "20200101T000000Z-00000000").mkdir()
    first = rebuild_index(tmp_path)
    raw = (tmp_path / "artifact_index.json").read_bytes()
    assert rebuild_index(tmp_path) == first
    assert (tmp_path / "artifact_index.json").read_bytes() == raw
    for path in tmp_path.glob("index.db*"):
        path.unlink()
    rebuild_index(tmp_path)
    assert (tmp_path / "artifact_index.json").read_bytes() == raw
    assert str(tmp_path) not in raw.decode(), "no path of this machine in a committed file"
    assert (len(first.attempts), len(first.damaged)) == (3, 1)


def test_rebuild_equals_what_the_inserts_made(tmp_path: Path) -> None:
    write_many(tmp_path, 3)
    assert read_index(tmp_path)[0] == rebuild_index(tmp_path).attempts == read_index(tmp_path)[0]


def damage(folder: Path, how: str) -> None:
    attempt = folder / "attempt.json"
    if how == "no attempt.json":
        attempt.unlink()
    elif how == "not JSON":
        attempt.write_bytes(b"{")
    elif how == "unknown field":
        attempt.write_text(json.dumps(json.loads(attempt.read_text()) | {"surprise": 1}))
    elif how == "other major version":
        attempt.write_text(json.dumps(json.loads(attempt.read_text()) | {"schema_version": "2.0.0"}))
    elif how == "same size edit":
        raw = (folder / "benchmark.json").read_bytes()
        (folder / "benchmark.json").write_bytes(raw.replace(b"2.0", b"9.0"))
    elif how == "missing file":
        (folder / "sources" / "binding.cpp").unlink()
    elif how == "added file":
        (folder / "extra").write_bytes(b"")
    elif how == "link for a file":
        (folder / "sources" / "binding.cpp").unlink()
        (folder / "sources" / "binding.cpp").symlink_to("/dev/null")
    elif how == "pipe for attempt.json":
        attempt.unlink()
        os.mkfifo(attempt)
    elif how == "moved":
        folder.rename(folder.with_name("20260301T120000Z-ffffffff"))


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("no attempt.json", "ATTEMPT_UNREADABLE"),
        ("not JSON", "ATTEMPT_UNREADABLE"),
        ("unknown field", "ATTEMPT_UNREADABLE"),
        ("other major version", "ATTEMPT_UNREADABLE"),
        ("same size edit", "ATTEMPT_CHANGED"),
        ("missing file", "ATTEMPT_CHANGED"),
        ("added file", "ATTEMPT_CHANGED"),
        ("link for a file", "ATTEMPT_CHANGED"),
        ("pipe for attempt.json", "ATTEMPT_UNREADABLE"),
        ("moved", "ATTEMPT_MISPLACED"),
    ],
)
def test_a_damaged_attempt_is_named_and_left_out(tmp_path: Path, how: str, code: str) -> None:
    ids = write_many(tmp_path, 2)
    damage(tmp_path / "vector_add" / ids[0], how)
    index = rebuild_index(tmp_path)
    assert [row.attempt_id for row in index.attempts] == [ids[1]]
    assert [finding.code for finding in index.damaged] == [code]
    assert indexed(tmp_path) == [ids[1]]


def flatter(folder: Path) -> None:
    """Edit ``attempt.json`` alone: every other file still has the hash that it promises."""
    path = folder / "attempt.json"
    edited = path.read_text().replace('"elapsed_s": 2.5', '"elapsed_s": 1.5')
    assert edited != path.read_text()
    path.write_text(edited)


def test_a_rebuild_accepted_an_edited_attempt_json_with_the_old_indexs_hash_at_hand(tmp_path: Path) -> None:
    ids = write_many(tmp_path, 2)
    folder = tmp_path / "vector_add" / ids[0]
    whole = (folder / "attempt.json").read_bytes()
    flatter(folder)
    first = rebuild_index(tmp_path)
    raw = (tmp_path / "artifact_index.json").read_bytes()
    assert [row.attempt_id for row in first.attempts] == indexed(tmp_path) == [ids[1]]
    (finding,) = first.damaged
    assert finding.code == "ATTEMPT_CHANGED" and ids[0] in finding.message
    assert "attempt.json was changed" in finding.evidence[0]
    assert rebuild_index(tmp_path) == first, "what was told once is not forgotten"
    assert (tmp_path / "artifact_index.json").read_bytes() == raw
    (folder / "attempt.json").write_bytes(whole)
    healed = rebuild_index(tmp_path)
    assert ([row.attempt_id for row in healed.attempts], healed.damaged) == (ids, ())


def test_a_hash_outlives_rebuilds_that_could_not_list_the_attempt(tmp_path: Path) -> None:
    ids = write_many(tmp_path, 2)
    damaged, away = (tmp_path / "vector_add" / name for name in ids)
    damage(damaged, "added file")
    away.rename(tmp_path / "elsewhere")
    assert len(rebuild_index(tmp_path).damaged) == 1
    (damaged / "extra").unlink()
    (tmp_path / "elsewhere").rename(away)
    flatter(damaged)
    flatter(away)
    assert [finding.code for finding in rebuild_index(tmp_path).damaged] == ["ATTEMPT_CHANGED"] * 2
    with pytest.raises(IntegrityError, match="not what the index recorded"):
        promote_baseline(away, tmp_path / "baseline.json", now=make.START)


def test_an_index_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    ids = write_many(tmp_path, 2)
    rebuild_index(tmp_path)
    with sqlite3.connect(tmp_path / "index.db") as connection:
        connection.execute("DROP TABLE unlisted")
    connection.close()
    flatter(tmp_path / "vector_add" / ids[0])
    assert len(rebuild_index(tmp_path).damaged) == 1


def test_other_evidence_and_strangers_are_no_attempts(tmp_path: Path) -> None:
    ids = write_many(tmp_path, 1)
    for stranger in ("profiles/20260301T120000Z-00000000", "vector_add/notes", "Not_a_task/x"):
        (tmp_path / stranger).mkdir(parents=True)
    (tmp_path / "readme.txt").write_text("hello")
    index = rebuild_index(tmp_path)
    assert [row.attempt_id for row in index.attempts] == ids
    assert index.damaged == ()


def test_rebuild_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a folder of artifacts"):
        rebuild_index(tmp_path / "absent")
    assert read_index(tmp_path / "absent") == ((), ())


def test_an_index_locked_by_another_run_costs_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_many(tmp_path, 1)
    monkeypatch.setattr(index_module, "INDEX_LOCK_TIMEOUT_S", 0.05)
    with index_module.exclusive_lock(tmp_path / "index.lock", 1.0) as held:
        assert held
        attempt, writer = make.write_attempt(tmp_path, random_bytes=make.counting_bytes(5))
        rows, warnings = read_index(tmp_path)
    assert [warning.code for warning in writer.warnings] == ["INDEX_LOCKED", "INDEX_LOCKED"]
    assert (warnings[0].code, len(rows)) == ("INDEX_LOCKED", 2)
    assert attempt.attempt_id not in indexed(tmp_path)
    rebuild_index(tmp_path)
    assert attempt.attempt_id in indexed(tmp_path)


WRITER_SCRIPT = """
import secrets, sys
from datetime import UTC, datetime
from pathlib import Path
from mini_kv.artifacts import rebuild_index
import attempt_factory as make
root, count, rebuild = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "rebuild"
for _ in range(count):
    _, writer = make.write_attempt(root, clock=lambda: datetime.now(UTC), random_bytes=secrets.token_bytes)
    assert writer.warnings == (), writer.warnings
    if rebuild:
        assert rebuild_index(root).damaged == ()
"""


def test_processes_that_write_and_rebuild_at_once_lose_nothing(tmp_path: Path) -> None:
    project = Path(__file__).resolve().parents[2]
    search_path = os.pathsep.join((str(project / "src"), str(project / "tests")))
    root, count = tmp_path / "artifacts", 12
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER_SCRIPT, str(root), str(count), mode],
            env={**os.environ, "PYTHONPATH": search_path},
            stderr=subprocess.PIPE,
        )
        for mode in ("write", "rebuild", "write")
    ]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    names = sorted(path.name for path in (root / "vector_add").iterdir())
    assert len(names) == 3 * count
    assert indexed(root) == names
    assert read_index(root)[0] == rebuild_index(root).attempts


def test_an_insert_costs_the_same_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make.write_attempt(tmp_path)
    (row,) = read_index(tmp_path)[0]
    rows = [index_module.msgspec.structs.replace(row, attempt_id=f"a{number:07d}") for number in range(5000)]
    index_module._replace_database(tmp_path, rows)
    monkeypatch.setattr(index_module, "entries_of", lambda *_: pytest.fail("the folders were walked"))
    assert index_module.add_to_index(tmp_path, row) == ()
    with sqlite3.connect(tmp_path / "index.db") as connection:
        plan = connection.execute("EXPLAIN QUERY PLAN SELECT row FROM attempts WHERE task_id='x'").fetchall()
    assert "SEARCH" in plan[0][3]
