"""Keep the numbers of docs/optimization-rmsnorm.md equal to the evidence they come from.

The page's tables stand between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and are written from what
lies under ``evidence/`` (scripts/page_evidence.py reads it, scripts/page_tables.py writes it). A number
without evidence is a dash, a table without any a sentence that says so.

    python scripts/optimization_page.py           say what differs; exit code 1 if anything does
    python scripts/optimization_page.py --write   rewrite the tables
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import page_tables

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/optimization-rmsnorm.md"


def rendered(page: str, root: Path) -> str:
    """Return the page with its tables as the evidence has them. Raises ``ValueError`` for a lost marker."""
    for name, table in page_tables.tables(root).items():
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"{PAGE} needs exactly one block <!-- {name}:begin --> ... <!-- {name}:end -->")
        page = pattern.sub(rf"\g<1>{table}\n\g<2>", page)  # a table holds no backslash
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Compare or rewrite; exit code 1 when the page differs from the evidence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args(argv)
    path: Path = arguments.root / PAGE
    page = path.read_text("utf-8")
    wanted = rendered(page, arguments.root)
    if arguments.write:
        path.write_text(wanted, "utf-8")
        return 0
    if page != wanted:
        print(f"{PAGE} differs from the evidence: run scripts/optimization_page.py --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
