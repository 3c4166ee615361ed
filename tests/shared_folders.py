"""Folders that several tests read and one of them makes, whichever of xdist's processes comes first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

MadeOnce = Callable[[str, Callable[[Path], None]], Path]


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the session's folder ``name``, which ``make`` creates at the path that it is given."""
    base = factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = base / name
    with FileLock(base / f"{name}.lock"):
        if not folder.exists():
            partial = base / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)  # left where making it failed before
            make(partial)
            partial.rename(folder)
    return folder
