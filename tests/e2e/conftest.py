"""One small project for all end-to-end tests, made once and shared by xdist's workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from e2e.harness import Project, make_project


@pytest.fixture(scope="session")
def project_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, made by whichever process comes first."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    root = base / "e2e-project"
    with FileLock(base / "e2e-project.lock"):
        if not root.exists():
            made = base / "e2e-project.partial"
            make_project(made)
            made.rename(root)
    return root


@pytest.fixture
def project(project_folder: Path, tmp_path: Path) -> Project:
    """The shared project with a scratch folder for this test's archives."""
    return Project(root=project_folder, scratch=tmp_path)
