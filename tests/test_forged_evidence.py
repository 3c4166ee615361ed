"""Evidence that somebody forged by hand: each way in that was once open, by its name."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import attempt_factory as make
from mini_kv.artifacts import read_index
from mini_kv.core.attempt import IndexRow
from mini_kv.core.record import from_json, to_json

MiniKv = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("name", [b"x\nmini-kv: all is well", b"\x1b[2Jx", b"\xff\xfe"])
def test_a_files_name_steered_the_terminal_or_broke_the_rebuild(
    tmp_path: Path, mini_kv: MiniKv, name: bytes
) -> None:
    folder = make.write_attempt(tmp_path)[1].folder
    Path(os.fsdecode(bytes(folder) + b"/" + name)).write_bytes(b"x")
    for command in (
        ("rebuild-index", "--artifacts", str(tmp_path)),
        ("promote-baseline", "--attempt", str(folder), "--output", str(tmp_path / "baseline.json")),
    ):
        code, _, err = mini_kv(*command)
        assert code == 7
        assert all(line.isprintable() for line in err.splitlines())
        assert "\nmini-kv: all is well" not in err
    assert (tmp_path / "artifact_index.json").read_bytes().count(b"FILE_ADDED") == 1


def harm_index(root: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    connection = sqlite3.connect(root / "index.db")
    for statement, values in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "forged",
    [
        {"geomean_speedup": 99.0},
        {"candidate_id": "another"},
        {"environment": "a faster machine"},
        {"device": "cuda"},
        {"started_at": "2030-01-01T00:00:00.000000Z"},
    ],
)
def test_the_board_showed_what_a_row_of_the_index_said_and_no_attempt(
    tmp_path: Path, mini_kv: MiniKv, forged: dict[str, Any]
) -> None:
    make.write_attempt(tmp_path)
    ((row,), _) = read_index(tmp_path)
    false = to_json(msgspec.structs.replace(row, **forged), indent=None).decode()
    harm_index(tmp_path, ("UPDATE attempts SET row = ?", (false,)))
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert code == 7
    assert row.attempt_id not in out
    assert "is not what the index says of it" in err
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 0
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, "2.00x" in out) == (0, True)


def test_a_row_of_the_index_led_to_an_attempt_elsewhere(tmp_path: Path, mini_kv: MiniKv) -> None:
    make.write_attempt(tmp_path / "here")
    make.write_attempt(tmp_path / "there", task=make.card("rmsnorm"))
    (raw,) = sqlite3.connect(tmp_path / "there" / "index.db").execute("SELECT row FROM attempts").fetchone()
    row = msgspec.structs.replace(from_json(raw.encode(), IndexRow), task_id="../there/rmsnorm")
    false = to_json(row, indent=None).decode()
    harm_index(tmp_path / "here", ("INSERT INTO attempts VALUES (?, ?, ?)", ("x\x1b[2J", "y", false)))
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path / "here"))
    assert "rmsnorm" not in out
    assert "../there/rmsnorm" in err
    assert code == 7


def test_a_timed_attempt_kept_its_place_when_its_samples_were_exchanged(
    tmp_path: Path, mini_kv: MiniKv
) -> None:
    _, writer = make.write_attempt(tmp_path)
    (writer.folder / "benchmark.json").write_bytes(b"{}")
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, writer.attempt_id in out, writer.attempt_id in err) == (7, False, True)


ENDLESS = (
    "CREATE VIEW attempts AS WITH RECURSIVE n(row) AS (SELECT 1 UNION ALL SELECT row + 1 FROM n) "
    "SELECT 'a' AS task_id, 'b' AS attempt_id, row FROM n"
)
HUGE = "CREATE TABLE attempts (task_id TEXT, attempt_id TEXT, row TEXT AS (hex(zeroblob(400000000))))"


@pytest.mark.parametrize("statement", [ENDLESS, HUGE])
def test_an_index_that_never_ends_held_the_board_for_ever(
    tmp_path: Path, mini_kv: MiniKv, statement: str
) -> None:
    attempt, _ = make.write_attempt(tmp_path)
    for path in tmp_path.glob("index.db*"):
        path.unlink()
    harm_index(tmp_path, (statement, ()), ("PRAGMA user_version=1", ()))
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, attempt.attempt_id in out) == (0, True), "the folders are read instead"
    assert "its tables are not those of an index" in err


def test_a_trigger_in_the_index_ran_when_an_attempt_was_added(tmp_path: Path) -> None:
    make.write_attempt(tmp_path)
    trigger = "CREATE TRIGGER t AFTER INSERT ON attempts BEGIN DELETE FROM attempts; END"
    harm_index(tmp_path, (trigger, ()))
    _, writer = make.write_attempt(tmp_path, random_bytes=make.counting_bytes(1))
    assert [warning.code for warning in writer.warnings] == ["INDEX_UNUSABLE"]
    assert len(read_index(tmp_path)[0]) == 2
