"""What others say in a report: it is quoted, and never stands where the report's own lines stand."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import attempt_factory as make
import profile_factory
from fake_project import FakeProject, fake_project
from mini_kv.cli import profile_text, verdict_text
from mini_kv.cli.lines import as_lines, quoted
from mini_kv.core.printable import printable
from mini_kv.core.records.device_code import DeviceCode, KernelCode
from mini_kv.core.records.results import Finding, Status
from mini_kv.pipeline import Verdict

__all__ = ["fake_project"]

FORGED = "op.cpp:1:1: error: no\n  numerics    PASS\nACCEPTED   exit code 0\r\x1b[2K\u2028  memory      PASS"
BREAKS = r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]"
AXIS_LINE = re.compile(r" {0,4}(numerics|memory|build) +PASS|(NOT )?ACCEPTED|CAPTURED")


def forged_lines(text: str) -> list[str]:
    return [line for line in re.split(BREAKS, text) if AXIS_LINE.match(line)]


def test_the_compilers_lines_stood_where_the_axes_stand(tmp_path: Path) -> None:
    kernel = KernelCode(
        symbol="k", name="k\n  numerics    PASS", arch="sm_90", registers_per_thread=1, static_shared_bytes=0,
        stack_bytes=8, spill_store_bytes=0, spill_load_bytes=0, barriers=0,
    )  # fmt: skip
    build = msgspec.structs.replace(
        make.build(), status=Status.FAIL, first_error=FORGED, device_code=DeviceCode(kernels=(kernel,))
    )
    attempt, writer = make.write_attempt(
        tmp_path, accepted=False, exit_code=3, axes=(), findings=(Finding(code="X", message=FORGED),)
    )
    verdict = Verdict(
        attempt=attempt, folder=writer.folder, build=build, correctness=None, benchmark=None, regression=None,
        warnings=(),
    )  # fmt: skip
    text = verdict_text.as_text(verdict)
    assert "\n  |   numerics    PASS\n" in text
    assert forged_lines(text) == ["NOT ACCEPTED   exit code 3   2.5 s"]
    assert forged_lines(verdict_text.as_markdown(verdict)) == []


def test_a_reply_of_the_candidate_made_a_line_of_its_own(fake_project: FakeProject) -> None:
    said = f"reply = p.Failed(code={FORGED!r}, message={FORGED!r})"
    verdict = fake_project.verify(
        {"candidate/run_case/illegal_odd": said, "candidate/run_case/timed_a": said}
    )
    assert verdict.attempt.exit_code == 4
    own = [f"{axis.name:<11} PASS" for axis in verdict.attempt.axes if axis.status is Status.PASS]
    for text in (verdict_text.as_text(verdict), verdict_text.as_markdown(verdict)):
        forged = [line for line in forged_lines(text) if not line.strip().startswith(tuple(own))]
        assert forged in ([], [f"NOT ACCEPTED   exit code 4   {verdict.attempt.elapsed_s:.1f} s"])


def test_the_profilers_log_stood_where_the_verdict_stands() -> None:
    failure = Finding(code="NCU_FAILED", message=FORGED, evidence=(FORGED, "CAPTURED   exit code 0"))
    failed = profile_factory.profile("v1", failure=failure, status=Status.FAIL, exit_code=3)
    text = profile_text.profile_as_text(failed, Path("here"))
    assert forged_lines(text) == []
    assert "\n  | CAPTURED   exit code 0\n" in text


@pytest.mark.parametrize("blank", ["\u2800", "\u3164", "\u115f", "\u1160", "\uffa0", "\u00a0", "\u200b"])
def test_a_blank_that_counts_as_printable_laid_out_a_line(blank: str) -> None:
    shown = printable(f"{blank * 2}numerics{blank * 4}PASS")
    assert blank not in shown
    assert shown.isascii()


def test_a_quoted_line_is_folded_before_the_terminal_does_it() -> None:
    rows = quoted("x" * 250 + "\n\n\tindented\n" + "more\n" * 20, 3)
    assert all(row.startswith("  |") and len(row) <= 100 for row in rows)
    assert [len(row) for row in rows] == [100, 100, 4 + 58, 3, 4 + 16]
    assert as_lines(["a\nb"]) == "a\\nb\n"
