"""What is said to any worker: who it is, whether it is ready, and the answers to whatever was asked."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from mini_kv.core.record import Record
from mini_kv.core.records.card import DeviceKind


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """First request: pick the device and say what the process is."""

    device: DeviceKind
    threads: Annotated[int, Meta(ge=1)]


class Rouse(Record, frozen=True, kw_only=True, tag="rouse"):
    """Answer Done once the imports are over; the device stays untouched."""


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """Answer to Hello."""

    torch: str
    torch_cuda: str | None
    device: str
    device_count: int
    compute_capability: str | None = None
    device_name: str | None = None
    total_memory_bytes: int | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None


class Done(Record, frozen=True, kw_only=True, tag="done"):
    """Asked and done; nothing to tell."""


class Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """The request could not be carried out: whose fault it is follows from the request."""

    code: str
    message: str
    traceback: str = ""


PresenceRequest = Hello | Rouse
PresenceReply = Ready | Done | Failed
