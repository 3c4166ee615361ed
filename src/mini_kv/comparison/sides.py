"""What a comparison leaves: filled stage by stage, then one record and one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from mini_kv.comparison.verdicts import compared_cases, overall
from mini_kv.core.codes import Code
from mini_kv.core.errors import ExitCode
from mini_kv.core.record import to_json
from mini_kv.core.records.archived_files import (
    BENCHMARK_FILE,
    CARD_FILE,
    CORRECTNESS_FILE,
    ENVIRONMENT_FILE,
    MANIFEST_FILE,
    PAIRS_FILE,
)
from mini_kv.core.records.attempt import Axis
from mini_kv.core.records.benchmark import Benchmark, BenchmarkCase
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.comparison import ComparedSide, Comparison, SideTime
from mini_kv.core.records.correctness import Correctness
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.suite import suite_hash
from mini_kv.core.rules.verdict import (
    axes_of,
    caught_in_pairs,
    exit_code_of,
    isolation_axis,
)
from mini_kv.run import RunInputs, RunLog, build_files
from mini_kv.system.archive_folder import ArchiveFolder

# The first of these that either side has is the comparison's: the order in which stages depend on each other.
_BY_STAGE = (ExitCode.COMPILATION, ExitCode.CORRECTNESS, ExitCode.INTEGRITY, ExitCode.BENCHMARK)


@dataclass(kw_only=True)
class Side:
    """One candidate's evidence so far."""

    label: Literal["A", "B"]
    inputs: RunInputs
    build: Build | None = None
    load_fault: Finding | None = None
    correctness: Correctness | None = None
    benchmark: Benchmark | None = None

    @property
    def folder(self) -> str:
        """Where its files lie in the archive."""
        return self.label.lower()

    @property
    def loaded(self) -> bool:
        """Whether its library was built and opened."""
        return self.build is not None and self.build.status is Status.PASS and self.load_fault is None

    def axes(self, pairs: PairSet | None) -> tuple[Axis, ...]:
        """Return its verdict by axis, as ``verify`` would."""
        axes = axes_of(
            self.build,
            self.load_fault,
            self.correctness,
            self.benchmark,
            regression=None,
            benchmark_skipped=False,
            caught=caught_in_pairs((pairs,), self.label),
        )
        return (*axes, isolation_axis(self.inputs.cage.isolation))


@dataclass(kw_only=True)
class ComparisonEvidence(RunLog):
    """What the stages have left so far; archived whatever happens."""

    a: Side
    b: Side
    reference_sha256: str | None = None
    pairs: PairSet | None = None
    watched: tuple[Finding, ...] = ()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides, A first."""
        return self.a, self.b

    def exit_code(self) -> int:
        """Return the first failed stage's exit code, of whichever side."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.fault is not None:
            return int(self.fault)
        found = [exit_code_of(side.axes(self.pairs), None, interrupted=False) for side in self.sides]
        return int(next((code for code in _BY_STAGE if code in found), ExitCode.ACCEPTED))


def archive(evidence: ComparisonEvidence, folder: ArchiveFolder, elapsed_s: float) -> Comparison:
    """Write every record and source, seal them with ``comparison.json``, publish; return the record."""
    inputs = evidence.a.inputs
    folder.add_json(CARD_FILE.name, inputs.card.card)
    folder.add_json(ENVIRONMENT_FILE.name, inputs.environment)
    for side in evidence.sides:
        _add_side(side, folder)
    if evidence.pairs is not None:
        folder.add_json(PAIRS_FILE.name, evidence.pairs)
    files, changed = folder.hashed()
    record = msgspec.structs.replace(_record(evidence, folder, elapsed_s), files=files)
    if changed:
        finding = Finding(
            code=Code.ARCHIVE_TAMPERED,
            message="Files of this comparison were changed by something other than mini-kv while it ran.",
            evidence=changed,
        )
        record = msgspec.structs.replace(
            record,
            accepted=False,
            exit_code=int(ExitCode.INTEGRITY),
            findings=(*record.findings, finding),
        )
    folder.publish(to_json(record))
    return record


def _add_side(side: Side, folder: ArchiveFolder) -> None:
    folder.add_json(f"{side.folder}/{MANIFEST_FILE.name}", side.inputs.manifest.manifest)
    if side.build is not None:
        for name, raw in build_files(side.inputs, side.build).items():
            folder.add_bytes(f"{side.folder}/{name}", raw)
    for file, record in ((CORRECTNESS_FILE, side.correctness), (BENCHMARK_FILE, side.benchmark)):
        if record is not None:
            folder.add_json(f"{side.folder}/{file.name}", record)


def _record(evidence: ComparisonEvidence, folder: ArchiveFolder, elapsed_s: float) -> Comparison:
    inputs = evidence.a.inputs
    card = inputs.card.card
    one, two = evidence.a.benchmark, evidence.b.benchmark
    cases = compared_cases(one, two, evidence.pairs, evidence.watched) if one and two else ()
    word, message, ratio = overall(cases, evidence.pairs)
    code = evidence.exit_code()
    return Comparison(
        schema_version=SCHEMA_VERSION,
        comparison_id=folder.folder_id,
        task_id=card.task_id,
        operator=card.operator,
        operator_version=card.operator_version,
        device=inputs.device,
        suite_sha256=suite_hash(card),
        card_sha256=inputs.card.sha256,
        environment_key=inputs.environment.key,
        reference_sha256=evidence.reference_sha256,
        timer=inputs.environment.timer_plan,
        cache=card.benchmark.cache,
        started_at=folder.started_at,
        elapsed_s=round(elapsed_s, 4),
        stage_elapsed_s=evidence.stage_elapsed_s,
        complete=evidence.pairs is not None and not evidence.interrupted,
        accepted=code == ExitCode.ACCEPTED,
        exit_code=code,
        word=word,
        message=message,
        ratio=ratio,
        a=_side(evidence.a, evidence.pairs),
        b=_side(evidence.b, evidence.pairs),
        cases=cases,
        findings=tuple(evidence.findings),
        secret_seeds=inputs.secret_seeds,
        files=(),
    )


def _side(side: Side, pairs: PairSet | None) -> ComparedSide:
    manifest = side.inputs.manifest
    axes = side.axes(pairs)
    build = side.build
    return ComparedSide(
        label=side.label,
        folder=side.folder,
        candidate_id=manifest.manifest.candidate_id,
        candidate_version=manifest.manifest.version,
        candidate_folder=manifest.folder,
        manifest_sha256=manifest.sha256,
        build_key=build.key if build else None,
        library_sha256=build.library_sha256 if build else None,
        source_sha256=build.source_sha256 if build else {},
        exit_code=int(exit_code_of(axes, None, interrupted=False)),
        axes=axes,
        findings=() if side.load_fault is None else (side.load_fault,),
        times=_times(side.benchmark.cases if side.benchmark else ()),
    )


def _times(cases: Sequence[BenchmarkCase]) -> tuple[SideTime, ...]:
    return tuple(
        SideTime(
            case_id=case.case_id,
            stable=case.stable,
            p50_us=case.candidate.p50_us if case.candidate else None,
            p95_us=case.candidate.p95_us if case.candidate else None,
            net_p50_us=case.candidate.net_p50_us if case.candidate else None,
            kernel_us=case.candidate_kernel.kernel_us if case.candidate_kernel else None,
            gb_per_s=case.gb_per_s,
            robust_cv=case.candidate.robust_cv if case.candidate else None,
            timing_trust=case.timing_trust,
        )
        for case in cases
    )
