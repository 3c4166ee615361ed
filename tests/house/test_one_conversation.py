"""Each message to a worker that several stages send is made in one place, by a typed method."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "mini_kv"
# The protocol defines the messages, the workers match on them.
SAID_ELSEWHERE = ("core/protocol/", "worker/")
SAID_ONCE = (
    "LoadReference",
    "MakeCase",
    "Compare",
    "AuditCase",
    "Forget",
    "PrepareReferenceTiming",
    "MeasureTimer",
    "TimeCopies",
    "DropTiming",
)


def modules(package: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package).as_posix(), ast.parse(path.read_text("utf-8"))


def places_of(message: str, package: Path) -> list[str]:
    """Return where a message is made outside protocol and workers, as module and line."""
    return [
        f"{name}:{node.lineno}"
        for name, tree in modules(package)
        if not name.startswith(SAID_ELSEWHERE)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == message
    ]


@pytest.mark.parametrize("message", SAID_ONCE)
def test_a_message_to_a_worker_is_made_in_one_place(message: str) -> None:
    assert len(places_of(message, PACKAGE)) == 1, places_of(message, PACKAGE)


def test_a_message_that_is_made_again_elsewhere_is_seen(tmp_path: Path) -> None:
    for name, source in {
        "system/client.py": "ask(p.Forget(key=key))",
        "stage.py": "\nask(protocol.Forget(key=key))",
        "other.py": "ask(Forget(key=key)); Forgetful(); p.Forget",
        "worker/oracle.py": "p.Forget(key=key)",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    assert places_of("Forget", tmp_path) == ["other.py:1", "stage.py:2", "system/client.py:1"]
