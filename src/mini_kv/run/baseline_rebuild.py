"""The baseline's own code, rebuilt from the sources that it carries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mini_kv import task_card
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.progress import Progress
from mini_kv.core.records.attempt import Baseline
from mini_kv.core.records.build import Build
from mini_kv.core.records.results import Finding, Status
from mini_kv.run.run_inputs import RunInputs
from mini_kv.run.steps import build_candidate
from mini_kv.system.scratch import scratch_folder


def require_sound_sources(baseline: Baseline, name: str) -> None:
    """Refuse a baseline whose manifest or sources would be refused in a candidate's folder.

    ``name`` is of the baseline's file. Raises :class:`ConfigurationError`; nothing is built.
    """
    with scratch_folder("baseline-") as scratch:
        try:
            _unpacked(baseline, scratch)
        except ConfigurationError as error:
            raise ConfigurationError(error.code, f"{name} is refused: {error.message}.") from error


@contextmanager
def rebuilt_baseline(
    inputs: RunInputs, baseline: Baseline, progress: Progress
) -> Iterator[tuple[RunInputs, Build | None, Finding | None]]:
    """Build a baseline's embedded sources with this run's toolchain; give the build or why there is none.

    The store knows a build by its content: where the baseline was made here, nothing is compiled again.
    The sources lie in a folder of their own while this lasts.
    """
    with scratch_folder("baseline-") as scratch:
        try:
            rebuilt = replace(inputs, manifest=_unpacked(baseline, scratch))
            build = build_candidate(rebuilt, progress)
        except ConfigurationError as error:
            yield inputs, None, _missing(error.message)
            return
        if build.status is not Status.PASS:
            yield rebuilt, None, _missing(f"{build.code}: {build.message or build.first_error or ''}")
            return
        yield rebuilt, build, None


def _unpacked(baseline: Baseline, scratch: Path) -> task_card.LoadedManifest:
    return task_card.unpack_candidate(baseline.candidate_manifest, baseline.sources, scratch / "sources")


def _missing(why: str) -> Finding:
    return Finding(
        code=Code.BASELINE_NOT_REBUILT, message=f"the baseline's sources cannot be built here: {why[:500]}"
    )
