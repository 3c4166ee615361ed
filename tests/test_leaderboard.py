from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attempt_factory as make
from mini_kv.artifacts import read_index
from mini_kv.core.records.attempt import IndexRow, Leaderboard
from mini_kv.leaderboard import rank_attempts, rejections, to_markdown, to_text, why_not_ranked

MiniKv = Callable[..., tuple[int, str, str]]


def row(second: int = 0, **changes: Any) -> IndexRow:
    attempt_id = f"20260301T1200{second:02d}Z-00000000"
    made = IndexRow(
        task_id="rmsnorm", attempt_id=attempt_id, path=f"rmsnorm/{attempt_id}", attempt_sha256="a" * 64,
        candidate_id="v0_naive", candidate_version="1.0.0", device="cuda", suite_sha256="b" * 64,
        environment_key="c" * 64, environment="NVIDIA H200, torch 2.11.0",
        started_at=f"2026-03-01T12:00:{second:02d}.000000Z", complete=True, accepted=True, correct=True,
        benchmark_stable=True, geomean_speedup=2.0, primary_p50_us=8.0, exit_code=0,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def ranking(board: Leaderboard) -> list[tuple[int, str]]:
    (group,) = board.groups
    return [(one.rank, one.candidate_id) for one in group.rows]


# ---------------------------------------------------------------------------- ranking


def test_the_fastest_candidate_is_first() -> None:
    rows = [
        row(candidate_id="slow", geomean_speedup=0.5),
        row(candidate_id="fast", geomean_speedup=3.0),
        row(candidate_id="middle", geomean_speedup=1.5),
    ]
    assert ranking(rank_attempts(rows)) == [(1, "fast"), (2, "middle"), (3, "slow")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"complete": False}, "not complete"),
        ({"correct": False}, "not correct"),
        ({"benchmark_stable": False}, "not stable"),
        ({"benchmark_stable": False, "correct": False, "exit_code": 5}, "not stable"),
        ({"correct": False, "exit_code": 5}, "with doubtful times"),
        ({"benchmark_stable": None}, "not timed"),
        ({"environment_key": None}, "of an unknown environment"),
        ({"device": None}, "of an unknown environment"),
        ({"geomean_speedup": None}, "without a speedup"),
        ({"geomean_speedup": math.nan}, "without a speedup"),
        ({"geomean_speedup": math.inf}, "without a speedup"),
        ({"geomean_speedup": 0.0}, "without a speedup"),
    ],
)
def test_an_attempt_without_full_evidence_has_no_place(changes: dict[str, Any], reason: str) -> None:
    bad = row(**changes)
    assert why_not_ranked(bad) == reason
    assert rank_attempts([bad]).groups == ()
    assert rejections([bad, bad, row()]) == {reason: 2}


def test_only_the_latest_attempt_of_a_candidate_counts_even_if_slower() -> None:
    rows = [row(1, geomean_speedup=9.0), row(3, geomean_speedup=1.0), row(2, geomean_speedup=5.0)]
    (group,) = rank_attempts(rows).groups
    assert [(one.attempt_id, one.geomean_speedup) for one in group.rows] == [(rows[1].attempt_id, 1.0)]


def test_a_later_attempt_that_does_not_qualify_hides_nothing() -> None:
    assert ranking(rank_attempts([row(1), row(2, correct=False)])) == [(1, "v0_naive")]


def test_an_attempt_slower_than_its_baseline_is_correct_and_replaces_the_faster_one() -> None:
    rows = [row(1, geomean_speedup=4.0), row(2, geomean_speedup=2.0, accepted=False, exit_code=6)]
    (group,) = rank_attempts(rows).groups
    assert group.rows[0].geomean_speedup == 2.0


def test_two_attempts_of_one_second_are_ordered_by_their_start() -> None:
    early = row(1, attempt_id="20260301T120001Z-ffffffff", started_at="2026-03-01T12:00:01.100000Z")
    late = row(1, attempt_id="20260301T120001Z-00000000", started_at="2026-03-01T12:00:01.200000Z")
    for rows in ([early, late], [late, early]):
        assert rank_attempts(rows).groups[0].rows[0].attempt_id == late.attempt_id


def test_a_copied_candidate_took_its_originals_place_without_a_word() -> None:
    original = row(1, candidate_folder="candidates/a", code_sha256="1" * 64, geomean_speedup=3.0)
    copy = row(2, candidate_folder="candidates/b", code_sha256="2" * 64, geomean_speedup=9.0)
    (group,) = rank_attempts([original, copy, row(3, candidate_id="other")]).groups
    first = group.rows[0]
    assert (first.attempt_id, first.candidate_folder) == (copy.attempt_id, "candidates/b")
    assert first.code_sha256 == "2" * 64
    (remark,) = group.remarks
    assert remark.code == "ONE_NAME_TWO_FOLDERS"
    assert "ranked by a candidate in candidates/b, and was the name of one in candidates/a" in remark.message
    assert remark.evidence[0].startswith(f"{original.attempt_id}: 3.000x, code 1111111 from candidates/a")
    board = rank_attempts([original, copy, msgspec.structs.replace(copy, attempt_id=row(4).attempt_id)])
    assert board.groups[0].remarks, "a second run of the copy is no less a takeover"
    for text in (to_text(board), to_markdown(board)):
        assert "1.0.0+2222222" in text
        assert "candidates/a: give each a candidate\\_id" in text.replace("candidate_id", "candidate\\_id")


def test_the_same_code_from_another_folder_took_a_place_without_a_word() -> None:
    original = row(1, candidate_folder="candidates/a", code_sha256="1" * 64)
    copy = row(2, candidate_folder="candidates/b", code_sha256="1" * 64)
    (remark,) = rank_attempts([original, copy]).groups[0].remarks
    assert remark.code == "ONE_NAME_TWO_FOLDERS"
    assert "was the name of one in candidates/a" in remark.message


def test_code_that_changed_under_one_version_is_remarked_upon_and_no_other() -> None:
    first = row(1, candidate_folder="candidates/a", code_sha256="1" * 64)
    second = row(2, candidate_folder="candidates/a", code_sha256="2" * 64)
    (remark,) = rank_attempts([first, second]).groups[0].remarks
    assert (remark.code, "code 2222222; earlier" in remark.message) == ("OTHER_CODE", True)
    same = msgspec.structs.replace(second, code_sha256="1" * 64)
    raised = msgspec.structs.replace(second, candidate_version="1.1.0")
    unknown = row(0, candidate_folder=None, code_sha256=None)
    wrong = msgspec.structs.replace(second, attempt_id=row(0).attempt_id, correct=False)
    for harmless in (same, raised, unknown, wrong):
        assert rank_attempts([first, harmless]).groups[0].remarks == ()


def test_versions_of_a_candidate_stand_next_to_each_other() -> None:
    rows = [row(candidate_version="1.0.0"), row(candidate_version="1.1.0", geomean_speedup=3.0)]
    (group,) = rank_attempts(rows).groups
    assert [one.candidate_version for one in group.rows] == ["1.1.0", "1.0.0"]


@pytest.mark.parametrize(
    "other",
    [
        {"task_id": "vector_add"},
        {"suite_sha256": "d" * 64},
        {"environment_key": "e" * 64},
        {"device": "cpu"},
    ],
)
def test_what_may_not_be_compared_never_shares_a_group(other: dict[str, Any]) -> None:
    board = rank_attempts([row(), row(candidate_id="other", **other)])
    assert [len(group.rows) for group in board.groups] == [1, 1]
    assert all(group.rows[0].rank == 1 for group in board.groups)


def test_equal_speedups_share_a_rank_and_have_one_order() -> None:
    rows = [
        row(candidate_id="b", primary_p50_us=7.0),
        row(candidate_id="a", primary_p50_us=7.0),
        row(candidate_id="c", primary_p50_us=6.0),
        row(candidate_id="d", primary_p50_us=None),
        row(candidate_id="e", geomean_speedup=1.0),
    ]
    assert ranking(rank_attempts(rows)) == [(1, "c"), (1, "a"), (1, "b"), (1, "d"), (5, "e")]


def test_one_task_may_be_asked_for() -> None:
    rows = [row(), row(task_id="vector_add"), row(task_id="vector_add", correct=False)]
    assert [group.task_id for group in rank_attempts(rows, "vector_add").groups] == ["vector_add"]
    assert rejections(rows, "rmsnorm") == {}


ROWS = st.lists(
    st.builds(
        row,
        st.integers(0, 59),
        candidate_id=st.sampled_from(["a", "b", "c"]),
        candidate_version=st.sampled_from(["1.0.0", "2.0.0"]),
        device=st.sampled_from(["cpu", "cuda", None]),
        environment_key=st.sampled_from(["1" * 64, "2" * 64, None]),
        correct=st.booleans(),
        benchmark_stable=st.sampled_from([True, False, None]),
        geomean_speedup=st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
    ),
    max_size=30,
    unique_by=lambda one: one.attempt_id,
)


@given(ROWS, st.randoms(use_true_random=False))
def test_a_board_is_sorted_unique_and_independent_of_order(rows: list[IndexRow], rng: random.Random) -> None:
    board = rank_attempts(rows)
    shuffled = list(rows)
    rng.shuffle(shuffled)
    assert rank_attempts(shuffled) == board
    by_id = {one.attempt_id: one for one in rows}
    for group in board.groups:
        speedups = [one.geomean_speedup for one in group.rows]
        assert speedups == sorted(speedups, reverse=True)
        names = [(one.candidate_id, one.candidate_version) for one in group.rows]
        assert len(set(names)) == len(names)
        for one in group.rows:
            source = by_id[one.attempt_id]
            assert (source.device, source.environment_key) == (group.device, group.environment_key)
            assert why_not_ranked(source) is None
    assert sum(rejections(rows).values()) == sum(why_not_ranked(one) is not None for one in rows)


# ---------------------------------------------------------------------------- text

BOARD = rank_attempts([row(), row(candidate_id="v2_vectorized", geomean_speedup=12.345, primary_p50_us=None)])


def test_plain_text_is_aligned_and_fits_eighty_columns() -> None:
    lines = to_text(BOARD).splitlines()
    assert lines[0] == "rmsnorm on cuda: NVIDIA H200, torch 2.11.0"
    assert lines[1] == "suite bbbbbbbbbbbb, environment cccccccccccc"
    assert lines[3].split() == ["1", "v2_vectorized", "1.0.0", "12.35x", "-", "20260301T120000Z-00000000"]
    assert len({line.index("2026") for line in lines[3:]}) == 1
    assert max(map(len, lines)) <= 80


def test_markdown_is_one_table_a_group() -> None:
    text = to_markdown(BOARD)
    assert text.startswith("### rmsnorm on cuda: NVIDIA H200, torch 2.11.0\n")
    assert "| rank | candidate | version | speedup | P50 us | attempt |\n|---:|---|" in text
    assert text.count("\n| 1 | v2_vectorized | 1.0.0 | 12.35x | - |") == 1


def test_names_cannot_forge_the_table() -> None:
    board = rank_attempts([row(candidate_id="a|b\n\x1b[2Kc", environment="x\ny")])
    assert "a\\|b??\\[2Kc" in to_markdown(board)
    assert "\x1b" not in to_text(board)
    assert to_text(board).splitlines()[0].endswith("x?y")


# ---------------------------------------------------------------------------- command


def test_command_ranks_what_was_archived(tmp_path: Path, mini_kv: MiniKv) -> None:
    attempt, _ = make.write_attempt(tmp_path)
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, err) == (0, "")
    assert attempt.attempt_id in out
    assert "Example CPU, torch 2.11.0" in out
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path), "--json")
    board = msgspec.json.decode(out, type=Leaderboard)
    assert board == rank_attempts(read_index(tmp_path)[0])
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path), "--markdown", "--task", "vector_add")
    assert out.startswith("### vector_add on cpu")


def test_the_board_tells_whose_sources_an_attempt_was_made_of(tmp_path: Path, mini_kv: MiniKv) -> None:
    clock, numbers = make.ticking_clock(), make.counting_bytes()
    make.write_attempt(tmp_path, clock=clock, random_bytes=numbers)
    make.write_attempt(tmp_path, clock=clock, random_bytes=numbers)
    assert "note: " not in mini_kv("leaderboard", "--artifacts", str(tmp_path))[1]
    make.write_attempt(
        tmp_path,
        clock=clock,
        random_bytes=numbers,
        files={"a.cpp": b"//"},
        candidate_folder="candidates/copy",
    )
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert code == 0
    assert "note: v0_naive 1.0.0 is ranked by a candidate in candidates/copy" in out
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 0
    assert mini_kv("leaderboard", "--artifacts", str(tmp_path))[1] == out


def test_command_draws_a_table_on_a_terminal(
    tmp_path: Path, mini_kv: MiniKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, _ = make.write_attempt(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert code == 0
    assert attempt.attempt_id in out
    assert "2.00x" in out


def test_an_empty_board_says_what_to_do(tmp_path: Path, mini_kv: MiniKv) -> None:
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path), "--task", "rmsnorm")
    assert (code, err) == (0, "")
    assert "mini-kv verify --task tasks/rmsnorm.yaml" in out
    assert list(tmp_path.iterdir()) == []
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path), "--json")
    assert msgspec.json.decode(out, type=Leaderboard).groups == ()


def test_a_mistyped_task_is_answered_with_the_tasks_that_have_attempts(
    tmp_path: Path, mini_kv: MiniKv
) -> None:
    make.write_attempt(tmp_path)
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path), "--task", "vektor_add")
    assert (code, err) == (0, "")
    assert out == f"No attempts of task vektor_add in {tmp_path}; there are some of vector_add.\n"


def test_a_mistyped_task_without_any_attempts_was_told_to_verify_a_card_that_is_not_there(
    tmp_path: Path, mini_kv: MiniKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mini_kv.toml").touch()
    (tmp_path / "tasks" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    _, out, _ = mini_kv("leaderboard", "--task", "nope")
    assert out.endswith("Make one with: mini-kv verify --task FILE (a Task Card)\n")
    (tmp_path / "tasks" / "a.yaml").write_text('schema_version: "1.0.0"\ntask_id: first # one\n')
    (tmp_path / "tasks" / "deep" / "b.yaml").write_text('task_id: "second"\n')
    (tmp_path / "tasks" / "broken.yaml").write_bytes(b"\xff")
    code, out, _ = mini_kv("leaderboard", "--task", "nope")
    assert (code, out.partition(", and ")[2]) == (0, "no card of it; there are cards of first, second.\n")
    _, out, _ = mini_kv("leaderboard", "--task", "second")
    assert out.endswith("verify --task tasks/deep/b.yaml\n")
    assert mini_kv("leaderboard")[1].endswith("verify --task tasks/a.yaml\n")


def test_outside_any_project_an_empty_board_named_a_card_of_another(
    tmp_path: Path, mini_kv: MiniKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = mini_kv("leaderboard")
    assert (code, out) == (2, "")
    assert "There is no project here" in err and "mini_kv.toml" in err


def test_a_board_without_qualified_attempts_says_why(tmp_path: Path, mini_kv: MiniKv) -> None:
    make.write_attempt(tmp_path, benchmark_stable=False)
    make.write_attempt(tmp_path, benchmark_stable=False, random_bytes=make.counting_bytes(1))
    make.write_attempt(tmp_path, exit_code=4, accepted=False, random_bytes=make.counting_bytes(2))
    code, out, _ = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert (code, "(2 not stable, 1 not correct)" in out) == (0, True)
    assert "v0_naive" not in out


@pytest.mark.parametrize("how", ["edited", "gone"])
def test_an_attempt_changed_since_it_was_indexed_loses_its_place(
    tmp_path: Path, mini_kv: MiniKv, how: str
) -> None:
    older, _ = make.write_attempt(tmp_path, geomean_speedup=2.0)
    _, newer = make.write_attempt(
        tmp_path, geomean_speedup=3.0, clock=make.ticking_clock(make.START.replace(hour=13))
    )
    path = newer.folder / "attempt.json"
    if how == "edited":
        path.write_text(path.read_text().replace("3.0", "9.0"))
    else:
        path.unlink()
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path))
    assert code == (7 if how == "edited" else 0)
    assert newer.attempt_id in err
    assert older.attempt_id in out
    assert newer.attempt_id not in out


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, mini_kv: MiniKv) -> None:
    code, out, err = mini_kv("leaderboard", "--artifacts", str(tmp_path / "absent"))
    assert (code, out) == (2, "")
    assert "is not a folder of artifacts" in err


def test_rebuild_index_command_heals_and_names_damage(tmp_path: Path, mini_kv: MiniKv) -> None:
    _, writer = make.write_attempt(tmp_path)
    _, other = make.write_attempt(tmp_path, random_bytes=make.counting_bytes(1))
    (tmp_path / "index.db").write_bytes(b"garbage")
    (other.folder / "environment.json").write_bytes(b"{}")
    code, out, err = mini_kv("rebuild-index", "--artifacts", str(tmp_path))
    assert code == 7
    assert out.startswith("1 attempt indexed, 1 damaged and left out")
    assert other.attempt_id in err
    assert "environment.json was changed" in err
    code, out, err = mini_kv("rebuild-index", "--artifacts", str(tmp_path), "--json")
    assert code == 7
    assert msgspec.json.decode(out)["attempts"][0]["attempt_id"] == writer.attempt_id
    assert mini_kv("leaderboard", "--artifacts", str(tmp_path))[2] == ""
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path / "absent"))[0] == 2


def test_a_tampered_archive_is_not_told_with_exit_code_0(tmp_path: Path, mini_kv: MiniKv) -> None:
    _, writer = make.write_attempt(tmp_path)
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 0
    (writer.folder.parent / "20260101T000000Z-00000000.partial").mkdir()
    assert mini_kv("rebuild-index", "--artifacts", str(tmp_path))[0] == 0, "an unfinished run is no damage"
    path = writer.folder / "attempt.json"
    path.write_text(path.read_text().replace('"elapsed_s": 2.5', '"elapsed_s": 1.5'))
    code, _, err = mini_kv("rebuild-index", "--artifacts", str(tmp_path))
    assert (code, "attempt.json was changed since it was indexed" in err) == (7, True)
    path.unlink()
    code, out, _ = mini_kv("rebuild-index", "--artifacts", str(tmp_path))
    assert (code, out.partition(":")[0]) == (7, "0 attempts indexed, 1 damaged and left out")


def test_numbers_stand_at_the_right_of_their_column_and_names_at_the_left() -> None:
    rows = [
        row(1, candidate_id="a", geomean_speedup=2.0),
        row(2, candidate_id="long_name", geomean_speedup=12.0),
    ]
    lines = to_text(rank_attempts(rows)).splitlines()[2:]
    assert [line.index(name) for line, name in zip(lines, ("candidate", "long_name", "a "), strict=True)] == [
        6
    ] * 3
    assert lines[0].index("speedup") + len("speedup") == lines[2].index("2.00x") + len("2.00x")
