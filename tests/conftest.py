"""What every test may lean on: where the project lies, the command line in process, GPU marks."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("gpu_access",)

# The same examples on every run: a red test stays red until someone mends it.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--zoo-quick`` keeps a dozen members of the zoo, one of each kind of trick."""
    parser.addoption("--zoo-quick", action="store_true", help="verify only a dozen members of tests/zoo")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where the machine shows none (told without importing torch)."""
    if config.getoption("--zoo-quick"):
        keep_quick_members(items)
    if glob.glob("/dev/nvidia[0-9]*"):
        return
    for item in items:
        if item.get_closest_marker("gpu") or item.get_closest_marker("cuda_here"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


def keep_quick_members(items: list[pytest.Item]) -> None:
    for item in items:
        member = getattr(item, "callspec", None) and item.callspec.params.get("member")
        if item.get_closest_marker("zoo") and not getattr(member, "quick", False):
            item.add_marker(pytest.mark.skip(reason="not one of the quick members (--zoo-quick)"))


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout's folder."""
    return Path(__file__).resolve().parent.parent


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
