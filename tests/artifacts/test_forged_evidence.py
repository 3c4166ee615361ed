"""Evidence that somebody forged by hand: each way in that was once open, by its name."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import attempt_factory as make
from mini_kv.artifacts import load_baseline, promote_baseline, read_index, rebuild_index
from mini_kv.artifacts.attempts import read_record_bytes
from mini_kv.artifacts.folders import entry_of as entry
from mini_kv.artifacts.index import LAYOUT_VERSION, SETTLED_S
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import IntegrityError
from mini_kv.core.printable import markdown_cell
from mini_kv.core.record import from_json, to_builtins, to_json
from mini_kv.core.records.attempt import IndexRow
from mini_kv.core.records.results import Status
from mini_kv.core.rules.statistics import summarize
from mini_kv.system.archive_folder import list_files

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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["index.db", "index.db-wal", "index.lock"])
def test_a_pipe_in_the_place_of_the_index_was_waited_for(tmp_path: Path, mini_kv: MiniKv, name: str) -> None:
    attempt, _ = make.write_attempt(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, attempt.attempt_id in out) == (0, True)
    assert ("is not a regular file" in err) == (name != "index.lock")
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 0
    assert mini_kv("leaderboard", "--artifacts", str(tmp_path))[::2] == (0, "")


@pytest.mark.timeout(60)
def test_a_pipe_put_in_after_the_look_at_an_attempt_was_waited_for(
    tmp_path: Path, mini_kv: MiniKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer = make.write_attempt(tmp_path)

    def swapped(folder: Path) -> Any:
        found = list_files(folder)
        (folder / "sources/binding.cpp").unlink()
        os.mkfifo(folder / "sources/binding.cpp")
        monkeypatch.undo()
        return found

    monkeypatch.setattr("mini_kv.artifacts.attempts.list_files", swapped)
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, writer.attempt_id in out) == (7, False)
    assert "was changed since it was indexed" in err
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 7


def settle(folder: Path) -> None:
    """Date an attempt back, as if its run had long ended."""
    past_s = (folder / "attempt.json").stat().st_mtime - 2 * SETTLED_S
    os.utime(folder / "attempt.json", (past_s, past_s))


def test_a_row_deleted_from_the_index_hid_its_attempt(tmp_path: Path, mini_kv: MiniKv) -> None:
    clock, numbers = make.ticking_clock(), make.counting_bytes()
    kept, _ = make.write_attempt(tmp_path, clock=clock, random_bytes=numbers, candidate_id="kept")
    hidden, writer = make.write_attempt(tmp_path, clock=clock, random_bytes=numbers, candidate_id="hidden")
    harm_index(tmp_path, ("DELETE FROM attempts WHERE attempt_id = ?", (hidden.attempt_id,)))
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, hidden.attempt_id in out, err) == (0, True, ""), (
        "a run that is about to index it is accused"
    )
    settle(writer.folder)
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path), "--json")
    assert (code, hidden.attempt_id in out, kept.attempt_id in out) == (0, True, True)
    assert f"lacks 1 attempt that the folders hold (vector_add/{hidden.attempt_id})" in err
    assert [finding["code"] for finding in json.loads(out)["findings"]] == ["INDEX_INCOMPLETE"]
    (writer.folder / "benchmark.json").write_bytes(b"{}")
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, hidden.attempt_id in out, "is not what was archived" in err) == (7, False, True)
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 7
    assert mini_kv("leaderboard", "--artifacts", str(tmp_path))[::2] == (0, ""), "it was told of"


def test_a_row_moved_out_of_the_table_of_attempts_hid_its_attempt(tmp_path: Path, mini_kv: MiniKv) -> None:
    hidden, writer = make.write_attempt(tmp_path)
    settle(writer.folder)
    digest = sha256_bytes((writer.folder / "attempt.json").read_bytes())
    harm_index(
        tmp_path,
        ("DELETE FROM attempts", ()),
        ("INSERT INTO unlisted VALUES (?, ?, ?)", ("vector_add", hidden.attempt_id, digest)),
    )
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, hidden.attempt_id in out, "lacks 1 attempt" in err) == (0, True, True)


def test_other_attempts_of_the_archive_were_read_for_one_task(tmp_path: Path, mini_kv: MiniKv) -> None:
    other = make.write_attempt(tmp_path, task=make.card("rmsnorm"))[1]
    make.write_attempt(tmp_path)
    settle(other.folder)
    harm_index(tmp_path, ("DELETE FROM attempts WHERE task_id = 'rmsnorm'", ()))
    assert mini_kv("leaderboard", "--artifacts", str(tmp_path), "--task", "vector_add")[::2] == (0, "")
    (other.folder / "attempt.json").unlink()
    assert mini_kv("leaderboard", "--artifacts", str(tmp_path), "--task", "vector_add")[::2] == (0, "")


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
    harm_index(tmp_path, (statement, ()), (f"PRAGMA user_version={LAYOUT_VERSION}", ()))
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


def forge_attempt(folder: Path, **forged: Any) -> None:
    """Rewrite ``attempt.json`` as the judge would have written it, and take the index away."""
    path = folder / "attempt.json"
    path.write_bytes(to_json(json.loads(path.read_bytes()) | forged))
    for index in folder.parent.parent.glob("index.db*"):
        index.unlink()


@pytest.mark.parametrize(
    "forged",
    [
        {"geomean_speedup": 50.0},
        {"primary_p50_us": 0.1},
        {"candidate_id": "v9_another"},
        {"candidate_version": "9.0.0"},
        {"build_key": "0" * 64},
        {"suite_sha256": "0" * 64},
        {"started_at": "2030-01-01T00:00:00.000000Z"},
    ],
)
def test_an_attempt_was_ranked_and_promoted_by_figures_that_its_own_records_deny(
    tmp_path: Path, mini_kv: MiniKv, forged: dict[str, Any]
) -> None:
    _, writer = make.write_attempt(tmp_path)
    forge_attempt(writer.folder, **forged)
    code, _, err = mini_kv("rebuild-index", "--artifacts", str(tmp_path))
    assert (code, "contradicts its own records" in err) == (7, True)
    assert writer.attempt_id not in mini_kv("leaderboard", "--artifacts", str(tmp_path))[1]
    with pytest.raises(IntegrityError, match="contradicts its own records"):
        promote_baseline(writer.folder, tmp_path / "baseline.json", now=make.START)


@pytest.mark.parametrize("name", ["correctness.json", "compile.json", "candidate_manifest.json"])
def test_an_attempt_was_correct_without_the_record_that_shows_it(tmp_path: Path, name: str) -> None:
    _, writer = make.write_attempt(tmp_path)
    (writer.folder / name).unlink()
    files = json.loads((writer.folder / "attempt.json").read_bytes())["files"]
    forge_attempt(writer.folder, files=[file for file in files if file["path"] != name])
    (damaged,) = rebuild_index(tmp_path).damaged
    assert damaged.code == "ATTEMPT_CONTRADICTED"
    assert f"it holds no {name}" in damaged.evidence[0]


def rewrite(folder: Path, name: str, **changes: Any) -> None:
    """Edit one record of an attempt and hash it again, as the judge would have written both."""
    path = folder / name
    path.write_bytes(to_json(json.loads(path.read_bytes()) | changes))
    files = json.loads((folder / "attempt.json").read_bytes())["files"]
    for file in files:
        if file["path"] == name:
            file |= {"sha256": sha256_bytes(path.read_bytes()), "size_bytes": path.stat().st_size}
    forge_attempt(folder, files=files)


@pytest.mark.parametrize("forged", [{"cpu_model": "Faster CPU"}, {"torch": "2.12.0"}, {"timer_plan": "x"}])
def test_an_attempt_of_another_machine_stood_among_those_of_this_one(
    tmp_path: Path, mini_kv: MiniKv, forged: dict[str, Any]
) -> None:
    _, writer = make.write_attempt(tmp_path)
    rewrite(writer.folder, "environment.json", **forged)
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, writer.attempt_id in out) == (7, False)
    assert f"{writer.attempt_id} contradicts its own records" in err
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 7
    with pytest.raises(IntegrityError, match="does not follow from the environment"):
        promote_baseline(writer.folder, tmp_path / "baseline.json", now=make.START)


def test_a_gpu_environment_without_a_gpu_was_believed(tmp_path: Path) -> None:
    _, writer = make.write_attempt(tmp_path, machine=make.environment("cuda"))
    assert rebuild_index(tmp_path).damaged == ()
    rewrite(writer.folder, "environment.json", gpus=[])
    (damaged,) = rebuild_index(tmp_path).damaged
    assert "does not follow from the environment" in damaged.evidence[0]


def test_a_failed_attempt_became_a_correct_one_by_an_edit_of_its_axes(tmp_path: Path) -> None:
    _, writer = make.write_attempt(tmp_path)
    rewrite(writer.folder, "correctness.json", **to_builtins(make.correctness(Status.FAIL)))
    (damaged,) = rebuild_index(tmp_path).damaged
    assert damaged.evidence == ("it says that its correctness is PASS, its records say FAIL",)


def test_a_copied_attempt_stood_for_a_later_one(tmp_path: Path) -> None:
    _, writer = make.write_attempt(tmp_path)
    later = writer.folder.with_name("20260401T120000Z-00000001")
    shutil.copytree(writer.folder, later)
    forge_attempt(later, attempt_id=later.name)
    index = rebuild_index(tmp_path)
    assert [row.attempt_id for row in index.attempts] == [writer.attempt_id]
    assert "its id's time is 20260401T120000Z" in index.damaged[0].evidence[0]


def set_p50(value: float) -> Callable[[dict[str, Any]], None]:
    def edit(baseline: dict[str, Any]) -> None:
        baseline["benchmark"]["cases"][0]["candidate"]["p50_us"] = value

    return edit


def tiny(case: dict[str, Any]) -> dict[str, Any]:
    """Return a series so short that the speedup over the reference is no number."""
    samples = tuple(tuple(5e-324 for _ in repeat) for repeat in case["candidate"]["samples_us"])
    made = summarize(samples, calls_per_sample=1, launch_exposed=0, floor_us=0.0, tick_us=5e-324)
    return dict(to_builtins(made))


@pytest.mark.parametrize(
    "edit",
    [
        set_p50(100.0),
        set_p50(1.0),
        set_p50(-1.0),
        lambda it: it["benchmark"]["cases"][0].update(candidate=tiny(it["benchmark"]["cases"][0])),
        lambda it: it["benchmark"].update(cases=[]),
        lambda it: it["benchmark"].update(cases=it["benchmark"]["cases"] * 2),
        lambda it: it["benchmark"].update(status="FAIL"),
        lambda it: it["benchmark"].update(device="cuda"),
        lambda it: it["benchmark"]["cases"][0].update(stable=False),
        lambda it: it["benchmark"]["cases"][0].update(candidate=None),
        lambda it: it["benchmark"]["cases"][0]["candidate"].update(samples_us=[]),
        lambda it: it["attempt"].update(environment_key="a" * 64),
        lambda it: it["environment"].update(cpu_model="Faster CPU"),
        lambda it: it["candidate_manifest"].update(candidate_id="another"),
    ],
)
def test_a_baseline_that_was_hashed_again_after_an_edit_was_compared_with(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    output = tmp_path / "baseline.json"
    promote_baseline(make.write_attempt(tmp_path / "artifacts")[1].folder, output, now=make.START)
    baseline = json.loads(output.read_bytes())
    edit(baseline)
    for file in baseline["attempt"]["files"]:
        part = file["path"].removesuffix(".json")
        if part in ("candidate_manifest", "environment", "benchmark"):
            file["sha256"] = sha256_bytes(to_json(baseline[part]))
    baseline["attempt_sha256"] = sha256_bytes(to_json(baseline["attempt"]))
    output.write_bytes(to_json(baseline))
    with pytest.raises(IntegrityError, match="contradicts itself"):
        load_baseline(output)


def test_a_ring_of_links_and_deep_json_were_faults_of_the_tool(tmp_path: Path, mini_kv: MiniKv) -> None:
    _, writer = make.write_attempt(tmp_path / "artifacts")
    ring = tmp_path / "ring"
    ring.symlink_to(ring)
    assert mini_kv("verify", "--task", "tasks/vector_add.yaml", "--baseline", str(ring))[0] == 2
    deep = tmp_path / "deep.json"
    deep.write_bytes(b"[" * 200_000)
    code, _, err = mini_kv(
        "promote-baseline", "--attempt", str(writer.folder), "--output", str(deep), "--replace"
    )
    assert (code, "is no baseline" in err) == (2, True)


def test_every_forged_row_made_the_board_hash_all_the_others_again(
    tmp_path: Path, mini_kv: MiniKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, numbers = make.ticking_clock(), make.counting_bytes()
    for _ in range(6):
        make.write_attempt(tmp_path, clock=clock, random_bytes=numbers)
    make.write_attempt(tmp_path, clock=clock, random_bytes=numbers, candidate_id="another")
    for row in read_index(tmp_path)[0]:
        if row.candidate_id == "v0_naive":
            (tmp_path / row.path / "benchmark.json").write_bytes(b"{}")
    looked_at: list[str] = []

    def counted(folder: Path) -> object:
        looked_at.append(folder.name)
        return entry(folder)

    monkeypatch.setattr("mini_kv.artifacts.index.entry_of", counted)
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, "another" in out) == (7, True)
    assert len(looked_at) == len(set(looked_at)) == 7


def test_a_message_that_ended_its_cell_made_another_of_the_table() -> None:
    assert markdown_cell("x\\| PASS |") == "x\\\\\\| PASS \\|", "a backslash of its own freed the bar"
    assert markdown_cell("![x](http://y) `z` <b>\n") == "!\\[x\\](http://y) \\`z\\` &lt;b&gt;\\\\n"


def test_a_baseline_written_into_its_own_attempt_spoilt_the_attempt(tmp_path: Path, mini_kv: MiniKv) -> None:
    _, writer = make.write_attempt(tmp_path)
    output = writer.folder / "baseline.json"
    code, _, err = mini_kv("promote-baseline", "--attempt", str(writer.folder), "--output", str(output))
    assert (code, "the attempt's own folder" in err, output.exists()) == (2, True, False)
    assert rebuild_index(tmp_path).damaged == ()


def test_a_record_that_grows_while_it_is_read_was_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_kv.artifacts.attempts.MAX_RECORD_BYTES", 3)
    hides_its_size = Path("/proc/self/status")
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_record_bytes(hides_its_size)
