"""What a stage that runs candidates works on."""

from __future__ import annotations

from dataclasses import dataclass

from mini_kv.core.records.card import DeviceKind, TaskCard
from mini_kv.system.oracle_client import OracleClient
from mini_kv.system.seats import CandidateSeat


@dataclass(frozen=True, kw_only=True)
class StageSubject:
    """A card and the two workers that answer for it; ``secret_seeds`` are 16 hex digits by case id.

    ``timeout_s`` is what one call of the candidate may take.
    """

    card: TaskCard
    device: DeviceKind
    oracle: OracleClient
    seat: CandidateSeat
    secret_seeds: dict[str, str]
    timeout_s: float
