"""Who may use the GPU during the tests: workers and children may, the test process itself may not.

A process with a CUDA context is another user of the GPU for whatever is timed there meanwhile
(``GPU_SHARED``). torch opens one where nobody asks for it: torch.compile saves the GPU's random state. So a
test process sees no GPU at all. Tests marked ``gpu`` show it to the processes that they start, one such test
at a time on a machine. What has to call CUDA in the test's own process is marked ``cuda_here`` and runs in a
pytest of its own (``--cuda-here``), which ``test_cuda_here.py`` starts.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Generator, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

import pytest

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCK = Path(tempfile.gettempdir()) / f"mini-kv-tests-gpu-{os.getuid()}.lock"
_SEEN_BEFORE = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cuda-here`` lets this process open a CUDA context, and runs what is marked ``cuda_here``."""
    parser.addoption("--cuda-here", action="store_true", help="run tests that call CUDA in their own process")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs before anything can import torch; who only starts xdist's workers hands them on."""
    starts_workers = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if not starts_workers and not config.getoption("--cuda-here"):
        config.stash[_SEEN_BEFORE] = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = ""


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the environment as it was."""
    if _SEEN_BEFORE in config.stash:
        _set(os.environ, config.stash[_SEEN_BEFORE])


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
    """Show the GPUs to what a test marked ``gpu`` starts, and keep the machine's other such tests away."""
    if _SEEN_BEFORE not in item.config.stash or not item.get_closest_marker("gpu"):
        return (yield)
    with alone(LOCK), shown(os.environ, item.config.stash[_SEEN_BEFORE]):
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


@contextmanager
def alone(lock: Path) -> Iterator[None]:
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
