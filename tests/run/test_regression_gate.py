"""The gate at work over fake workers: pairs of processes next to the record, and what is archived of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_project import FakeProject, fake_project
from mini_kv import compiler
from mini_kv.artifacts import load_baseline
from mini_kv.compiler import BuildRequest
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.errors import ConfigurationError, ExitCode
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.attempt import Baseline
from mini_kv.core.records.build import Build
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.regression import Decision
from mini_kv.core.records.results import Status
from mini_kv.regression import Policy
from mini_kv.run.baseline_rebuild import require_sound_sources
from verdict_facts import SLOWER, WRONG, assert_archived, axis, baseline_of, codes

__all__ = ["fake_project"]

BASELINES = Path(__file__).resolve().parents[2] / "baselines"

# The candidate's own library, not the one rebuilt from the baseline's sources; slower by what is given.
NEW_CODE = "state['new'] = 'rebuilt' not in request.library"


def slower_by(factor: float) -> dict[str, str]:
    wobble = "(1.0 + 0.001 * (os.getpid() % 7))"
    scaled = f"change(reply, samples_us=tuple({{}} * {wobble} * s for s in reply.samples_us))"
    return {
        "candidate/load_candidate": NEW_CODE,
        "candidate/time_batch": f"reply = {scaled.format(factor)} if state['new'] else {scaled.format(1.0)}",
    }


def test_a_slowdown_against_the_baselines_own_code_ends_with_6(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    verdict = fake_project.verify(slower_by(1.2), baseline=baseline, pairs=3)
    attempt = assert_archived(verdict)
    assert attempt.exit_code == ExitCode.REGRESSION
    assert verdict.regression is not None
    assert {case.code for case in verdict.regression.cases} == {"PAIRED_P50_SLOWER"}
    files = {file.path for file in attempt.files}
    assert "pairs.json" in files
    assert "confirmation_benchmark.json" not in files
    pairs = from_json((verdict.folder / "pairs.json").read_bytes(), PairSet)
    assert (pairs.label_a, pairs.label_b, pairs.pairs, pairs.losses) == ("baseline", "candidate", 3, ())


def test_a_small_slowdown_against_the_baselines_own_code_is_slower_and_accepted(
    fake_project: FakeProject,
) -> None:
    baseline = baseline_of(fake_project)
    verdict = fake_project.verify(slower_by(1.03), baseline=baseline, pairs=3)
    assert verdict.regression is not None
    assert verdict.regression.decision is Decision.SLOWER
    assert axis(verdict, "regression")[0] is Status.PASS
    assert verdict.attempt.exit_code == 0


def test_a_machine_that_became_slower_is_no_fault_of_the_candidate(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    verdict = fake_project.verify({"candidate/time_batch": SLOWER}, baseline=baseline, pairs=3)
    assert verdict.regression is not None
    assert verdict.regression.decision is Decision.PASS_WITH_WARNING
    assert {case.code for case in verdict.regression.cases} == {"P50_SLOWER_ONCE"}


def test_a_candidate_that_dies_next_to_the_baseline_is_no_pass_without_a_word(
    fake_project: FakeProject,
) -> None:
    baseline = baseline_of(fake_project)
    faults = {
        "candidate/run_case": "state['checked'] = True",
        "candidate/time_batch": "state.get('checked') or os._exit(1)",
    }
    verdict = fake_project.verify(faults, baseline=baseline, pairs=3)
    assert verdict.regression is not None
    assert {case.code for case in verdict.regression.cases} == {"PAIRS_UNUSABLE"}
    assert verdict.regression.decision is Decision.PASS_WITH_WARNING


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("candidate/fetch_timed_output", "TIMED_OUTPUT_WRONG"),
        ("candidate/fetch_timed_inputs", "INPUT_MUTATED_WHILE_TIMED"),
    ],
    ids=["output", "input"],
)
def test_what_is_wrong_next_to_the_baseline_only_ends_with_4(
    fake_project: FakeProject, place: str, code: str
) -> None:
    """A candidate that cheats only in a fresh process was a pair without a time, and accepted."""
    baseline = baseline_of(fake_project)
    verdict = fake_project.verify(
        {
            "candidate/load_candidate": NEW_CODE,
            "candidate/run_case": "state['checked'] = True",
            place: f"if state['new'] and not state.get('checked'): {WRONG}",
        },
        baseline=baseline,
        pairs=3,
    )
    assert verdict.attempt.exit_code == ExitCode.CORRECTNESS
    assert axis(verdict, "timing") == (Status.FAIL, code)


def test_a_baseline_that_no_longer_builds_leaves_the_record(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    whole = compiler.build

    def build(request: BuildRequest, *rest: Any, **more: Any) -> Build:
        made = whole(request, *rest, **more)
        if not Path(request.candidate_folder).is_absolute():
            return made
        return msgspec.structs.replace(
            made, status=Status.FAIL, code="COMPILE_ERROR", message="no such header"
        )

    fake_project.monkeypatch.setattr(compiler, "build", build)
    verdict = fake_project.verify({"candidate/time_batch": SLOWER}, baseline=baseline, pairs=3)
    assert verdict.attempt.exit_code == ExitCode.REGRESSION
    assert "BASELINE_NOT_REBUILT" in codes(verdict)
    assert "confirmation_benchmark.json" in {file.path for file in verdict.attempt.files}


MOVED = "reply = change(reply, samples_us=tuple(1.1 * s for s in reply.samples_us))"


def test_a_reference_that_moved_in_one_process_only_is_timed_again(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    # Only the oracle of the run itself audits the card before it times.
    faults = {
        "oracle/audit_case": "state['first'] = True",
        "oracle/time_batch": f"if state.get('first'): {MOVED}",
    }
    verdict = fake_project.verify(faults, baseline=baseline, pairs=2)
    assert verdict.regression is not None
    assert "retimed_benchmark.json" in {file.path for file in assert_archived(verdict).files}
    assert verdict.regression.decision is Decision.PASS


def test_a_reference_that_moved_is_inconclusive_whatever_the_pairs_say(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    faults = slower_by(1.2) | {"oracle/time_batch": MOVED}
    verdict = fake_project.verify(faults, baseline=baseline, pairs=2)
    assert verdict.regression is not None
    assert verdict.regression.decision is Decision.INCONCLUSIVE
    assert {case.code for case in verdict.regression.cases} == {"REFERENCE_MOVED"}
    assert all(case.paired is not None and case.paired.ratio > 1.1 for case in verdict.regression.cases)
    assert "more_pairs.json" not in {file.path for file in verdict.attempt.files}


def test_a_doubt_takes_a_second_and_larger_set_of_pairs(fake_project: FakeProject) -> None:
    baseline = baseline_of(fake_project)
    # The record, taken in the process that was checked before, says nothing of it.
    faults = slower_by(1.08) | {"candidate/run_case": "state['new'] = False"}
    verdict = fake_project.verify(faults, baseline=baseline, pairs=2)
    second = from_json((verdict.folder / "more_pairs.json").read_bytes(), PairSet)
    assert second.pairs == 2 * Policy().second_set
    assert verdict.regression is not None
    assert all(case.paired is not None and case.paired.pairs == 8 for case in verdict.regression.cases)
    assert verdict.regression.decision is Decision.FAIL


def forged(baseline: Path, part: str, change: dict[str, Any]) -> Path:
    """Change the manifest or the sources of a baseline, and every hash that would tell."""
    parts = msgspec.json.decode(baseline.read_bytes())
    parts[part] |= change
    files = {file["path"]: file for file in parts["attempt"]["files"]}
    files["candidate_manifest.json"]["sha256"] = sha256_bytes(to_json(parts["candidate_manifest"]))
    for name, text in parts["sources"].items():
        parts["sources_sha256"][name] = sha256_bytes(text.encode())
        files.setdefault(f"sources/{name}", {"path": f"sources/{name}", "size_bytes": len(text.encode())})
        files[f"sources/{name}"]["sha256"] = parts["sources_sha256"][name]
    parts["attempt"]["files"] = list(files.values())
    parts["attempt_sha256"] = sha256_bytes(to_json(parts["attempt"]))
    baseline.write_bytes(to_json(parts))
    return baseline


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("candidate_manifest", {"cxx_flags": ["-O2", "-fplugin=evil.so"]}, "the flag '-fplugin=evil.so'"),
        ("candidate_manifest", {"cuda_flags": ["-ccbin=evil"]}, "the flag '-ccbin=evil'"),
        ("candidate_manifest", {"sources": ["op.cpp", "absent.cu"]}, "sources[1]"),
        ("candidate_manifest", {"sources": ["op.cpp", "sub/../../other.cu"]}, "sources[1]"),
        ("candidate_manifest", {"dispatcher": "aten::double"}, "which is PyTorch's"),
        ("candidate_manifest", {"schema_version": "2.0.0"}, "another major version"),
        ("candidate_manifest", {"dispatcher": "aten::double\n"}, "matching regex"),
        ("candidate_manifest", {"kernel_name_regex": "double\n"}, "line break"),
        ("sources", {"../../outside.h": "//"}, "a source named '../../outside.h'"),
        ("sources", {"op.cpp/inner.h": "//"}, "a source named 'op.cpp/inner.h'"),
        ("sources", {"a\x00b.h": "//"}, "a source named 'a\\x00b.h'"),
    ],
)
def test_a_baselines_manifest_passed_by_the_list_of_allowed_flags(
    fake_project: FakeProject, part: str, change: dict[str, Any], said: str
) -> None:
    """Whole hashes say only that a file's parts belong together, not that a compiler may be given them."""
    baseline = forged(baseline_of(fake_project), part, change)
    fake_project.events.clear()
    with pytest.raises(ConfigurationError) as refused:
        fake_project.verify(baseline=baseline)
    assert refused.value.exit_code == ExitCode.CONFIGURATION
    assert refused.value.code in ("BASELINE_MANIFEST", "BASELINE_SOURCES", "BASELINE_INVALID")
    assert said in refused.value.message and "\n" not in refused.value.message
    assert fake_project.events == [], "nothing was built"


def test_a_baseline_exchanged_during_the_run_was_recorded_as_the_one_compared_with(
    fake_project: FakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = baseline_of(fake_project)
    digest = sha256_bytes(path.read_bytes())

    def exchange(baseline: Baseline, name: str) -> None:
        require_sound_sources(baseline, name)
        path.write_bytes(b"another")

    monkeypatch.setattr("mini_kv.pipeline.require_sound_sources", exchange)
    verdict = fake_project.verify(baseline=path, pairs=0)
    assert verdict.regression is not None
    assert verdict.regression.baseline_sha256 == digest


def test_a_forgery_that_breaks_no_rule_is_rebuilt(fake_project: FakeProject) -> None:
    baseline = forged(baseline_of(fake_project), "candidate_manifest", {"cxx_flags": ["-O1"]})
    verdict = fake_project.verify(slower_by(1.2), baseline=baseline, pairs=3)
    assert verdict.attempt.exit_code == ExitCode.REGRESSION
    assert "BASELINE_NOT_REBUILT" not in codes(verdict)


@pytest.mark.parametrize("path", sorted(BASELINES.glob("*.json")), ids=lambda path: path.stem)
def test_the_committed_baselines_obey_the_rules_of_a_manifest(path: Path) -> None:
    require_sound_sources(load_baseline(path), path.name)
