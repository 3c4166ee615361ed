"""What a worker itself refuses or survives before and around the operator it is asked to call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mini_kv
from fake_worker import use_script
from mini_kv.core import protocol as p
from mini_kv.core.canonical import sha256_bytes
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.workers import Answer, Nursery
from mini_kv.worker.candidate import Candidate


def load(dispatcher: str, library: Path, digest: str | None = None) -> p.Reply:
    request = p.LoadCandidate(
        library=str(library),
        library_sha256=digest or sha256_bytes(library.read_bytes()),
        python=None,
        dispatcher=dispatcher,
        schema="f(Tensor x) -> Tensor",
    )
    return Candidate().answer(request, [])[0]


@pytest.fixture
def no_library(tmp_path: Path) -> Path:
    path = tmp_path / "no_library.so"
    path.write_bytes(b"this is not ELF")
    return path


@pytest.mark.parametrize("name", ["aten::add", "aten::relu", "prims::add"])
def test_a_name_that_torch_has_already_is_refused_before_the_library_is_opened(
    name: str, no_library: Path
) -> None:
    reply = load(name, no_library)
    assert isinstance(reply, p.Failed)
    assert reply.code == "OPERATOR_ALREADY_REGISTERED"
    assert name in reply.message


def test_a_library_that_is_not_the_one_that_was_built_is_not_opened(no_library: Path) -> None:
    reply = load("fixture_none::f", no_library, "0" * 64)
    assert isinstance(reply, p.Failed)
    assert reply.code == "LIBRARY_CHANGED"


def test_a_file_that_is_no_library_is_told_in_the_loaders_words(no_library: Path) -> None:
    reply = load("fixture_none::f", no_library)
    assert isinstance(reply, p.Failed)
    assert reply.code == "LIBRARY_DOES_NOT_LOAD"
    assert "no_library.so" in reply.message
    assert "invalid ELF header" in reply.message or "file too short" in reply.message


def test_a_case_before_any_library_is_refused() -> None:
    with pytest.raises(ValueError, match="LoadCandidate comes first"):
        Candidate().answer(p.CheckContract(check="gradcheck", argument_sets=((),), autograd=False), [])


def test_a_request_of_the_oracles_is_not_answered() -> None:
    with pytest.raises(ValueError, match="does not answer"):
        Candidate().answer(p.Forget(key="k"), [])


# ---------------------------------------------------------------------------- the main loop

LOOP = """
from mini_kv.worker import main as module
class Role:
    def answer(self, request, payloads):
        {body}
module._role = lambda name: Role()
module.main('oracle', os.dup(wire.socket.fileno()), os.getppid())
"""


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    adopt_orphans()
    made = Nursery(tmp_path, [str(Path(mini_kv.__file__).parent.parent), *filter(None, sys.path)])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        ("raise SystemExit(3)", "SystemExit", "3"),
        ("raise ValueError('plain')", "ValueError", "plain"),
        ("raise ValueError('half \\udcff')", "ValueError", "half \\udcff"),
        ("raise ValueError()", "ValueError", "ValueError()"),
        ("return p.Failed(code='X', message='half \\udcff'), ()", "UnicodeEncodeError", "surrogates"),
        ("return object(), ()", "TypeError", "object"),
    ],
    ids=["exit", "exception", "surrogate", "no-text", "unsendable-text", "unsendable-reply"],
)
def test_whatever_a_role_raises_or_returns_the_worker_answers_and_lives(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch, body: str, code: str, part: str
) -> None:
    use_script(monkeypatch, LOOP.format(body=body))
    worker = nursery.start("oracle")
    for _ in range(2):
        answer = worker.request(p.Forget(key="k"), timeout_s=20.0)
        assert isinstance(answer, Answer), answer
        assert isinstance(answer.reply, p.Failed)
        assert answer.reply.code == code
        assert part in answer.reply.message
