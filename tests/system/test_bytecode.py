"""Bytecode that caged workers find: when it is missing, and that one run leaves it for the next."""

from __future__ import annotations

import importlib.util
import os
import py_compile
from pathlib import Path

import pytest

from mini_kv.system.bytecode import SAMPLES, lacks_bytecode, torch_folder


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A folder with the modules that are looked at; only the last of them has no bytecode."""
    for name in SAMPLES:
        one = tmp_path / "torch" / name
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text("ANSWER = 42\n")
        if name != SAMPLES[-1]:
            py_compile.compile(str(one), doraise=True)
    return tmp_path / "torch"


def module(torch: Path) -> Path:
    return torch / SAMPLES[-1]


def test_the_torch_of_the_workers_has_the_modules_that_are_looked_at() -> None:
    found = torch_folder()
    assert found is not None
    assert [name for name in SAMPLES if not (found / name).is_file()] == []


def test_missing_bytecode_is_missed(torch: Path) -> None:
    assert lacks_bytecode(torch)


def test_valid_bytecode_is_found(torch: Path) -> None:
    py_compile.compile(str(module(torch)), doraise=True)
    assert not lacks_bytecode(torch)


@pytest.mark.parametrize("mode", ["CHECKED_HASH", "UNCHECKED_HASH"])
def test_bytecode_by_hash_is_found(torch: Path, mode: str) -> None:
    py_compile.compile(
        str(module(torch)), doraise=True, invalidation_mode=py_compile.PycInvalidationMode[mode]
    )
    assert not lacks_bytecode(torch)


def test_bytecode_of_an_older_source_is_no_bytecode(torch: Path) -> None:
    py_compile.compile(str(module(torch)), doraise=True)
    os.utime(module(torch), (1, 1))
    assert lacks_bytecode(torch)


@pytest.mark.parametrize("raw", [b"", b"short", bytes(16)])
def test_a_file_that_is_no_bytecode_is_none(torch: Path, raw: bytes) -> None:
    cached = Path(importlib.util.cache_from_source(str(module(torch))))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(raw)
    assert lacks_bytecode(torch)


def test_where_nothing_can_be_written_nothing_is_tried(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not lacks_bytecode(torch)


def test_a_torch_without_that_module_or_none_at_all_is_left_alone(tmp_path: Path) -> None:
    assert not lacks_bytecode(tmp_path)
    assert not lacks_bytecode(None)
