"""Paths stay inside their bound however they are written, and only small regular files are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mini_kv.system.paths import (
    PROJECT_MARKERS,
    PathRefused,
    confined_path,
    find_project_root,
    read_regular_file,
    require_regular_file,
    shown_path,
)


@pytest.fixture
def real_tmp(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


# ---------------------------------------------------------------------- the project's root


@pytest.mark.parametrize("marker", PROJECT_MARKERS)
def test_the_nearest_folder_with_a_marker_is_the_project(real_tmp: Path, marker: str) -> None:
    (real_tmp / "outer/inner/tasks").mkdir(parents=True)
    (real_tmp / "outer/pyproject.toml").touch()
    (real_tmp / "outer/inner" / marker).touch()
    assert find_project_root(real_tmp / "outer/inner/tasks/x.yaml") == real_tmp / "outer/inner"
    assert find_project_root(real_tmp / "outer/inner") == real_tmp / "outer/inner"
    assert find_project_root(real_tmp / "outer/x.yaml") == real_tmp / "outer"


def test_without_a_marker_the_current_folder_bounds_a_card_below_it(
    real_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (real_tmp / "here/tasks").mkdir(parents=True)
    (real_tmp / "there").mkdir()
    monkeypatch.chdir(real_tmp / "here")
    assert find_project_root(Path("tasks/x.yaml")) == real_tmp / "here"
    assert find_project_root(real_tmp / "there/x.yaml") == real_tmp / "there"


def test_a_linked_card_belongs_to_the_project_of_its_link(real_tmp: Path) -> None:
    (real_tmp / "a").mkdir()
    (real_tmp / "b").mkdir()
    (real_tmp / "a/mini_kv.toml").touch()
    (real_tmp / "b/mini_kv.toml").touch()
    (real_tmp / "b/x.yaml").touch()
    (real_tmp / "a/x.yaml").symlink_to(real_tmp / "b/x.yaml")
    assert find_project_root(real_tmp / "a/x.yaml") == real_tmp / "a"


def test_a_broken_link_as_a_marker_counts(real_tmp: Path) -> None:
    (real_tmp / ".git").symlink_to("nowhere")
    (real_tmp / "tasks").mkdir()
    assert find_project_root(real_tmp / "tasks/x.yaml") == real_tmp


def test_a_path_is_shown_relative_to_the_project(real_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (real_tmp / "p/tasks").mkdir(parents=True)
    monkeypatch.chdir(real_tmp / "p/tasks")
    assert shown_path(Path("x.yaml"), real_tmp / "p") == "tasks/x.yaml"
    assert shown_path(Path("../../q.yaml"), real_tmp / "p") == "../../q.yaml"
    assert shown_path(Path("a\tb\udc80"), real_tmp / "p") == "tasks/a\\tb\\udc80"


# ---------------------------------------------------------------------- confinement


@pytest.mark.parametrize(
    "text", ["a", "a/b", "./a", "a//b", "a/", "..a", "a..b", "a/.hidden", "with space", "ü"]
)
def test_a_path_inside_is_resolved(real_tmp: Path, text: str) -> None:
    assert confined_path(text, real_tmp, "the project") == Path(os.path.normpath(real_tmp / text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "''"),
        ("..", "'..' in '..'"),
        ("../a", "'..' in '../a'"),
        ("a/../b", "'..' in 'a/../b'"),
        ("a/..", "'..' in 'a/..'"),
        ("/", "the absolute path '/'"),
        ("/etc/passwd", "the absolute path '/etc/passwd'"),
        ("~root/x", "the absolute path '~root/x'"),
        ("C:\\x", "the absolute path 'C:\\\\x'"),
        ("a\\..\\b", "a backslash in 'a\\\\..\\\\b'"),
        ("a\0b", "'a\\x00b'"),
        ("a\nb", "'a\\nb'"),
    ],
)
def test_a_path_that_could_lead_out_is_refused(real_tmp: Path, text: str, found: str) -> None:
    with pytest.raises(PathRefused) as caught:
        confined_path(text, real_tmp, "the project")
    assert caught.value.found == found
    assert caught.value.allowed == "a relative path with '/' that stays inside the project"


def test_a_link_out_is_refused_wherever_it_stands_in_the_path(real_tmp: Path) -> None:
    bound, outside = real_tmp / "bound", real_tmp / "bound_not"
    (bound / "deep").mkdir(parents=True)
    outside.mkdir()
    (bound / "deep/out").symlink_to("../../bound_not")
    (bound / "hop").symlink_to("deep")
    for text in ("deep/out", "deep/out/file", "hop/out", "hop/out/missing/file"):
        with pytest.raises(PathRefused, match="a symbolic link leads out of the candidate's folder"):
            confined_path(text, bound, "the candidate's folder")
    assert confined_path("hop/file", bound, "the candidate's folder") == bound / "deep/file"


def test_a_loop_of_links_ends(real_tmp: Path) -> None:
    (real_tmp / "a").symlink_to("b")
    (real_tmp / "b").symlink_to("a")
    with pytest.raises(PathRefused):
        require_regular_file(confined_path("a", real_tmp, "the project"))


# ---------------------------------------------------------------------- reading


def test_a_regular_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    assert read_regular_file(path, 10) == b"x" * 10
    with pytest.raises(PathRefused) as caught:
        read_regular_file(path, 9)
    assert str(caught.value) == "found a file of 10 bytes; allowed: at most 9 bytes"


def test_a_file_that_hides_its_size_is_still_bounded() -> None:
    with pytest.raises(PathRefused, match="at most 10 bytes"):
        read_regular_file(Path("/proc/self/status"), 10)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "a directory"),
        (os.mkfifo, "a pipe, socket or device"),
        (lambda path: path.symlink_to(path), "a loop of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "a pipe, socket or device"),
    ],
    ids=["missing", "directory", "pipe", "loop", "device"],
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: object, found: str) -> None:
    path = tmp_path / "f"
    assert callable(make)
    make(path)
    for refuse in (lambda: read_regular_file(path, 10), lambda: require_regular_file(path)):
        with pytest.raises(PathRefused) as caught:
            refuse()
        assert caught.value.found == found


def test_a_file_below_a_file_and_a_name_too_long_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(PathRefused, match="no such file"):
        read_regular_file(tmp_path / "f/g", 10)
    with pytest.raises(PathRefused, match="cannot be opened"):
        read_regular_file(tmp_path / ("x" * 300), 10)
    with pytest.raises(PathRefused, match="NUL byte"):
        read_regular_file(Path("a\0b"), 10)
