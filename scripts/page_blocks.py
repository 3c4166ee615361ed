"""Blocks of a page that are written by a script, each between two marks of its own."""

from __future__ import annotations


def replaced(text: str, start: str, end: str, content: str) -> str:
    """Return ``text`` with what stands between the marks replaced. Raises ``ValueError`` for a lost mark."""
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"exactly one block {start} ... {end} is needed")
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{content}\n{end}{rest.partition(end)[2]}"
