"""Evidence that somebody forged by hand: each way in that was once open, by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import attempt_factory as make

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
