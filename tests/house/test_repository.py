"""What every committed text file must keep to: the project speaks of itself, and its links lead somewhere."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The words are put together here, so that this file does not hold them itself.
FORBIDDEN = {
    "an absolute path of one machine": r"(?<![\w.])/(wor" + r"k|roo" + r"t)/",
    "a package registry's host": r"py" + r"pi\.org|files\.python" + r"hosted",
    "an issue's number": r"(?i)\bissu" + r"e\s*#\s*\d",
    "how the project came about": r"(?i)\b(AI|language model|chat) (assist|agent|sess" + r"ion)",
    "a lent machine": r"/\.libr" + r"ary/",
    "a document that is not here": r"\bSP" + r"EC\b|\b(TRUST|GPU|STYLE)\.m" + r"d\b",
}
# Evidence is what a machine said; it names the machine's folders by right.
SKIPPED_FOLDERS = ("evidence", "requirements")


@functools.cache
def committed_texts() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    ).stdout.decode()
    texts: dict[str, str] = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if name.split("/")[0] in SKIPPED_FOLDERS or path.is_symlink() or not path.is_file():
            continue
        try:
            texts[name] = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
    if not texts:
        pytest.skip("not a git checkout")
    return texts


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_file_names(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in committed_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def _anchors(text: str) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_documentation_leads_to_a_file_and_heading() -> None:
    broken = []
    for name, text in committed_texts().items():
        if not name.endswith(".md") or name.split("/")[0] in ("tests", "scripts"):
            continue  # a page's raw material is checked where it ends up
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            path = (ROOT / name).parent / file if file else ROOT / name
            if not path.exists():
                broken.append(f"{name}: {target}")
            elif anchor and anchor not in _anchors(path.read_text("utf-8")):
                broken.append(f"{name}: {target} (no such heading)")
    assert broken == []


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text("utf-8")
    pages = [name for name in committed_texts() if re.fullmatch(r"docs/adr/\d{4}-.*\.md", name)]
    assert pages
    for page in pages:
        assert f"({Path(page).name})" in listed


def test_every_measure_that_the_zoo_names_by_number_is_explained() -> None:
    page = (ROOT / "docs" / "trust.md").read_text("utf-8")
    explained = re.findall(r"^\| (P\d+) \|", page, flags=re.MULTILINE)
    named = {number for text in re.findall(r"\| (P[^|]*): [^|]*\|$", page, flags=re.MULTILINE)
             for number in text.split(", ")}  # fmt: skip
    assert named
    assert sorted(named - set(explained)) == []
    assert len(explained) == len(set(explained))


def test_a_package_named_like_a_folder_of_evidence_was_never_linted() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", "src", "scripts", "research", "tests"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    linted = {Path(line).relative_to(ROOT).as_posix() for line in shown.splitlines()}
    tops = ("src/", "scripts/", "research/")
    modules = {name for name in committed_texts() if name.startswith(tops) and name.endswith(".py")}
    assert modules <= linted, sorted(modules - linted)
