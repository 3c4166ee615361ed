"""The files of an archive stand in one table; a name written elsewhere, or that it lacks, is found."""

from __future__ import annotations

import ast
import fnmatch
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mini_kv import pipeline
from mini_kv.core.records import archived_files as files
from mini_kv.core.records.archived_files import ALWAYS, RawFile, RecordFile
from mini_kv.core.records.schemas import RECORDS

TABLE = Path("core/records/archived_files.py")
# Of the scripts, those that say what an archive holds.
SCRIPTS = ("validate_schemas.py", "generate_reference.py", "reference/*.py")
EVERY = (*files.ATTEMPT_FILES, *files.PROFILE_FILES, *files.COMPARISON_FILES, *files.SIDE_FILES)
ENDINGS = (".json", ".log", ".csv", ".ncu-rep")
FOLDERS = (f"{files.SOURCES_FOLDER}/", f"{files.LOGS_FOLDER}/")
# The folders of archives that are kept as evidence, by the file that seals each.
ARCHIVES: dict[str, Sequence[RawFile]] = {
    "attempt.json": files.ATTEMPT_FILES,
    "profile.json": files.PROFILE_FILES,
    "comparison.json": files.COMPARISON_FILES,
}


def file_names() -> set[str]:
    return {file.name for file in EVERY if not file.name.endswith("/")}


def docstrings(tree: ast.AST) -> set[int]:
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }


def is_name(text: str, names: set[str]) -> bool:
    """Whether a text is a file's name, ends a path with one, or is a pattern for one in particular."""
    last = text.rpartition("/")[2]
    pattern = "*" in last and last.strip("*").endswith(ENDINGS) and not last.startswith("*.")
    return last in names or (pattern and bool(fnmatch.filter(names, last)))


def parts_of_names(node: ast.AST) -> Iterator[str]:
    """Yield what a name is put together from: an ending behind a stem, a folder before a name."""
    match node:
        case ast.JoinedStr(values=[ast.Constant(value=str(first)), *_]) if first.startswith(FOLDERS):
            yield first
        case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(last))]) if last in ENDINGS:
            yield last
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=str(last))) if last in ENDINGS:
            yield last
        case ast.Call(func=ast.Attribute(attr="add_json" | "add_bytes"), args=[ast.Constant(value=name), *_]):
            yield str(name)
        case _:
            pass


def names_in(path: Path, names: set[str]) -> Iterator[int]:
    """Yield the line of each text that is the name of an archive's file, or a part of one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in skipped and is_name(text, names):
                yield node.lineno
            case ast.expr() if any(parts_of_names(node)):
                yield node.lineno


def names_elsewhere(folder: Path, patterns: Sequence[str] = ("**/*.py",)) -> list[str]:
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    assert paths, f"{folder} holds no module"
    return [
        f"{path.relative_to(folder).as_posix()}:{line}"
        for path in paths
        if path.relative_to(folder) != TABLE
        for line in names_in(path, file_names())
    ]


def unknown(paths: Sequence[str], table: Sequence[RawFile]) -> list[str]:
    """Return the paths that no row of a table stands for, a folder's files by the folder's row."""
    known = {file.name for file in table}
    return [path for path in paths if path not in known and f"{path.partition('/')[0]}/" not in known]


def test_the_files_of_an_archive_are_named_in_the_table_alone(project_root: Path) -> None:
    assert (project_root / "src/mini_kv" / TABLE).is_file()
    assert names_elsewhere(project_root / "src/mini_kv") == [], f"names of files come from {TABLE}"
    assert names_elsewhere(project_root / "scripts", SCRIPTS) == [], f"names of files come from {TABLE}"


@pytest.mark.parametrize(
    "source",
    [
        'writer.add_json("correctness.json", record)',
        'FILES = ("task_card.json", "more_pairs.json")',
        'path = f"{side}/benchmark.json"',
        'LOG = folder / "compile_stdout.log"',
        'name = f"{stage}.json"',
        'names = [stage + ".json" for stage in ("benchmark", "correctness")]',
        'found = folder.glob("*_benchmark.json")',
        'name = f"sources/{path}"',
        'writer.add_json("extra_times.json", record)',
    ],
)
def test_a_planted_name_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "planted.py").write_text(source)
    assert names_elsewhere(tmp_path)[:1] == ["planted.py:1"]


@pytest.mark.parametrize(
    "source",
    [
        'found = folder.glob("*.json")',
        'if path.suffix == ".json":\n    pass',
        'NAME = "settings.json"',
        'HELP = "writes benchmark.json of the attempt"',
        'unpacked = scratch / "sources"',
        'more = f"see {name} for more"',
        "writer.add_json(BENCHMARK_FILE.name, record)",
    ],
)
def test_another_name_or_ending_is_none(tmp_path: Path, source: str) -> None:
    (tmp_path / "module.py").write_text(source)
    assert names_elsewhere(tmp_path) == []


def test_a_name_in_a_docstring_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('"""attempt.json"""\ndef f():\n    """attempt.json"""\n')
    assert names_elsewhere(tmp_path) == []


def test_the_pipeline_writes_every_record_of_the_table(project_root: Path) -> None:
    tree = ast.parse(Path(pipeline.__file__).read_text(encoding="utf-8"))
    written = {
        getattr(files, node.attr).name
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "files"
    }
    # By the writer, and with the other files of the build.
    elsewhere = {files.ATTEMPT_FILE.name, files.BUILD_FILE.name}
    assert written | elsewhere == {one.name for one in files.ATTEMPT_FILES if isinstance(one, RecordFile)}


def test_every_record_of_an_archive_has_a_schema_and_every_name_one_row() -> None:
    assert {file.record for file in EVERY if isinstance(file, RecordFile)} < set(RECORDS.values())
    for table in (files.ATTEMPT_FILES, files.PROFILE_FILES, files.COMPARISON_FILES, files.SIDE_FILES):
        names = [file.name for file in table]
        assert sorted(set(names)) == sorted(names)
        assert all(file.holds and file.when for file in table)


@pytest.mark.parametrize("marker", ARCHIVES)
def test_archives_that_are_kept_hold_what_the_table_says(project_root: Path, marker: str) -> None:
    found = sorted(project_root.glob(f"evidence/**/{marker}"))
    assert found, f"no {marker} is kept as evidence"
    table = ARCHIVES[marker]
    for path in found:
        paths = [entry["path"] for entry in json.loads(path.read_text("utf-8"))["files"]]
        sides = [name.partition("/")[2] for name in paths if name.startswith(("a/", "b/"))]
        rest = [name for name in paths if not name.startswith(("a/", "b/"))]
        assert unknown(rest, table) == [], path
        assert unknown(sides, files.SIDE_FILES) == [], path
        assert bool(sides) == (marker == "comparison.json")
        needed = {file.name for file in table if file.when == ALWAYS} - {marker}
        missing = [name for name in needed if not any(one.startswith(name) for one in rest)]
        assert missing == [], path


def test_a_file_that_no_row_stands_for_is_seen() -> None:
    paths = ["attempt.json", "sources/kernel.cu", "notes.txt", "a/b"]
    assert unknown(paths, files.ATTEMPT_FILES) == ["notes.txt", "a/b"]
