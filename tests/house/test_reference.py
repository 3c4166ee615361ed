"""docs/reference.md says what the code says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from mini_kv.cli.main import COMMANDS
from mini_kv.core.errors import ExitCode
from mini_kv.core.records.card import CandidateManifest, Contract, TaskCard
from mini_kv.core.records.schemas import RECORDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location("generate_reference", SCRIPTS / "generate_reference.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SCRIPTS))


def test_the_committed_files_are_what_the_code_says(script: ModuleType) -> None:
    for path, text in script.generated_files(ROOT).items():
        assert path.read_text("utf-8") == text, f"{path.name} is stale: run 'make fix'"


def test_check_names_a_stale_file_and_fails_without_writing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("old")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "generated_files", lambda root: {page: "new"})
    assert script.main(["--check"]) == 1
    assert "page.md" in capsys.readouterr().err
    assert page.read_text() == "old"
    assert script.main([]) == 0
    assert page.read_text() == "new"
    assert script.main(["--check"]) == 0


def test_every_command_record_and_exit_code_is_described(script: ModuleType) -> None:
    page = script.reference_page(ROOT)
    for name in COMMANDS:
        assert f"### mini-kv {name}\n" in page
    records = script.records_page(ROOT)
    for name in RECORDS:
        assert f"### {name}\n" in records
    assert set(script.EXIT_CODES) == set(map(int, ExitCode))


@pytest.mark.parametrize(
    ("table", "record"),
    [("CARD_KEYS", TaskCard), ("MANIFEST_KEYS", CandidateManifest), ("CONTRACT_KEYS", Contract)],
)
def test_every_key_that_people_write_has_a_meaning(
    script: ModuleType, table: str, record: type[msgspec.Struct]
) -> None:
    assert tuple(getattr(script, table)) == record.__struct_encode_fields__
