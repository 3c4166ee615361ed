"""Each message to a worker that several stages send is made in one place, by a typed method."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from mini_kv.core.protocol import oracle

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


def makers(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what is called, given to a call that may make it, or given another name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "cast" | "expect_reply")):
                pass
            case ast.Call(func=function, args=given):
                yield from (function, *given)
            case ast.Assign(value=ast.Name() | ast.Attribute() as renamed):
                yield renamed
            case _:
                pass


def places_of(message: str, package: Path) -> list[str]:
    """Return where a message is made outside protocol and workers, as module and line."""
    found = []
    for name, tree in modules(package):
        if name.startswith(SAID_ELSEWHERE):
            continue
        imported = (one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names)
        names = {message} | {one.asname for one in imported if one.name == message and one.asname}
        places = (one for one in makers(tree) if isinstance(one, ast.Name | ast.Attribute))
        found += [f"{name}:{one.lineno}" for one in places if ast.unparse(one).rpartition(".")[2] in names]
    return found


@pytest.mark.parametrize("message", SAID_ONCE)
def test_a_message_to_a_worker_is_made_in_one_place(message: str) -> None:
    assert len(places_of(message, PACKAGE)) == 1, places_of(message, PACKAGE)


def test_every_request_to_the_oracle_alone_is_made_in_one_place() -> None:
    assert {one.__name__ for one in get_args(oracle.OracleRequest)} <= set(SAID_ONCE)


def past_the_client(package: Path) -> list[str]:
    """Return the modules that ask the oracle in their own words."""
    return [
        name
        for name, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("oracle.ask")
    ]


def test_the_oracle_is_asked_by_its_client(tmp_path: Path) -> None:
    # Both workers are asked for the kernels of a case in the same words.
    assert past_the_client(PACKAGE) == ["benchmark/witnesses.py"] * 2
    (tmp_path / "stage.py").write_text("subject.oracle.ask(p.TimeBatch())\nsubject.oracle.forget('key')\n")
    assert past_the_client(tmp_path) == ["stage.py"]


@pytest.mark.parametrize(
    "source",
    [
        "from mini_kv.core.protocol import Forget as F\nF(key=key)",
        "make = p.Forget",
        "make = partial(p.Forget, key=key)",
        "requests = map(p.Forget, keys)",
        "p.Forget(**words)",
    ],
)
def test_a_message_under_another_name_is_seen(tmp_path: Path, source: str) -> None:
    (tmp_path / "stage.py").write_text(source)
    assert len(places_of("Forget", tmp_path)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(request, p.Forget)",
        "def f(request: p.Forget) -> str:\n    return request.key",
        "match request:\n    case p.Forget():\n        pass",
        "Asked = p.Forget | p.Compare",
    ],
)
def test_a_message_that_is_only_spoken_of_is_not_made(tmp_path: Path, source: str) -> None:
    (tmp_path / "stage.py").write_text(source)
    assert places_of("Forget", tmp_path) == []


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
