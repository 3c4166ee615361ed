"""The words that every stage's result is written in: a status, a finding, a digest."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from mini_kv.core.record import END, Record

Sha256 = Annotated[str, Meta(pattern=rf"^[0-9a-f]{{64}}{END}")]


class Status(enum.Enum):
    """The state of one axis or one check. Only explicit evidence gives PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    INVALID = "INVALID"
    ERROR = "ERROR"
    UNVERIFIED = "UNVERIFIED"
    SKIPPED = "SKIPPED"


class Finding(Record, frozen=True, kw_only=True):
    """Why something is not PASS, or worth a remark: code, sentence, evidence."""

    code: str
    message: str
    evidence: tuple[str, ...] = ()
