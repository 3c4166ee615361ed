"""Bombs, a megabyte of anything and arbitrary bytes: a card or an error, and quickly."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from card_files import VALID, make_project, problems_of, write
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import TaskCard
from mini_kv.task_card import LoadedCard, load_task_card
from mini_kv.task_card.document import MAX_NODES, read_document
from mini_kv.task_card.loading import MAX_FILE_BYTES
from mini_kv.task_card.scalars import plain_scalar
from mini_kv.task_card.structure import schema_findings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


# ---------------------------------------------------------------------- bombs are refused before they grow


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)]
    return "\n".join(lines) + "\n"


def test_an_alias_bomb_is_refused_before_it_expands(project: Path) -> None:
    started_s = time.process_time()
    found = problems_of(project, bomb(30))
    assert time.process_time() - started_s < 1.0
    assert len(found) == 1
    assert "aliases counted as often as they are used; allowed: at most 200,000" in found[0]


def test_a_bomb_of_mappings_and_deep_aliases_is_refused(project: Path) -> None:
    rows = ["b0: &b0 {k: x}"] + [f"b{level}: &b{level} {{k: *b{level - 1} }}" for level in range(1, 30)]
    found = problems_of(project, "\n".join(rows))
    assert found == ("tasks/x.yaml:8: b7.k: found more than 8 levels of nesting; allowed: at most 8",)


def test_more_values_than_any_card_needs_are_refused(project: Path) -> None:
    started_s = time.process_time()
    found = problems_of(project, "a: [" + "1," * (MAX_NODES + 10) + "]")
    assert time.process_time() - started_s < 5.0
    assert len(found) == 1
    assert "found more than 200,000 values" in found[0]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{b: "])
def test_deep_nesting_is_refused_without_recursion(project: Path, opening: str) -> None:
    problem = problems_of(project, opening * 50_000)[-1]
    assert problem.endswith("found more than 8 levels of nesting; allowed: at most 8"), problem


@pytest.mark.parametrize(
    "content",
    [
        "a: " + "x" * 1_000_000,
        "a: '" + "''" * 500_000,
        "&a " * 300_000,
        "!a " * 300_000,
        "a: " + "*" * 1_000_000,
        "? " * 500_000,
        ": " * 500_000,
        "- " * 500_000,
        "#" * 1_000_000,
        "a: |\n" + " x\n" * 300_000,
        "\n" * 1_000_000,
        "%YAML 1.1\n" * 100_000,
        "--- a\n" * 150_000,
        "".join(f"k{number}: 1\n" for number in range(90_000)),
        "k: 1\n" * 200_000,
        "[" + "{}," * 199_000 + "]",
        "{" * 8 + "a: 1, " * 150_000,
        '"' + "\\x00" * 250_000 + '"',
        "a: " + "1" * 1_000_000,
        "a: 1" + ":1" * 500_000,
        "a: " + "_" * 1_000_000,
        "a: 1" + "_" * 1_000_000,
    ],
    ids=range(22),
)
def test_a_megabyte_of_anything_is_answered_quickly(project: Path, content: str) -> None:
    write(project, content[:MAX_FILE_BYTES])
    started = time.process_time()
    with pytest.raises(ConfigurationError):
        load_task_card(project / "tasks/x.yaml", project)
    assert time.process_time() - started < 5.0


# ---------------------------------------------------------------------- nothing else ever comes out


def outcome(project: Path, content: bytes) -> LoadedCard | ConfigurationError:
    try:
        return load_task_card(write(project, content), project)
    except ConfigurationError as caught:
        error = caught
    assert error.problems
    assert all(problem.isprintable() for problem in error.problems), error.problems
    return error


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(content=st.binary(max_size=400))
def test_arbitrary_bytes_give_a_card_or_an_error(project: Path, content: bytes) -> None:
    outcome(project, content)


@FUZZ
@given(content=st.text(alphabet="ab01.:-_?&*!|>%@`'\"#{}[], \n\t<=~\\xu", max_size=120))
def test_arbitrary_yaml_text_gives_a_card_or_an_error(project: Path, content: str) -> None:
    outcome(project, content.encode("utf-8", "surrogatepass"))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=4),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@FUZZ
@given(tree=TREES)
def test_arbitrary_yaml_trees_give_a_card_or_an_error(project: Path, tree: object) -> None:
    outcome(project, yaml.dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


def every_path(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        found += every_path(value, (*path, key))
    return found


TREE = read_document(VALID.encode()).data
PATHS = every_path(TREE)


def mutated(path: tuple[Any, ...], value: object) -> Any:
    tree = json.loads(json.dumps(TREE))
    node = tree
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return tree


@FUZZ
@given(path=st.sampled_from(PATHS), value=TREES)
def test_any_value_at_any_key_gives_a_card_or_an_error(
    project: Path, path: tuple[Any, ...], value: object
) -> None:
    content = yaml.dump(mutated(path, value), allow_unicode=True, sort_keys=False)
    outcome(project, content.encode("utf-8", "surrogatepass"))


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=12)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        WORDS,
        st.sampled_from(["core", "float32", "cuda", "1.2.3", "a:b"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "rtol", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@FUZZ
@given(path=st.sampled_from(PATHS), value=JSON)
def test_the_record_and_its_schema_accept_the_same(path: tuple[Any, ...], value: object) -> None:
    """The schema is asked only when the record refuses: neither may be stricter than the other."""
    tree = mutated(path, value)
    try:
        msgspec.convert(tree, type=TaskCard)
        accepted = True
    except msgspec.ValidationError:
        accepted = False
    assert (not list(schema_findings(tree, TaskCard))) is accepted


@given(text=st.from_regex(r"[-+]?[0-9]{1,5}(\.[0-9]{0,5})?([eE][-+]?[0-9]{1,2})?", fullmatch=True))
def test_a_number_means_what_python_reads_or_is_refused(text: str) -> None:
    value, problem = plain_scalar(text)
    assert problem is not None or value == float(text)
