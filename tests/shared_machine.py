"""What the tests' processes share on one machine: its GPU, and its quiet. A plugin of pytest.

A process with a CUDA context is another user of the GPU for whatever is timed there meanwhile
(``GPU_SHARED``). torch opens one where nobody asks for it: torch.compile saves the GPU's random state. So a
test process sees no GPU at all. Tests marked ``gpu`` show it to the processes that they start, one such test
at a time on a machine. What has to call CUDA in the test's own process is marked ``cuda_here`` and runs in a
pytest of its own (``--cuda-here``), which ``test_shared_machine.py`` starts.

Times are stretched by whatever else runs. A test that has to measure again asks for the fixture
``machine_alone``, which keeps xdist's other workers between their tests meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_LOCK = Path(tempfile.gettempdir()) / f"mini-kv-tests-gpu-{os.getuid()}.lock"
_SEEN_BEFORE = pytest.StashKey[str | None]()
_FOLDER = pytest.StashKey[str]()
_TURNS = pytest.StashKey["Turns"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cuda-here`` lets this process open a CUDA context, and runs what is marked ``cuda_here``."""
    parser.addoption("--cuda-here", action="store_true", help="run tests that call CUDA in their own process")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs before anything can import torch; who only starts xdist's workers hands them on."""
    handed = getattr(config, "workerinput", None)
    if handed is None and config.getoption("numprocesses", None):
        config.stash[_FOLDER] = tempfile.mkdtemp(prefix="mini-kv-tests-")
        return
    if handed is not None:
        config.stash[_TURNS] = Turns(Path(handed["turns"]))
    if not config.getoption("--cuda-here"):
        config.stash[_SEEN_BEFORE] = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = ""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each of xdist's workers where they take turns."""
    node.workerinput["turns"] = node.config.stash[_FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the environment as it was, and no folder."""
    if _SEEN_BEFORE in config.stash:
        _set(os.environ, config.stash[_SEEN_BEFORE])
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what would open a context here."""
    if config.getoption("--cuda-here"):
        return
    for item in items:
        if item.get_closest_marker("cuda_here"):
            item.add_marker(pytest.mark.skip(reason="calls CUDA in its own process (--cuda-here)"))


# First, so that waiting for other tests counts towards no test's time limit.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the test's turn; show the GPUs to what a test marked ``gpu`` starts."""
    stash = item.config.stash
    with ExitStack() as stack:
        if _SEEN_BEFORE in stash and item.get_closest_marker("gpu"):
            stack.enter_context(locked(GPU_LOCK))
            stack.enter_context(shown(os.environ, stash[_SEEN_BEFORE]))
        if _TURNS in stash:
            # After the GPU: who waits for that would keep others waiting for quiet.
            stack.enter_context(stash[_TURNS].shared())
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Refuse a test that leaves a context here: all that is timed later would have a neighbour."""
    yield
    torch = sys.modules.get("torch")
    if _SEEN_BEFORE in item.config.stash and torch is not None and torch.cuda.is_initialized():
        pytest.fail(
            "the test process has opened a CUDA context; mark what does it 'cuda_here'", pytrace=False
        )


@pytest.fixture
def machine_alone(pytestconfig: pytest.Config) -> Callable[[], AbstractContextManager[None]]:
    """Return what makes a block during which xdist's other workers run no test."""
    turns = pytestconfig.stash.get(_TURNS, None)
    return nullcontext if turns is None else turns.alone


class Turns:
    """Blocks that run at once with others, or alone: a lock in a folder, for processes that all know it.

    Who waits to be alone closes the gate, so that a stream of short blocks does not keep it waiting.
    """

    def __init__(self, folder: Path) -> None:
        self._gate = (folder / "gate").open("w")
        self._room = (folder / "room").open("w")

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Run with others."""
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run alone, within a shared block, which is left for the time."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file, which is made; waits for whoever holds it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def shown(environ: MutableMapping[str, str], visible: str | None) -> Iterator[None]:
    """Give ``CUDA_VISIBLE_DEVICES`` this value (``None``: unset) in the block, then the one before."""
    before = environ.get(VISIBLE)
    _set(environ, visible)
    try:
        yield
    finally:
        _set(environ, before)


def _set(environ: MutableMapping[str, str], visible: str | None) -> None:
    if visible is None:
        environ.pop(VISIBLE, None)
    else:
        environ[VISIBLE] = visible
