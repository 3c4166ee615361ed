"""Keep the numbers of README.md and docs/optimization-rmsnorm.md equal to the evidence they come from.

A page's tables stand between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and are written from what
lies under ``evidence/`` (scripts/page_evidence.py reads it, page_tables.py and readme_tables.py write it). On
the page about rmsnorm a number without evidence is a dash, a table without any a sentence that says so.

    python scripts/evidence_pages.py           say what differs; exit code 1 if anything does
    python scripts/evidence_pages.py --write   rewrite the tables
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import page_tables
import readme_tables
from page_blocks import replaced

ROOT = Path(__file__).resolve().parent.parent

PAGES: dict[str, Callable[[Path], dict[str, str]]] = {
    "README.md": readme_tables.tables,
    "docs/optimization-rmsnorm.md": page_tables.tables,
}


def rendered(name: str, root: Path) -> str:
    """Return the page with its tables as the evidence has them. Raises ``ValueError`` for a lost marker."""
    page = (root / name).read_text("utf-8")
    for block, table in PAGES[name](root).items():
        page = replaced(page, f"<!-- {block}:begin -->", f"<!-- {block}:end -->", table)
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Compare or rewrite; exit code 1 when the page differs from the evidence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args(argv)
    stale = 0
    for name in PAGES:
        path: Path = arguments.root / name
        wanted = rendered(name, arguments.root)
        if path.read_text("utf-8") == wanted:
            continue
        if arguments.write:
            path.write_text(wanted, "utf-8")
        else:
            print(f"{name} differs from the evidence: run scripts/evidence_pages.py --write", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
