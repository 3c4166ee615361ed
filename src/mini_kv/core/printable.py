"""Text that others wrote, made fit for one line: it neither breaks it, nor steers a terminal."""

from __future__ import annotations

import re
from html import escape

_MARKDOWN = re.compile(r"[\\`*\[\]|~]")
# Letters and symbols by their category that draw nothing: blanks that could lay out one line like another.
_UNDRAWN = re.compile("[\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]")


def printable(text: str) -> str:
    """Return ``text`` with every character escaped that cannot be printed or draws nothing, line breaks too.

    So are the halves of characters that stand for bytes of a file's name that are no UTF-8: what is
    returned can always be encoded.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if _is_seen(each) else each.encode("unicode_escape").decode() for each in text)


def _is_seen(character: str) -> bool:
    return character.isprintable() and not _UNDRAWN.match(character)


def markdown_cell(text: str) -> str:
    """Return ``text`` as a cell of a Markdown table that shows it as it is.

    It ends no cell, whatever stands before its bars, and makes no link, picture, emphasis or HTML.
    """
    return _MARKDOWN.sub(r"\\\g<0>", escape(printable(text), quote=False))
