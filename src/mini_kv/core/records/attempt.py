"""What becomes of a run: the archived attempt, the index and leaderboard over many, the baseline of one."""

from __future__ import annotations

from mini_kv.core.record import Record
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.card import CandidateManifest, DeviceKind
from mini_kv.core.records.environment import Environment
from mini_kv.core.records.results import Finding, Sha256, Status


class ArchivedFile(Record, frozen=True, kw_only=True):
    """One file of an attempt's folder, by POSIX path relative to it."""

    path: str
    sha256: Sha256
    size_bytes: int


class Axis(Record, frozen=True, kw_only=True):
    """One axis of the verdict."""

    name: str
    status: Status
    code: str | None
    message: str | None


class Attempt(Record, frozen=True, kw_only=True):
    """``attempt.json``: the verdict and the hash of every other file in the folder."""

    schema_version: str
    attempt_id: str
    task_id: str
    operator: str
    operator_version: str
    candidate_id: str
    candidate_version: str
    candidate_folder: str
    device: DeviceKind | None
    suite_sha256: Sha256
    environment_key: Sha256 | None
    build_key: Sha256 | None
    reference_sha256: Sha256 | None
    started_at: str
    elapsed_s: float
    stage_elapsed_s: dict[str, float]
    complete: bool
    accepted: bool
    exit_code: int
    axes: tuple[Axis, ...]
    findings: tuple[Finding, ...]
    secret_seeds: dict[str, str]
    benchmark_stable: bool | None
    geomean_speedup: float | None
    primary_p50_us: float | None
    files: tuple[ArchivedFile, ...]


class IndexRow(Record, frozen=True, kw_only=True):
    """One attempt as the index knows it; ``attempt_sha256`` is of ``attempt.json`` itself.

    ``correct`` leaves speed aside: an attempt that only its regression gate failed is correct.
    ``code_sha256`` is over the names and hashes of what was compiled, the manifest with its flags included.
    """

    task_id: str
    attempt_id: str
    path: str
    attempt_sha256: Sha256
    candidate_id: str
    candidate_version: str
    device: DeviceKind | None
    suite_sha256: Sha256
    environment_key: Sha256 | None
    environment: str | None
    started_at: str
    complete: bool
    accepted: bool
    correct: bool
    benchmark_stable: bool | None
    geomean_speedup: float | None
    primary_p50_us: float | None
    exit_code: int
    candidate_folder: str | None = None
    code_sha256: Sha256 | None = None


class ArtifactIndex(Record, frozen=True, kw_only=True):
    """``artifact_index.json``: every attempt found in the folders, ordered by task and id.

    ``damaged`` names what looked like an attempt and could not be trusted; it is not among ``attempts``.
    """

    schema_version: str
    attempts: tuple[IndexRow, ...]
    damaged: tuple[Finding, ...] = ()


class LeaderboardRow(Record, frozen=True, kw_only=True):
    """One ranked candidate: its latest attempt. ``code_sha256`` tells code of one id and version apart."""

    rank: int
    candidate_id: str
    candidate_version: str
    attempt_id: str
    geomean_speedup: float
    primary_p50_us: float | None
    started_at: str
    candidate_folder: str | None = None
    code_sha256: Sha256 | None = None


class LeaderboardGroup(Record, frozen=True, kw_only=True):
    """Rows that may be compared: same task, suite and environment key.

    ``remarks`` tell where earlier attempts of a row's name are of other code, or of another folder.
    """

    task_id: str
    suite_sha256: Sha256
    environment_key: Sha256
    device: DeviceKind
    environment: str
    rows: tuple[LeaderboardRow, ...]
    remarks: tuple[Finding, ...] = ()


class Leaderboard(Record, frozen=True, kw_only=True):
    """What ``mini-kv leaderboard --json`` prints; ``findings`` are the warnings that stderr shows."""

    schema_version: str
    groups: tuple[LeaderboardGroup, ...]
    findings: tuple[Finding, ...] = ()


class Baseline(Record, frozen=True, kw_only=True):
    """A promoted attempt: raw samples, sources and everything comparison needs."""

    schema_version: str
    promoted_at: str
    attempt: Attempt
    attempt_sha256: Sha256
    candidate_manifest: CandidateManifest
    environment: Environment
    benchmark: Benchmark
    sources: dict[str, str]
    sources_sha256: dict[str, Sha256]
