"""The files of an attempt, of a profile and of a comparison: the one table of them.

What is written, read back, validated and documented goes by this table (a test looks for names elsewhere).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from mini_kv.core.record import Record
from mini_kv.core.records.attempt import Attempt
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import CandidateManifest, TaskCard
from mini_kv.core.records.comparison import Comparison
from mini_kv.core.records.correctness import Correctness
from mini_kv.core.records.environment import Environment
from mini_kv.core.records.pairs import PairSet
from mini_kv.core.records.profile import Profile
from mini_kv.core.records.regression import Regression

_R = TypeVar("_R", bound=Record)

SOURCES_FOLDER = "sources"
LOGS_FOLDER = "logs"
ALWAYS = "always"
_BUILT = "once a build was tried"
_CAPTURED = "once Nsight Compute has captured the kernel"


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A file that holds no record, or a folder of such files, whose name then ends in ``/``."""

    name: str
    holds: str
    when: str


@dataclass(frozen=True, kw_only=True)
class RecordFile(RawFile, Generic[_R]):
    """A JSON file that holds one record."""

    record: type[_R]


ATTEMPT_FILE = RecordFile(
    name="attempt.json",
    record=Attempt,
    holds="the verdict: axes, exit code, and size and SHA-256 of every other file",
    when=ALWAYS,
)
CARD_FILE = RecordFile(name="task_card.json", record=TaskCard, holds="what was asked", when=ALWAYS)
MANIFEST_FILE = RecordFile(
    name="candidate_manifest.json", record=CandidateManifest, holds="what was claimed", when=ALWAYS
)
ENVIRONMENT_FILE = RecordFile(
    name="environment.json", record=Environment, holds="on what machine, and its key", when=ALWAYS
)
BUILD_FILE = RecordFile(
    name="compile.json",
    record=Build,
    holds="the commands, where they failed the first error, the build's key",
    when=_BUILT,
)
BUILD_STDOUT_FILE = RawFile(name="compile_stdout.log", holds="what the compilers printed", when=_BUILT)
BUILD_STDERR_FILE = RawFile(
    name="compile_stderr.log", holds="what the compilers printed as errors and warnings", when=_BUILT
)
SOURCES_FILES = RawFile(name=f"{SOURCES_FOLDER}/", holds="what was compiled", when=_BUILT)
CORRECTNESS_FILE = RecordFile(
    name="correctness.json",
    record=Correctness,
    holds="every case and round: seed, errors, first wrong elements; contract checks",
    when="once cases were run",
)
BENCHMARK_FILE = RecordFile(
    name="benchmark.json",
    record=Benchmark,
    holds="every raw sample, quality, kernel times, bandwidth",
    when="once it was timed",
)
REGRESSION_FILE = RecordFile(
    name="regression.json",
    record=Regression,
    holds="the gate's decision for each case",
    when="once it was held against a baseline",
)
PAIRS_FILE = RecordFile(
    name="pairs.json",
    record=PairSet,
    holds="raw times of pairs of fresh processes: both codes on one machine within one minute",
    when="where two codes ran in pairs",
)
MORE_PAIRS_FILE = RecordFile(
    name="more_pairs.json",
    record=PairSet,
    holds="raw times of the second, larger set of pairs",
    when="where the first set left the gate in doubt",
)
CONFIRMATION_FILE = RecordFile(
    name="confirmation_benchmark.json",
    record=Benchmark,
    holds="a second batch in fresh processes, as `benchmark.json`",
    when="where a P50 was over its limit and the baseline's code could not be run",
)
RETIMED_FILE = RecordFile(
    name="retimed_benchmark.json",
    record=Benchmark,
    holds="the batch in fresh processes that is judged if its reference is in place, as `benchmark.json`",
    when="where the reference had moved since the baseline",
)
PROFILE_FILE = RecordFile(
    name="profile.json",
    record=Profile,
    holds="the facts about the kernel, and size and SHA-256 of every other file",
    when=ALWAYS,
)
LOGS_FILES = RawFile(
    name=f"{LOGS_FOLDER}/", holds="what Nsight Compute and the profiled process printed", when="once it ran"
)
REPORT_FILE = RawFile(name="report.ncu-rep", holds="Nsight Compute's own report", when=_CAPTURED)
RAW_PAGE_FILE = RawFile(name="raw.csv", holds="its raw page: every metric", when=_CAPTURED)
COMPARISON_FILE = RecordFile(
    name="comparison.json",
    record=Comparison,
    holds="the verdict: both sides, the interval, and size and SHA-256 of every other file",
    when=ALWAYS,
)

_BUILD_FILES = (BUILD_FILE, BUILD_STDOUT_FILE, BUILD_STDERR_FILE, SOURCES_FILES)
ATTEMPT_FILES: tuple[RawFile, ...] = (
    ATTEMPT_FILE,
    CARD_FILE,
    MANIFEST_FILE,
    ENVIRONMENT_FILE,
    *_BUILD_FILES,
    CORRECTNESS_FILE,
    BENCHMARK_FILE,
    REGRESSION_FILE,
    PAIRS_FILE,
    MORE_PAIRS_FILE,
    CONFIRMATION_FILE,
    RETIMED_FILE,
)
PROFILE_FILES: tuple[RawFile, ...] = (
    PROFILE_FILE,
    CARD_FILE,
    MANIFEST_FILE,
    ENVIRONMENT_FILE,
    replace(SOURCES_FILES, when=ALWAYS),
    BUILD_FILE,
    LOGS_FILES,
    REPORT_FILE,
    RAW_PAGE_FILE,
)
COMPARISON_FILES: tuple[RawFile, ...] = (COMPARISON_FILE, CARD_FILE, ENVIRONMENT_FILE, PAIRS_FILE)
# Of each side of a comparison, below ``a/`` and ``b/``.
SIDE_FILES: tuple[RawFile, ...] = (MANIFEST_FILE, *_BUILD_FILES, CORRECTNESS_FILE, BENCHMARK_FILE)
