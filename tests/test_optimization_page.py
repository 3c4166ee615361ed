"""docs/optimization-rmsnorm.md says what the evidence and the sources say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def page_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "optimization_page", ROOT / "scripts" / "optimization_page.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case_of(kernel_us: float | None, p50_us: float) -> dict[str, Any]:
    return {
        "case_id": "bench_1024x4096_f16",
        "candidate": {"p50_us": p50_us},
        "candidate_kernel": {"kernel_us": kernel_us} if kernel_us else None,
        "kernel_speedup": 67.0 / kernel_us if kernel_us else None,
        "bytes_moved": 16785408,
    }


def archive(root: Path, name: str, candidate: str, started: str, case: dict[str, Any], device: str) -> None:
    folder = root / "evidence" / "gpu" / name
    folder.mkdir(parents=True)
    (folder / "attempt.json").write_text(json.dumps({"candidate_id": candidate, "started_at": started}))
    (folder / "benchmark.json").write_text(json.dumps({"device": device, "cases": [case]}))


def test_the_tables_are_those_of_the_evidence(page_script: ModuleType) -> None:
    page = (ROOT / page_script.PAGE).read_text("utf-8")
    assert page_script.rendered(page, ROOT) == page, "run scripts/optimization_page.py --write"


def test_the_last_gpu_attempt_of_a_step_counts(page_script: ModuleType, tmp_path: Path) -> None:
    naive, block = "rmsnorm_v0_naive", "rmsnorm_v1_block_reduce"
    archive(tmp_path, "a", naive, "2026-01-01T00:00:00Z", case_of(2600.0, 2603.0), "cuda")
    archive(tmp_path, "b", block, "2026-01-01T00:00:02Z", case_of(12.0, 14.75), "cuda")
    archive(tmp_path, "c", block, "2026-01-01T00:00:01Z", case_of(99.0, 99.0), "cuda")
    archive(tmp_path, "d", block, "2026-01-01T00:00:03Z", case_of(None, 5000.0), "cpu")
    lines = page_script.times_table(page_script.timed_cases(tmp_path)).splitlines()
    assert lines[2] == "| `v0_naive` | 2603.00 | 2600.00 | - | 0.03 | 6 |"
    assert lines[3] == "| `v1_block_reduce` | 14.75 | 12.00 | 216.7 | 5.58 | 1399 |"
    assert lines[4] == "| `v2_vectorized` | - | - | - | - | - |"


def test_a_lost_marker_is_an_error_and_a_stale_number_is_found(
    page_script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="exactly one block"):
        page_script.rendered("no markers here", tmp_path)
    page = (ROOT / page_script.PAGE).read_text("utf-8")
    path = tmp_path / page_script.PAGE
    path.parent.mkdir()
    path.write_text(page.replace("<!-- times:end -->", "| forged |\n<!-- times:end -->"))
    assert page_script.main(["--root", str(tmp_path)]) == 1
    assert "differs from the evidence" in capsys.readouterr().err
    assert page_script.main(["--root", str(tmp_path), "--write"]) == 0
    assert page_script.main(["--root", str(tmp_path)]) == 0


def test_block_sizes_in_the_text_are_those_of_the_sources(page_script: ModuleType) -> None:
    page = (ROOT / page_script.PAGE).read_text("utf-8")
    for step, words in (("v0_naive", "4 blocks of {}"), ("v1_block_reduce", "A block of {} threads")):
        source = (ROOT / "candidates" / "rmsnorm" / step / "kernel.cu").read_text("utf-8")
        found = re.search(r"kThreadsPerBlock = (\d+);", source)
        assert found is not None and words.format(found[1]) in page


def test_every_step_is_a_shipped_candidate(page_script: ModuleType) -> None:
    manifests = (ROOT / "candidates" / "rmsnorm").glob("*/candidate.yaml")
    shipped = {re.search(r"^candidate_id: (\S+)$", m.read_text("utf-8"), re.MULTILINE)[1] for m in manifests}
    assert set(page_script.STEPS) <= shipped
