"""What machine a run was on: facts of the GPU and the tools, and the key of all that moves a time."""

from __future__ import annotations

from mini_kv.core.card import DeviceKind
from mini_kv.core.record import Record
from mini_kv.core.results import Sha256


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
