"""The valid card that tests spoil, the project it lies in, and what its loader says."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.task_card import load_task_card

CARDS = Path(__file__).parent / "fixtures/cards"
VALID = (CARDS / "valid.yaml").read_text("utf-8")


def make_project(folder: Path) -> Path:
    """An empty project that is found by its marker."""
    root = folder / "project"
    (root / "tasks").mkdir(parents=True)
    (root / "mini_kv.toml").touch()
    (root / "scale_reference.py").write_text("import torch\n\nscale = make_inputs = torch.square\n")
    return root


def edited(old: str, new: str) -> str:
    assert VALID.count(old) >= 1, old
    return VALID.replace(old, new, 1)


def write(project: Path, content: str | bytes) -> Path:
    path = project / "tasks/x.yaml"
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def problems_of(project: Path, content: str | bytes) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load_task_card(write(project, content), project)
    error = caught.value
    assert error.code == "INVALID_TASK_CARD"
    assert error.exit_code == ExitCode.CONFIGURATION
    assert error.message.startswith("tasks/x.yaml is no valid Task Card: ")
    assert error.problems
    for problem in error.problems:
        assert problem.startswith("tasks/x.yaml:"), problem
        assert "found " in problem, problem
        assert "; allowed: " in problem or "; required: " in problem, problem
        assert problem.isprintable(), problem
        assert len(problem) < 500, problem
    return error.problems
