"""Whole profiles for tests, made without a profiler."""

from __future__ import annotations

from typing import Any

import msgspec

from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.profile import EXTRA_METRICS, REPLAY_NOTE, SECTIONS, Profile, ProfilerRun
from mini_kv.core.records.results import Status

BEFORE = Profile(
    schema_version=SCHEMA_VERSION,
    profile_id="20260301T120000Z-00000001",
    status=Status.PASS,
    stage="analysis",
    failure=None,
    exit_code=0,
    note=REPLAY_NOTE,
    task_id="rmsnorm",
    operator_version="1.0.0",
    case_id="bench_1024x4096_f16",
    params={"shape": (1024, 4096), "dtype": "float16"},
    seed="0123456789abcdef",
    candidate_id="v1",
    candidate_version="0.1.0",
    candidate_folder="candidates/rmsnorm/v1",
    device="cuda",
    suite_sha256=sha256_bytes(b"suite"),
    card_sha256=sha256_bytes(b"card"),
    manifest_sha256=sha256_bytes(b"manifest"),
    source_sha256={"kernel.cu": sha256_bytes(b"source")},
    reference_sha256=sha256_bytes(b"reference"),
    build_key=sha256_bytes(b"build"),
    library_sha256=sha256_bytes(b"library"),
    environment_key=sha256_bytes(b"environment"),
    started_at="2026-03-01T12:00:00.000000Z",
    elapsed_s=12.5,
    profiler=ProfilerRun(
        version="2025.3.1.0",
        command=("ncu",),
        sections=SECTIONS,
        extra_metrics=EXTRA_METRICS,
        clock_control="none",
        cache_control="all",
        kernel_name_regex="rmsnorm",
        warmup_calls=5,
        returncode=0,
        elapsed_s=12.0,
    ),
    gate=None,
    numerics=None,
    facts=None,
    files=(),
)


def profile(candidate_id: str, **changes: Any) -> Profile:
    """Return a profile of a candidate with a build and sources of its own."""
    own = {
        "candidate_id": candidate_id,
        "candidate_folder": f"candidates/rmsnorm/{candidate_id}",
        "build_key": sha256_bytes(f"build of {candidate_id}".encode()),
        "library_sha256": sha256_bytes(f"library of {candidate_id}".encode()),
        "source_sha256": {"kernel.cu": sha256_bytes(f"source of {candidate_id}".encode())},
    }
    return msgspec.structs.replace(BEFORE, **own, **changes)
