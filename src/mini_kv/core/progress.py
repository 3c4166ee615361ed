"""How a long stage tells what it does; the CLI decides how that looks."""

from __future__ import annotations

from collections.abc import Callable

from mini_kv.core.record import Record


class Event(Record, frozen=True, kw_only=True):
    """``done`` of ``total`` steps of ``stage`` are finished; ``detail`` is a short plain text.

    With ``warning``, ``detail`` is instead a whole sentence that stays visible while the stages go on.
    """

    stage: str
    done: int
    total: int
    detail: str = ""
    warning: bool = False


Progress = Callable[[Event], None]


def silent(_: Event) -> None:
    """Ignore progress."""
