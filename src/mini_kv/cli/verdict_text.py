"""A verdict as text for people, JSON for programs, JUnit for CI and Markdown for reviewers."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from mini_kv.cli.axes_text import curve_lines
from mini_kv.cli.lines import as_lines, flat, quoted
from mini_kv.cli.relative_paths import from_here
from mini_kv.core.record import to_builtins, to_json
from mini_kv.core.records.attempt import Axis
from mini_kv.core.records.benchmark import BenchmarkCase, Series
from mini_kv.core.records.correctness import CaseResult, ContractCheck
from mini_kv.core.records.device_code import remarks
from mini_kv.core.records.results import Status
from mini_kv.core.rules.axes import is_generated
from mini_kv.core.rules.verdict import failed_checks, smallest_failure
from mini_kv.core.text_table import Column, figure, head_row, markdown_table, text_row
from mini_kv.pipeline import Verdict

_FAILURES_SHOWN = 8


def as_json(verdict: Verdict) -> str:
    """Return the attempt with its folder, its failed cases and the timed cases without raw samples."""
    document = {
        "attempt": to_builtins(verdict.attempt),
        "folder": str(verdict.folder),
        "cases": [
            {
                "case_id": case.case_id,
                "kind": case.kind.value,
                "status": case.status.value,
                "code": case.code,
                "message": case.message,
            }
            for case in (verdict.correctness.cases if verdict.correctness else ())
        ],
        "benchmark": [_summary(case) for case in (verdict.benchmark.cases if verdict.benchmark else ())],
        "warnings": [to_builtins(warning) for warning in verdict.warnings],
    }
    return to_json(document).decode()


def _summary(case: BenchmarkCase) -> dict[str, object]:
    def side(series: Series | None) -> dict[str, object] | None:
        if series is None:
            return None
        fields = to_builtins(series)
        fields.pop("samples_us")
        return dict(fields)

    return {
        "case_id": case.case_id,
        "status": case.status.value,
        "stable": case.stable,
        "axis_values": case.axis_values,
        "speedup": case.speedup,
        "gb_per_s": case.gb_per_s,
        "percent_of_copy_bandwidth": case.percent_of_copy_bandwidth,
        "kernel_speedup": case.kernel_speedup,
        "candidate_kernel_us": case.candidate_kernel.kernel_us if case.candidate_kernel else None,
        "reference_kernel_us": case.reference_kernel.kernel_us if case.reference_kernel else None,
        "outside_us": case.outside_us,
        "timing_trust": case.timing_trust,
        "candidate": side(case.candidate),
        "reference": side(case.reference),
        "findings": [to_builtins(finding) for finding in case.findings],
    }


def as_text(verdict: Verdict) -> str:
    """Return the verdict for a terminal of 100 columns."""
    attempt = verdict.attempt
    candidate = f"{attempt.candidate_id} {attempt.candidate_version}"
    lines = [
        f"{attempt.task_id} {attempt.operator_version}   candidate {candidate}   on {attempt.device}",
        "",
    ]
    for axis in attempt.axes:
        remark = _clip(axis.message or _build_remark(verdict, axis.name))
        lines.append(f"  {axis.name:<11} {axis.status.value:<11} {remark}".rstrip())
    lines += [f"  {finding.code}: {_clip(finding.message, 500)}" for finding in attempt.findings]
    lines += _compiler_lines(verdict) + _device_code_lines(verdict)
    lines += _failure_lines(verdict) + _timing_lines(verdict)
    word = "ACCEPTED" if attempt.accepted else "NOT ACCEPTED"
    if attempt.accepted and not attempt.complete:
        word = "ACCEPTED so far (not everything was asked for)"
    lines += [
        "",
        f"{word}   exit code {attempt.exit_code}   {attempt.elapsed_s:.1f} s",
        f"evidence: {from_here(verdict.folder)}",
    ]
    return as_lines(lines)


def _clip(text: str | None, limit: int = 240) -> str:
    return flat(text, limit)


def _build_remark(verdict: Verdict, axis: str) -> str:
    if axis != "build" or verdict.build is None:
        return ""
    return "cached" if verdict.build.cached else f"built in {verdict.build.elapsed_s:.1f} s"


def _compiler_lines(verdict: Verdict) -> list[str]:
    build = verdict.build
    if build is None or build.first_error is None:
        return []
    return ["", "the compiler's first error:", *quoted(build.first_error, 12)]


def _device_code_lines(verdict: Verdict) -> list[str]:
    build = verdict.build
    if build is None or build.device_code is None:
        return []
    return [f"  remark      {flat(sentence, 400)}" for sentence in remarks(build.device_code)]


def _failure_lines(verdict: Verdict) -> list[str]:
    correctness = verdict.correctness
    if correctness is None:
        return []
    lines: list[str] = []
    failed = [case for case in correctness.cases if case.status is Status.FAIL]
    if failed:
        lines += ["", f"failed cases ({len(failed)} of {correctness.planned_cases}):"]
        lines += [_case_line(case) for case in failed[:_FAILURES_SHOWN]]
        if len(failed) > _FAILURES_SHOWN:
            lines.append(f"  ... and {len(failed) - _FAILURES_SHOWN} more in correctness.json")
        smallest = smallest_failure(correctness)
        if smallest is not None and smallest.inputs:
            lines.append(f"  smallest failing input: {smallest.case_id}: {', '.join(smallest.inputs)}")
    invalid = [case for case in correctness.cases if case.status is Status.INVALID]
    lines += [
        f"  INVALID (the card's fault, gives no evidence): {_case_line(case).strip()}" for case in invalid
    ]
    checks = failed_checks(correctness)
    if checks:
        lines += ["", "failed contract checks:"]
        lines += [
            f"  {check.name} on {check.case_id}: {_clip(check.message)}" for check in checks[:_FAILURES_SHOWN]
        ]
    return lines


def _case_line(case: CaseResult) -> str:
    rounds = case.rounds[-1].name if case.rounds else "-"
    return f"  {case.case_id} [{rounds}] {_clip(case.code, 80)}: {_clip(case.message)}"


# The table of times: 98 columns in all, its quality included, which stands behind the last of these.
_COLUMNS = (
    Column(head="case", width=24, left=True),
    Column(head="P50 us", width=9),
    Column(head="net us", width=9),
    Column(head="kernel", width=9),
    Column(head="ref P50", width=9),
    Column(head="speedup", width=8),
    Column(head="GB/s", width=7),
    Column(head="% copy", width=6),
)


def _timing_lines(verdict: Verdict) -> list[str]:
    benchmark = verdict.benchmark
    if benchmark is None:
        return []
    lines = [
        "",
        f"times ({benchmark.cache} cache, {benchmark.timer.split(';')[0]}):",
        f"  {head_row(_COLUMNS)}  quality",
    ]
    for case in benchmark.cases:
        if is_generated(case):
            continue  # it stands in its curve below
        lines.append(f"  {text_row(_timing_cells(case), _COLUMNS)}  {_quality(case)}")
        lines += [f"      {finding.code}: {_clip(finding.message)}" for finding in case.findings]
    lines += curve_lines(benchmark.cases)
    timed = [case for case in benchmark.cases if case.candidate is not None]
    if timed and all(case.bytes_moved is None for case in timed):
        lines.append("  GB/s needs a function cost_model(params) in the module of the card's reference")
    if benchmark.geomean_speedup is not None:
        lines.append(f"  geometric mean speedup over the reference: {benchmark.geomean_speedup:.3f}x")
    return lines


def _quality(case: BenchmarkCase) -> str:
    if case.stable:
        return "stable"
    return "UNSTABLE" if case.status is Status.PASS else "FAILED"


def _timing_cells(case: BenchmarkCase) -> list[str]:
    candidate, reference, kernel = case.candidate, case.reference, case.candidate_kernel
    return [
        case.case_id,
        figure(candidate.p50_us if candidate else None, 2),
        figure(candidate.net_p50_us if candidate else None, 2),
        figure(kernel.kernel_us if kernel else None, 2),
        figure(reference.p50_us if reference else None, 2),
        figure(case.speedup, 3),
        figure(case.gb_per_s, 1),
        figure(case.percent_of_copy_bandwidth, 1),
    ]


def as_junit(verdict: Verdict) -> str:
    """Return JUnit XML: one test case a card case, contract check and axis."""
    attempt = verdict.attempt
    suite = ET.Element("testsuite", name=f"mini-kv.{attempt.task_id}.{attempt.candidate_id}")
    for axis in attempt.axes:
        _junit_case(suite, "axis", axis.name, axis)
    if verdict.correctness is not None:
        for case in verdict.correctness.cases:
            _junit_case(suite, "case", case.case_id, case, case.elapsed_s)
        for check in verdict.correctness.contract:
            _junit_case(suite, "contract", f"{check.name}[{check.case_id}]", check, check.elapsed_s)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", f"{attempt.elapsed_s:.3f}")
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _junit_case(
    suite: ET.Element,
    group: str,
    name: str,
    said: Axis | CaseResult | ContractCheck,
    elapsed_s: float = 0.0,
) -> None:
    entry = ET.SubElement(
        suite, "testcase", classname=f"{suite.get('name')}.{group}", name=name, time=f"{elapsed_s:.3f}"
    )
    kinds = {
        Status.PASS: None,
        Status.FAIL: "failure",
        Status.ERROR: "error",
        Status.INVALID: "skipped",
        Status.UNVERIFIED: "skipped",
        Status.SKIPPED: "skipped",
    }
    kind = kinds[said.status]
    if kind is not None:
        text = "".join(
            character for character in said.message or "" if character.isprintable() or character == "\n"
        )
        ET.SubElement(entry, kind, message=f"{said.code or said.status.value}: {text[:2000]}")


def as_markdown(verdict: Verdict) -> str:
    """Return a short report for a pull request."""
    attempt = verdict.attempt
    word = "accepted" if attempt.accepted else "not accepted"
    lines = [
        f"## {attempt.task_id}: `{attempt.candidate_id}` {word} on {attempt.device}",
        "",
        *markdown_table(
            ("axis", "status", "code", "detail"),
            [(axis.name, axis.status.value, axis.code or "", _clip(axis.message)) for axis in attempt.axes],
        ),
    ]
    if verdict.benchmark is not None:
        head = [*(column.head for column in _COLUMNS), "quality"]
        rows = [[*_timing_cells(case), _quality(case)] for case in verdict.benchmark.cases]
        lines += ["", *markdown_table(head, rows)]
    failures = [line for line in _failure_lines(verdict) if line]
    if failures:
        # Longer than any run of backticks inside, or a candidate's message could end the block.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", "\n".join(failures))), default=0))
        lines += ["", f"{fence}text", *failures, fence]
    lines += [
        "",
        f"Attempt `{attempt.attempt_id}`, exit code {attempt.exit_code}, {attempt.elapsed_s:.1f} s.",
    ]
    return as_lines(lines)
