"""Tables of studies and pages: their cells are Markdown that the studies write themselves."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.core.text_table import as_markdown, markdown_table


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(markdown_table(head, rows, cell=as_markdown))
