"""What can be asked of a seat whoever sits there: the question both workers understand in the same words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mini_kv.core import protocol as p
from mini_kv.system.workers import Answer, Lost, Payload


class Conversation(ABC):
    """Questions to one worker, one at a time."""

    @abstractmethod
    def ask(
        self,
        message: p.Request,
        payloads: Sequence[Payload] = (),
        *,
        timeout_s: float,
        max_reply_bytes: int = p.DEFAULT_MAX_FRAME_BYTES,
    ) -> Answer | Lost:
        """Ask and wait; an answer with more than ``max_reply_bytes`` of payloads is none."""

    def drop_timing(self, case_id: str, *, timeout_s: float) -> Answer | Lost:
        """Have the worker free a timed case: its argument sets and the results that it keeps."""
        return self.ask(p.DropTiming(case_id=case_id), timeout_s=timeout_s, max_reply_bytes=0)
