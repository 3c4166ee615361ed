"""What the studies' tests lean on: the same examples on every run, and GPU tests only where one is."""

from __future__ import annotations

import glob

import pytest
from hypothesis import settings

settings.register_profile("research", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("research")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where the machine shows none."""
    if not glob.glob("/dev/nvidia[0-9]*"):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
