"""Lines of text that others had a say in: each stays one line, and what is quoted is seen to be quoted."""

from __future__ import annotations

from collections.abc import Iterable

from mini_kv.core.printable import printable

QUOTE = "  | "
# With the mark in front, quoted lines fit a terminal of 100 columns: none goes on in its first one.
_QUOTED_CHARACTERS = 96


def as_lines(lines: Iterable[str]) -> str:
    """Return the text of these lines. A line break inside one is shown escaped: it makes no second line."""
    return "\n".join(map(printable, lines)) + "\n"


def flat(text: str | None, limit: int) -> str:
    """Return ``text`` with all white space as single blanks, cut to ``limit`` characters."""
    words = " ".join((text or "").split())
    return words if len(words) <= limit else words[: limit - 3] + "..."


def quoted(text: str, limit: int) -> list[str]:
    """Return the first ``limit`` lines of what a tool or candidate said, behind a mark, folded where long."""
    folded: list[str] = []
    for line in text.splitlines()[:limit]:
        shown = printable(line.expandtabs())
        folded += [
            shown[start : start + _QUOTED_CHARACTERS] for start in range(0, len(shown), _QUOTED_CHARACTERS)
        ] or [""]
    return [(QUOTE + line).rstrip() for line in folded]
