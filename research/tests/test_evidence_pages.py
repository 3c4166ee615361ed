"""README.md and docs/optimization-rmsnorm.md say what the evidence and the sources say, and nothing else."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from mini_kv.core.canonical import sha256_bytes
from research import ROOT
from research.pages import __main__ as pages
from research.pages import evidence, rmsnorm

PAGE = "docs/optimization-rmsnorm.md"
# Profiles that show an earlier kernel than the one that ships: to be emptied by the next profiles.
PROFILED_BEFORE_THEIR_LAST_CHANGE: set[str] = set()


def case_of(kernel_us: float | None, p50_us: float) -> dict[str, Any]:
    return {
        "case_id": "bench_1024x4096_f16",
        "candidate": {"p50_us": p50_us},
        "candidate_kernel": {"kernel_us": kernel_us} if kernel_us else None,
        "kernel_speedup": 67.0 / kernel_us if kernel_us else None,
        "bytes_moved": 16785408,
    }


def archive(
    root: Path,
    name: str,
    candidate: str,
    started: str,
    case: dict[str, Any],
    device: str,
    task_id: str = "rmsnorm",
) -> None:
    folder = root / "evidence" / "gpu" / name
    folder.mkdir(parents=True)
    attempt = {"task_id": task_id, "candidate_id": candidate, "started_at": started}
    (folder / "attempt.json").write_text(json.dumps(attempt))
    benchmark = {"device": device, "copy_gb_per_s": 4000.0, "cases": [case]}
    (folder / "benchmark.json").write_text(json.dumps(benchmark))


def timed_with(case_id: str, candidate_us: list[float], reference_us: list[float]) -> dict[str, Any]:
    def witness(samples: list[float]) -> dict[str, Any]:
        return {"kernel_us": sorted(samples)[len(samples) // 2], "samples_us": samples}

    return {
        "case_id": case_id,
        "candidate": {"p50_us": 1.0},
        "candidate_kernel": witness(candidate_us),
        "reference_kernel": witness(reference_us),
        "bytes_moved": 16_000_000,
    }


def test_the_last_gpu_attempt_of_a_step_counts(tmp_path: Path) -> None:
    naive, block = "rmsnorm_v0_naive", "rmsnorm_v1_block_reduce"
    archive(tmp_path, "a", naive, "2026-01-01T00:00:00Z", case_of(2600.0, 2603.0), "cuda")
    archive(tmp_path, "b", block, "2026-01-01T00:00:02Z", case_of(12.0, 14.75), "cuda")
    archive(tmp_path, "c", block, "2026-01-01T00:00:01Z", case_of(99.0, 99.0), "cuda")
    archive(tmp_path, "d", block, "2026-01-01T00:00:03Z", case_of(None, 5000.0), "cpu")
    # By a peer's card the ratio is not one to eager PyTorch.
    archive(tmp_path, "e", block, "2026-01-01T00:00:04Z", case_of(3.0, 3.0), "cuda", "rmsnorm_vs_compile")
    lines = rmsnorm.times_table(evidence.timed_cases(tmp_path)).splitlines()
    assert lines[2] == "| `v0_naive` | 2603.00 | 2600.00 | - | 0.03 | 6 |"
    assert lines[3] == "| `v1_block_reduce` | 14.75 | 12.00 | 216.7 | 5.58 | 1399 |"
    assert lines[4] == "| `v2_vectorized` | - | - | - | - | - |"


def test_the_pages_and_pictures_that_are_written_from_evidence() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in pages.wanted(ROOT)} == {
        "README.md",
        "docs/method.md",
        "docs/optimization-rmsnorm.md",
        "evidence/h200/calibration/calibration.svg",
        "evidence/h200/sweep/sweep.svg",
    }


def test_a_lost_strange_or_second_block_is_an_error() -> None:
    page = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"
    assert pages.filled(page, {"x": "new"}) == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"
    for wrong, blocks in (
        ("nothing", {"x": "new"}), (page, {}), (page + page, {"x": "new"}), (page, {"x": "", "y": ""}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="exactly one block"):
            pages.filled(wrong, blocks)
    with pytest.raises(ValueError, match="has no end"):
        pages.filled(page.replace(":end", ":ende"), {"x": "new"})


def test_a_forged_number_and_a_lost_picture_are_found_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGES", {PAGE: pages.PAGES[PAGE]})
    path = tmp_path / PAGE
    path.parent.mkdir()
    path.write_text((ROOT / PAGE).read_text("utf-8"))
    folder = tmp_path / "evidence" / "sweep"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_bytes((ROOT / "evidence/h200/sweep/sweep.json").read_bytes())
    check, write = ["--root", str(tmp_path), "--check"], ["--root", str(tmp_path)]
    assert pages.main(write) == 0
    assert pages.main(check) == 0
    path.write_text(path.read_text().replace("<!-- times:end -->", "| forged |\n<!-- times:end -->"))
    (folder / "sweep.svg").unlink()
    capsys.readouterr()
    assert pages.main(check) == 1
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        PAGE, "evidence/sweep/sweep.svg"
    ]  # fmt: skip
    assert pages.main(write) == 0
    assert pages.main(check) == 0
    path.write_text("no markers here")
    assert pages.main(check) == 2


def test_block_sizes_in_the_text_are_those_of_the_sources() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    for step, words in (("v0_naive", "4 blocks of {}"), ("v1_block_reduce", "A block of {} threads")):
        source = (ROOT / "candidates" / "rmsnorm" / step / "kernel.cu").read_text("utf-8")
        found = re.search(r"kThreadsPerBlock = (\d+);", source)
        assert found is not None and words.format(found[1]) in page


def test_forms_in_the_text_are_those_of_the_sources() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    source = (ROOT / "candidates/rmsnorm/v2_vectorized/fitting.cuh").read_text("utf-8")
    form = re.search(
        r"case 512:\s+return many \? launch_rows<T, (\d+), 1, 4>.*launch_rows<T, (\d+), 1, 2\b", source
    )
    assert form is not None and form[1] == form[2]
    assert f"{form[1]} threads, two rows" in page and "Four rows a block when rows are many" in page


def threads_in_the_text(page: str) -> dict[str, int]:
    """Return how many threads a block has, by step, as the page's prose says it."""
    words = {
        "rmsnorm_v0_naive": r"4 blocks of (\d+)",
        "rmsnorm_v1_block_reduce": r"A block of (\d+) threads",
        "rmsnorm_v2_vectorized": r"(\d+) threads, two rows",
    }
    found = {step: re.findall(pattern, page) for step, pattern in words.items()}
    assert all(len(numbers) == 1 for numbers in found.values()), found
    return {step: int(numbers[0]) for step, numbers in found.items()}


def blocks_that_differ(page: str, profiles: dict[str, dict[str, Any]]) -> set[str]:
    """Return the steps whose profile counted another number of threads a block than the prose says."""
    said = threads_in_the_text(page)
    return {step for step, one in profiles.items() if math.prod(one["facts"]["block"]) != said[step]}


def is_of_the_shipped_kernel(profile: dict[str, Any]) -> bool:
    folder = ROOT / profile["candidate_folder"]
    code = {name: digest for name, digest in profile["source_sha256"].items() if name != "candidate.yaml"}
    there = {name: folder / name for name in code if (folder / name).is_file()}
    return {name: sha256_bytes(path.read_bytes()) for name, path in there.items()} == code


def test_text_and_profile_agree_on_the_threads_of_a_block() -> None:
    profiles: dict[str, dict[str, Any]] = evidence.last_profiles(ROOT)
    older = {step for step, profile in profiles.items() if not is_of_the_shipped_kernel(profile)}
    assert older == PROFILED_BEFORE_THEIR_LAST_CHANGE, "profile these again, or take them off the list"
    assert blocks_that_differ((ROOT / PAGE).read_text("utf-8"), profiles) <= older


def test_another_block_size_in_the_text_than_in_the_profile_is_found() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    said = threads_in_the_text(page)
    profiles = {step: {"facts": {"block": [threads, 1, 1]}} for step, threads in said.items()}
    assert blocks_that_differ(page, profiles) == set()
    step, other = "rmsnorm_v2_vectorized", said["rmsnorm_v2_vectorized"] // 4
    assert blocks_that_differ(page, profiles | {step: {"facts": {"block": [other, 1, 1]}}}) == {step}
    assert blocks_that_differ(page, profiles | {step: {"facts": {"block": [other, 4, 1]}}}) == set()


def test_no_measured_figure_stands_outside_the_tables() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", page, flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]*\s*(?:us|GB/s|TB/s|%|x\b(?! \d))", text) == []


def test_peers_stand_in_columns_with_the_ratio_of_their_own_run(tmp_path: Path) -> None:
    assert "measured on a GPU yet" in rmsnorm.blocks(tmp_path)["peers"]
    v2, case_id = "rmsnorm_v2_vectorized", "bench_1024x4096_f16"
    for number, (task, reference) in enumerate((("rmsnorm_vs_functional", 8.0), ("rmsnorm_vs_compile", 6.0))):
        case = timed_with(case_id, [5.0] * 30, [reference] * 30)
        archive(tmp_path, str(number), v2, "2026-01-01T00:00:00Z", case, "cuda", task)
    lines = rmsnorm.blocks(tmp_path)["peers"].splitlines()
    assert lines[0] == "| rows x hidden | `F.rms_norm` | `torch.compile` | % of copy |"
    assert lines[2] == "| 1024 x 4096 f16 | 1.60x (8.00 : 5.00) | 1.20x (6.00 : 5.00) | 80.0 |"


def test_a_ratio_comes_with_the_interval_of_both_medians(tmp_path: Path) -> None:
    samples = [float(value) for value in range(1, 31)]
    low, high = evidence.median_interval(samples)
    # 6 draws on each side of the middle: 0.98 sqrt(30), rounded up.
    assert (low, high) == (10.0, 21.0) and evidence.median_interval([3.0]) == (3.0, 3.0)
    add = "vector_add_v1_vectorized"
    case = timed_with("bench_1m_f16", [4.0] * 15 + [5.0] * 15, [4.5] * 30)
    archive(tmp_path, "a", add, "2026-01-01T00:00:00Z", case, "cuda", "vector_add_large")
    line = rmsnorm.blocks(tmp_path)["others"].splitlines()[2]
    assert line.endswith("| `torch.add` | 5.00 | 4.50 | 0.900x (0.900 to 1.125) | 80.0 |")


def test_a_sweep_and_a_comparison_of_profiles_are_told(tmp_path: Path) -> None:
    empty = rmsnorm.blocks(tmp_path)
    assert "No sweep" in empty["sweep"] and "No comparison" in empty["changes"]
    folder = tmp_path / "evidence" / "gpu"
    folder.mkdir(parents=True)
    point = {"operator": "vector_add", "elements": 1 << 20, "bytes_moved": 6 << 20}
    point |= {"candidate_us": 3.0, "reference_us": 3.3}
    (folder / "sweep.json").write_text(json.dumps({"copy_gb_per_s": 4194.304, "points": [point]}))
    metrics = [
        {"name": "waves", "unit": "", "before": 0.004, "after": 0.97},
        {"name": "L2 hit rate", "unit": "%", "before": 96.0, "after": 52.5},
        {"name": "unread", "unit": "", "before": None, "after": 1.0},
    ]
    document = {"metrics": metrics, "timed": {"before": {"p50_us": 2572.9}, "after": {"p50_us": 14.8}}}
    (folder / "profile_comparison_v0_naive_to_v1_block_reduce.json").write_text(json.dumps(document))
    tables = rmsnorm.blocks(tmp_path)
    assert "](../evidence/gpu/sweep.svg)" in tables["sweep"]
    assert "| 2^20 | 3.00 us, 50 % of copy, 1.10x eager |" in tables["sweep"]
    assert "| timed P50, us | 2572.90 to 14.80 | - |" in tables["changes"]
    assert "| L2 hit rate | 96 to 52.50 % | - |" in tables["changes"] and "unread" not in tables["changes"]


def test_every_step_is_a_shipped_candidate() -> None:
    manifests = (ROOT / "candidates").glob("*/*/candidate.yaml")
    shipped = {re.search(r"^candidate_id: (\S+)$", m.read_text("utf-8"), re.MULTILINE)[1] for m in manifests}
    assert {*evidence.STEPS, *rmsnorm.BEST.values()} <= shipped


def test_the_fastest_copy_is_that_of_the_cases_own_shape(tmp_path: Path) -> None:
    assert evidence.fastest_copy(tmp_path) is None
    path = tmp_path / evidence.TUNING
    path.parent.mkdir(parents=True)
    other = "== rmsnorm 1024x4096 f16, 3 processes\n    1.00 +- 0.01 once block=1\n"
    path.write_text(f"{other}== copy 1024x4096 f16, 3 processes\n    5.25 +- 0.03 once block=128 k=2\n")
    found = evidence.fastest_copy(tmp_path)
    assert (found.kernel_us, found.file) == (5.25, evidence.TUNING)
    path.write_text(f"== copy 65536x4096 f16\n    250.00 +- 0.03 once block=128\n{other}")
    assert evidence.fastest_copy(tmp_path) is None
