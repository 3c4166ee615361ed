"""What machine a run was on: facts of the GPU and the tools, and the key of all that moves a time."""

from __future__ import annotations

import math

from mini_kv.core.canonical import canonical_sha256
from mini_kv.core.record import Record
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.results import Sha256

# What enters the key: all that decides a time, nothing that jitters. Whoever reads an archive computes its
# key again, so a new recipe must stand next to this one, with a sign in the record of which of them made it.
KEY_FIELDS = {
    "cuda": (
        *("device", "gpu", "compute_capability", "driver", "torch_cuda", "torch", "power_limit_w"),
        "timer_plan",
    ),
    "cpu": ("device", "cpu_model", "cpu_count", "machine", "torch", "timer_plan"),
}


class GpuFacts(Record, frozen=True, kw_only=True):
    """Facts of one GPU as NVML and torch give them; jittery readings stay out of the key."""

    index: int
    name: str
    uuid: str | None
    compute_capability: str
    total_memory_bytes: int
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    memory_clock_mhz: int | None = None
    memory_bus_bits: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None


class ToolFact(Record, frozen=True, kw_only=True):
    """One tool found (or not) on this machine."""

    name: str
    path: str | None
    version: str | None


class Environment(Record, frozen=True, kw_only=True):
    """``environment.json``. ``key`` hashes ``KEY_FIELDS`` and nothing that jitters."""

    schema_version: str
    key: Sha256
    device: DeviceKind
    os: str
    kernel: str
    machine: str
    cpu_model: str
    cpu_count: int
    memory_bytes: int
    python: str
    mini_kv: str
    torch: str
    torch_cuda: str | None
    driver: str | None
    gpus: tuple[GpuFacts, ...]
    tools: tuple[ToolFact, ...]
    timer_plan: str
    isolation: str
    isolation_features: tuple[str, ...] = ()


def environment_key(environment: Environment) -> str:
    """Return the key that follows from an environment's own fields; ``gpus[0]`` is the one that was measured.

    Raises ``ValueError`` for a CUDA environment that names no GPU.
    """
    facts = {name: getattr(environment, name, None) for name in KEY_FIELDS[environment.device]}
    if environment.device == "cuda":
        if not environment.gpus:
            raise ValueError("a CUDA environment names its GPU")
        gpu = environment.gpus[0]
        watts = gpu.power_limit_w
        facts |= {
            "gpu": gpu.name,
            "compute_capability": gpu.compute_capability,
            "power_limit_w": round(watts) if watts is not None and math.isfinite(watts) else None,
        }
    return canonical_sha256(facts)


def key_follows(environment: Environment) -> bool:
    """Say whether an environment's key is the one that its own fields give."""
    try:
        return environment.key == environment_key(environment)
    except ValueError:
        return False
