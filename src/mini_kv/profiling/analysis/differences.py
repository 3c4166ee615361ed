"""Two profiles side by side, after everything that would make them incomparable was ruled out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.profile import (
    REPLAY_NOTE,
    KernelFacts,
    MetricChange,
    Profile,
    ProfileComparison,
    ProfileSide,
    TimedEvidence,
    TimedSide,
)
from mini_kv.core.records.results import Status

_AGREE = (
    ("task_id", "task"),
    ("operator_version", "operator version"),
    ("case_id", "case"),
    ("suite_sha256", "suite"),
    ("seed", "seed"),
    ("device", "device"),
    ("environment_key", "environment"),
)

_Reader = Callable[[KernelFacts], float | None]


def _threads(facts: KernelFacts) -> float:
    x, y, z = facts.block
    return float(x * y * z)


def _blocks(facts: KernelFacts) -> float:
    x, y, z = facts.grid
    return float(x * y * z)


def _field(name: str) -> _Reader:
    def read(facts: KernelFacts) -> float | None:
        value = getattr(facts, name)
        return None if value is None else float(value)

    return read


_METRICS: tuple[tuple[str, str, _Reader], ...] = (
    ("blocks in the grid", "", _blocks),
    ("threads in a block", "", _threads),
    ("waves per multiprocessor", "", _field("waves_per_multiprocessor")),
    ("registers per thread", "", _field("registers_per_thread")),
    ("static shared memory", "bytes", _field("static_shared_bytes")),
    ("dynamic shared memory", "bytes", _field("dynamic_shared_bytes")),
    ("theoretical occupancy", "%", _field("theoretical_occupancy_percent")),
    ("achieved occupancy", "%", _field("achieved_occupancy_percent")),
    ("profiler replay time", "us", _field("replay_duration_us")),
    ("SM throughput", "%", _field("sm_throughput_percent")),
    ("DRAM throughput", "%", _field("dram_throughput_percent")),
    ("DRAM bandwidth in replay", "GB/s", _field("replay_dram_gb_per_s")),
    ("DRAM read", "bytes", _field("dram_read_bytes")),
    ("DRAM written", "bytes", _field("dram_write_bytes")),
    ("L1 hit rate", "%", _field("l1_hit_percent")),
    ("L2 hit rate", "%", _field("l2_hit_percent")),
    ("sectors per load request", "", _field("load_sectors_per_request")),
    ("sectors per store request", "", _field("store_sectors_per_request")),
    ("local memory load sectors", "", _field("local_load_sectors")),
    ("local memory store sectors", "", _field("local_store_sectors")),
)


def compare_profiles(
    before: tuple[Profile, str], after: tuple[Profile, str], timed: tuple[bytes, str] | None = None
) -> ProfileComparison:
    """Compare two profiles, each given with the SHA-256 of its ``profile.json``.

    ``timed`` is the bytes of a timed comparison of the same two candidates, with their hash. Raises
    :class:`ConfigurationError` (``PROFILE_FAILED``, ``PROFILES_DIFFER``, ``COMPARISON_DIFFERS``,
    ``COMPARISON_UNREADABLE``) with one sentence.
    """
    sides = [_side(profile, digest) for profile, digest in (before, after)]
    one, two = before[0], after[0]
    _demand_agreement(one, two)
    assert one.facts is not None and two.facts is not None and one.profiler is not None
    return ProfileComparison(
        schema_version=SCHEMA_VERSION,
        note=REPLAY_NOTE,
        task_id=one.task_id,
        case_id=one.case_id,
        seed=one.seed,
        suite_sha256=one.suite_sha256,
        environment_key=one.environment_key,
        profiler_version=one.profiler.version,
        before=sides[0],
        after=sides[1],
        metrics=tuple(_change(name, unit, read(one.facts), read(two.facts)) for name, unit, read in _METRICS),
        stalls=_stall_changes(one.facts, two.facts),
        timed=None if timed is None else _timed_evidence(one, two, *timed),
    )


def _side(profile: Profile, digest: str) -> ProfileSide:
    facts = profile.facts
    if (
        profile.status is not Status.PASS
        or facts is None
        or profile.build_key is None
        or profile.library_sha256 is None
        or profile.profiler is None
    ):
        why = profile.failure.code if profile.failure is not None else Code.INCOMPLETE
        raise ConfigurationError(
            Code.PROFILE_FAILED,
            f"Profile {profile.profile_id} holds no capture ({why}), so nothing can be compared.",
        )
    return ProfileSide(
        profile_id=profile.profile_id,
        profile_sha256=digest,
        candidate_id=profile.candidate_id,
        candidate_version=profile.candidate_version,
        build_key=profile.build_key,
        library_sha256=profile.library_sha256,
        kernel=facts.kernel,
        grid=facts.grid,
        block=facts.block,
    )


def _demand_agreement(one: Profile, two: Profile) -> None:
    for name, noun in _AGREE:
        left, right = getattr(one, name), getattr(two, name)
        if left != right:
            raise ConfigurationError(
                Code.PROFILES_DIFFER,
                f"The two profiles differ in {noun} ({_short(left)} and {_short(right)}), so they cannot be "
                "compared.",
            )
    assert one.profiler is not None and two.profiler is not None
    for name, noun in (("version", "Nsight Compute version"), ("cache_control", "cache control")):
        left, right = getattr(one.profiler, name), getattr(two.profiler, name)
        if left != right:
            raise ConfigurationError(
                Code.PROFILES_DIFFER,
                f"The two profiles differ in {noun} ({left} and {right}), so they cannot be compared.",
            )


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}..." if re.fullmatch(r"[0-9a-f]{64}", text) else f"'{text}'"


def _change(name: str, unit: str, before: float | None, after: float | None) -> MetricChange:
    both = before is not None and after is not None and before > 0.0
    ratio = after / before if both and after is not None and before is not None else None
    return MetricChange(name=name, unit=unit, before=before, after=after, ratio=ratio)


def _stall_changes(one: KernelFacts, two: KernelFacts) -> tuple[MetricChange, ...]:
    left = {stall.name: stall.cycles_per_issue for stall in one.stalls}
    right = {stall.name: stall.cycles_per_issue for stall in two.stalls}
    names = sorted({*left, *right}, key=lambda name: (-max(left.get(name, 0.0), right.get(name, 0.0)), name))
    return tuple(_change(name, "cycles per issue", left.get(name), right.get(name)) for name in names)


# --------------------------------------------------------------------------- timed comparison


def timed_sides(raw: bytes) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return a timed comparison's document and those of its parts that describe a candidate's side.

    Only the fields that bind are read here, wherever the document keeps them. Raises
    :class:`ConfigurationError` for what is no JSON object.
    """
    try:
        document = msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            Code.COMPARISON_UNREADABLE, f"The timed comparison is not JSON: {error}."
        ) from error
    if not isinstance(document, dict):
        raise ConfigurationError(Code.COMPARISON_UNREADABLE, "The timed comparison is not a JSON object.")
    return document, tuple(part for part in _parts(document) if {"candidate_id", "build_key"} <= part.keys())


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner)


def _timed_evidence(one: Profile, two: Profile, raw: bytes, digest: str) -> TimedEvidence:
    document, sides = timed_sides(raw)
    for name, noun in (("task_id", "task"), ("suite_sha256", "suite"), ("environment_key", "environment")):
        if document.get(name) != getattr(one, name):
            raise ConfigurationError(
                Code.COMPARISON_DIFFERS,
                f"The timed comparison's {noun} ({_short(document.get(name))}) is not the profiles' "
                f"({_short(getattr(one, name))}).",
            )
    if not any(part.get("case_id") == one.case_id for part in _parts(document)):
        raise ConfigurationError(
            Code.COMPARISON_DIFFERS, f"The timed comparison did not time the profiles' case '{one.case_id}'."
        )
    before, after = (_timed_side(profile, sides) for profile in (one, two))
    return TimedEvidence(comparison_sha256=digest, before=before, after=after)


def _timed_side(profile: Profile, sides: tuple[dict[str, Any], ...]) -> TimedSide:
    named = [side for side in sides if side["candidate_id"] == profile.candidate_id]
    if not named:
        raise ConfigurationError(
            Code.COMPARISON_DIFFERS,
            f"The timed comparison has no side of candidate '{profile.candidate_id}'.",
        )
    fitting = [side for side in named if side["build_key"] == profile.build_key]
    if not fitting:
        raise ConfigurationError(
            Code.COMPARISON_DIFFERS,
            f"Candidate '{profile.candidate_id}' was timed in build {_short(named[0]['build_key'])} and "
            f"profiled in build {_short(profile.build_key)}.",
        )
    # A build's key covers every byte of its sources already; where they are listed too, they must fit.
    sources = fitting[0].get("source_sha256", profile.source_sha256)
    if sources != profile.source_sha256:
        raise ConfigurationError(
            Code.COMPARISON_DIFFERS,
            f"The sources of candidate '{profile.candidate_id}' differ between the timed comparison and the "
            "profile.",
        )
    assert profile.build_key is not None
    return TimedSide(
        candidate_id=profile.candidate_id,
        build_key=profile.build_key,
        p50_us=_p50_us(fitting[0], profile.case_id),
    )


def _p50_us(side: dict[str, Any], case_id: str) -> float | None:
    """Return the side's benchmark time of the case, where the document keeps it with the side."""
    for part in _parts(side):
        if part.get("case_id", case_id) == case_id and isinstance(part.get("p50_us"), float):
            return float(part["p50_us"])
    return None
