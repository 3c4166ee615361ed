"""What every test may lean on: where the project lies, the command line in process, GPU marks."""

from __future__ import annotations

import functools
import glob
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

import shared_folders

pytest_plugins = ("shared_machine",)

# The same examples on every run: a red test stays red until someone mends it.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--nightly`` runs what every change need not pass as well."""
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out, skip what needs a CUDA device (told without torch), put long ones first."""
    if not config.getoption("--nightly"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in set(nightly)]
    if not glob.glob("/dev/nvidia[0-9]*"):
        for item in items:
            if item.get_closest_marker("gpu") or item.get_closest_marker("cuda_here"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
    items.sort(key=_starts_late)


def _starts_late(item: pytest.Item) -> int:
    # What takes long and begins last would leave every other core idle at the end.
    if item.get_closest_marker("zoo"):
        return 1
    return 0 if item.get_closest_marker("slow") else 2


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout's folder."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> shared_folders.MadeOnce:
    """Make a folder once for all tests: ``made_once("name", make)``."""
    return functools.partial(shared_folders.made_once, tmp_path_factory)


@pytest.fixture
def mini_kv(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command in this process: ``mini_kv("schema", "--list") -> (exit code, stdout, stderr)``."""

    def run(*argv: str) -> tuple[int, str, str]:
        from mini_kv.cli.main import main

        capsys.readouterr()
        code = main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
