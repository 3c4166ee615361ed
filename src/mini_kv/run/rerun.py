"""The baseline's own code, rebuilt from the sources that it carries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mini_kv import task_card
from mini_kv.core.attempt import Baseline
from mini_kv.core.build import Build
from mini_kv.core.canonical import canonical_sha256
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.progress import Progress
from mini_kv.core.results import Finding, Status
from mini_kv.run.inputs import RunInputs
from mini_kv.run.stages import build_candidate
from mini_kv.system.scratch import scratch_folder


@contextmanager
def rebuilt_baseline(
    inputs: RunInputs, baseline: Baseline, progress: Progress
) -> Iterator[tuple[RunInputs, Build | None, Finding | None]]:
    """Build a baseline's embedded sources with this run's toolchain; give the build or why there is none.

    The store knows a build by its content: where the baseline was made here, nothing is compiled again.
    The sources lie in a folder of their own while this lasts.
    """
    with scratch_folder("baseline-") as scratch:
        folder = scratch / "sources"
        rebuilt = replace(inputs, manifest=_manifest(baseline, folder))
        try:
            _write(baseline, folder)
            build = build_candidate(rebuilt, progress)
        except ConfigurationError as error:
            yield rebuilt, None, _missing(error.message)
            return
        if build.status is not Status.PASS:
            yield rebuilt, None, _missing(f"{build.code}: {build.message or build.first_error or ''}")
            return
        yield rebuilt, build, None


def _manifest(baseline: Baseline, folder: Path) -> task_card.LoadedManifest:
    manifest = baseline.candidate_manifest
    return task_card.LoadedManifest(
        manifest=manifest,
        folder=folder.as_posix(),
        path=(folder / "candidate.yaml").as_posix(),
        sha256=canonical_sha256(manifest),
    )


def _write(baseline: Baseline, folder: Path) -> None:
    folder.mkdir()
    for name, text in baseline.sources.items():
        path = PurePosixPath(name)
        # The names are part of a file that someone else may have made.
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ConfigurationError("BASELINE_SOURCES", f"the baseline holds a source named '{name}'")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def _missing(why: str) -> Finding:
    return Finding(
        code="BASELINE_NOT_REBUILT", message=f"the baseline's sources cannot be built here: {why[:500]}"
    )
