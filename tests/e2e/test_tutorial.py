"""The tutorial's own files, taken from the page, give the verdicts that the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def mini_kv(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mini_kv", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    reference, registration = blocks("python")
    card, manifest, _ = blocks("yaml")
    candidate = tmp_path / "candidates" / "squared_relu" / "v0"
    candidate.mkdir(parents=True)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "mini_kv.toml").touch()
    (tmp_path / "squared_relu.py").write_text(reference)
    (tmp_path / "tasks" / "squared_relu.yaml").write_text(card)
    (candidate / "candidate.yaml").write_text(manifest)
    (candidate / "registration.py").write_text(registration)
    (candidate / "binding.cpp").write_text(blocks("cpp")[0])
    return tmp_path


def mend(project: Path) -> None:
    """Carry out the sections "Mend it" and "Make it fast" as a reader would."""
    binding = project / "candidates" / "squared_relu" / "v0" / "binding.cpp"
    text = binding.read_text()
    _, keeps_nan, checked, counted = blocks("cpp")
    line = "    const T kept = from[i] > T{0} ? from[i] : T{0};\n"
    loop = "  for (int64_t i = 0; i < x.numel(); ++i) {\n"
    start, end = text.index("Tensor squared_relu(const Tensor& x) {"), text.index("}  // namespace")
    assert line in text and loop in text
    text = text[:start] + checked + "\n" + text[end:]
    binding.write_text(text.replace(line, keeps_nan).replace(loop, counted))
    manifest = binding.with_name("candidate.yaml")
    manifest.write_text(manifest.read_text() + blocks("yaml")[2])


@pytest.mark.slow
def test_the_tutorial_finds_its_three_mistakes_and_accepts_what_mends_them(project: Path) -> None:
    card = "tasks/squared_relu.yaml"
    assert mini_kv(project, "validate-task", card).returncode == 0
    wrong = mini_kv(project, "verify", "--task", card, "--device", "cpu", "--skip-benchmark")
    assert wrong.returncode == 4, wrong.stdout + wrong.stderr
    failed = re.findall(r"^  (\w+) \[\w+\] ([A-Z_]+):", wrong.stdout, flags=re.MULTILINE)
    assert failed == [
        ("nans", "WRONG_VALUES"),
        ("transposed", "WRONG_VALUES"),
        ("integers_refused", "ILLEGAL_INPUT_ACCEPTED"),
    ]
    assert "smallest failing input: transposed" in wrong.stdout
    mend(project)
    right = mini_kv(project, "verify", "--task", card, "--device", "cpu", "--skip-benchmark")
    assert right.returncode == 0, right.stdout + right.stderr
