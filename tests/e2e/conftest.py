"""One small project for all end-to-end tests, made once and shared by xdist's workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.harness import Project, make_project
from shared_folders import MadeOnce


@pytest.fixture(scope="session")
def project_folder(made_once: MadeOnce) -> Path:
    """The project, made by whichever process comes first."""
    return made_once("e2e-project", make_project)


@pytest.fixture
def project(project_folder: Path, tmp_path: Path) -> Project:
    """The shared project with a scratch folder for this test's archives."""
    return Project(root=project_folder, scratch=tmp_path)
