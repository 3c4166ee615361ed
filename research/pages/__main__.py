"""Keep README.md, docs/ and the pictures under evidence/ equal to the evidence and the code they come from.

A page's blocks stand between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``. Its module here (``readme``,
``rmsnorm``, ``method``) returns the text of each as a function of what lies under ``evidence/``. A number
without evidence is a dash, a table without any a sentence that says so. A picture is drawn anew from the JSON
file next to it.

    python -m research.pages             rewrite what differs
    python -m research.pages --check     change nothing; name what differs and return 1
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mini_kv.cli import calibrate
from mini_kv.core.record import from_json
from mini_kv.core.records.calibration import Calibration
from research import ROOT
from research.gate_study.records import StudyError
from research.pages import method, readme, rmsnorm
from research.sweep.picture import picture

PAGES: dict[str, Callable[[Path], dict[str, str]]] = {
    "README.md": readme.blocks,
    "docs/method.md": method.blocks,
    "docs/optimization-rmsnorm.md": rmsnorm.blocks,
}
PICTURES: dict[str, Callable[[bytes], str]] = {
    "calibration.json": lambda raw: calibrate.picture(from_json(raw, Calibration)),
    "sweep.json": lambda raw: picture(json.loads(raw)),
}


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """Return the page with its blocks as given. Raises ``ValueError`` unless it has just these, each once."""
    begun = Counter(re.findall(r"<!-- (\w+):begin -->", page))
    wrong = sorted(name for name in {*begun, *blocks} if begun[name] != (name in blocks))
    if wrong:
        raise ValueError(f"exactly one block of each name is needed; not so: {', '.join(wrong)}")
    for name, text in blocks.items():
        before, start, rest = page.partition(f"<!-- {name}:begin -->")
        _, end, after = rest.partition(f"<!-- {name}:end -->")
        if not end:
            raise ValueError(f"the block {name} has no end")
        page = f"{before}{start}\n{text}\n{end}{after}"
    return page


def wanted(root: Path) -> dict[Path, str]:
    """Return what every page and picture must hold. Raises ``ValueError`` and ``StudyError``."""
    found = {root / name: filled((root / name).read_text("utf-8"), PAGES[name](root)) for name in PAGES}
    for name, drawn in PICTURES.items():
        for path in sorted((root / "evidence").glob(f"**/{name}")):
            found[path.with_suffix(".svg")] = drawn(path.read_bytes())
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or compare; exit code 1 where a page or picture differs, 2 where one cannot be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--check", action="store_true", help="change nothing; 1 where something differs")
    arguments = parser.parse_args(argv)
    try:
        files = wanted(arguments.root)
    except (StudyError, ValueError) as error:
        print(f"pages: {error}", file=sys.stderr)
        return 2
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in stale:
        name = path.relative_to(arguments.root)
        if arguments.check:
            print(f"{name} differs from the evidence: run python -m research.pages", file=sys.stderr)
        else:
            path.write_text(files[path], "utf-8")
            print(f"written    {name}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
