"""One registry of codes: nothing in src writes a code as a string, and every member is used and described."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_kv.core.codes import Code, ExitCode, in_confirmation, of_check, of_ids, while_loading
from mini_kv.core.errors import ConfigurationError, IntegrityError, InternalError
from mini_kv.core.record import from_json, to_json
from mini_kv.core.records.results import Finding

REGISTRY = "core/codes.py"
# Words for people in tables of times: they name no code, though one is spelled so.
WORDS = {("cli/comparison_text.py", "UNSTABLE"), ("cli/verdict_text.py", "UNSTABLE")}
UPPER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
# What each class ends a process with; a library that does not load fails the build.
RAISED = {
    ConfigurationError.__name__: ExitCode.CONFIGURATION,
    IntegrityError.__name__: ExitCode.INTEGRITY,
    InternalError.__name__: ExitCode.INTERNAL,
    "LoadError": ExitCode.COMPILATION,
}
# The stage that times takes a busy device for a fault of its own; a profile ends with the machine's.
ENDS_OTHERWISE = {("benchmark/plan.py", Code.DEVICE_BUSY)}


@pytest.fixture(scope="module")
def sources(project_root: Path) -> dict[str, ast.Module]:
    root = project_root / "src/mini_kv"
    trees = {
        path.relative_to(root).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(root.rglob("*.py"))
    }
    assert len(trees) > 200
    return trees


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_part(text: str, *, of: int = 1) -> bool:
    """Say whether a piece of an f-string begins or ends that many codes."""
    whole = text != "_" and (text.startswith("_") or text.endswith("_"))
    return whole and sum(code.startswith(text) or code.endswith(text) for code in Code) >= of


def strays(tree: ast.Module, name: str) -> Iterator[tuple[int, str]]:
    """Yield every string that is a code, a part of one, or stands where a code must."""
    values_of_enums = {
        id(line.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for line in each.body
        if isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Name)
        and line.targets[0].id == text_of(line.value)
    }
    for node in ast.walk(tree):
        text = text_of(node)
        code = text in Code.__members__ and id(node) not in values_of_enums and (name, text) not in WORDS
        # What begins one code alone may be the prefix of a variable.
        if code or is_part(text.replace("%s", ""), of=2):
            yield node.lineno, text  # type: ignore[attr-defined]
        elif isinstance(node, ast.Compare) and getattr(node.left, "attr", "") == "code":
            told = [part for place in node.comparators for part in ast.walk(place)]
            yield from ((node.lineno, text_of(part)) for part in told if UPPER.fullmatch(text_of(part)))
        elif isinstance(node, ast.Call):
            places = [word.value for word in node.keywords if word.arg == "code"]
            places += node.args[:1] if called(node) in RAISED else []
            yield from ((node.lineno, text_of(place)) for place in places if UPPER.fullmatch(text_of(place)))


def uses(tree: ast.AST) -> Iterator[Code]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code":
            code = Code.named(node.attr)
            if code is not None:
                yield code


def words_given(tree: ast.AST, keyword: str) -> set[str]:
    return {
        text_of(word.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == keyword and text_of(word.value)
    }


def checks(sources: dict[str, ast.Module]) -> set[str]:
    from mini_kv.correctness.contract_plan import _PARTS

    asked = words_given(sources["correctness/contract_plan.py"], "check")
    assert len(asked) >= 8
    return (asked - _PARTS.keys()) | {part for parts in _PARTS.values() for part in parts}


def test_no_code_is_written_as_a_string(sources: dict[str, ast.Module]) -> None:
    found = [
        f"{name}:{line}: {text}"
        for name, tree in sources.items()
        if name != REGISTRY
        for line, text in strays(tree, name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        'Finding(code="WRONG_VALUES", message="m")',
        'Finding(code="NOT_REGISTERED", message="m")',
        'raise ConfigurationError("NOT_REGISTERED", "m")',
        'raise errors.InternalError("PROTOCOL", "m")',
        'if finding.code == "CRASHED": pass',
        'TAMPERED = {"ATTEMPT_CHANGED"}',
        'class Facts: code = "TIMEOUT"',
        'code = f"LOAD_{lost.code}"',
        'code = f"{side}_P50_UNSTABLE"',
        'code = "LOAD_" + lost.code',
        'code = "OPCHECK_%s" % name',
        'if finding.code.startswith("LOAD_"): pass',
        'if finding.code.endswith("_UNSTABLE"): pass',
        'if finding.code == "NOT_REGISTERED": pass',
        'if finding.code in ("NOT_REGISTERED", other): pass',
    ],
)
def test_a_planted_string_is_found(planted: str) -> None:
    assert list(strays(ast.parse(planted), "planted.py"))


@pytest.mark.parametrize(
    "allowed",
    [
        'class Status(enum.Enum): SKIPPED = "SKIPPED"',
        'os.environ.get("PATH")',
        'Finding(code=Code.WRONG_VALUES, message="TIMEOUT of the worker")',
        'f"RLIMIT_{name}"',
        '"MINI_KV_" + name',
        'name.startswith("CUDA_")',
        "finding.code == code",
    ],
)
def test_other_words_are_let_be(allowed: str) -> None:
    assert not list(strays(ast.parse(allowed), "allowed.py"))


def test_every_code_is_given_somewhere(sources: dict[str, ast.Module]) -> None:
    used = {code for name, tree in sources.items() if name != REGISTRY for code in uses(tree)}
    made = {while_loading(code) for code in used}
    made |= {in_confirmation(code) for code in uses(sources["regression/gate.py"]) if confirms(code)}
    made |= {of_check(name) for name in checks(sources)}
    made |= {of_ids(noun) for tree in sources.values() for noun in words_given(tree, "noun")}
    assert sorted(set(Code) - used - made) == []


def confirms(code: Code) -> bool:
    return f"CONFIRMATION_{code}" in Code.__members__


def test_whatever_loses_a_worker_has_a_code_while_it_loads(sources: dict[str, ast.Module]) -> None:
    lost = {code for code in uses(sources["system/workers.py"]) if code is not Code.CLOSED}
    assert Code.CRASHED in lost
    assert {while_loading(code) for code in lost} <= set(Code)
    # A name that the candidate's process made up stays what it is.
    assert while_loading("MemoryError") == "MemoryError"


def test_an_error_s_class_ends_a_process_as_its_code_says(sources: dict[str, ast.Module]) -> None:
    raised = [
        (name, called(node), code)
        for name, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) in RAISED and node.args
        for code in uses(node.args[0])
    ]
    assert len(raised) > 100
    wrong = {(name, code) for name, kind, code in raised if code.facts.exit_code is not RAISED[kind]}
    assert wrong == ENDS_OTHERWISE


def test_a_code_is_its_name_and_has_a_plain_sentence() -> None:
    assert len(Code) > 200
    assert [code for code in Code if not code == code.name == f"{code}" or not UPPER.fullmatch(code)] == []
    assert [code for code in Code if len(code.facts.meaning.split()) < 3] == []
    names = ("CUPTI", "Nsight", "PyTorch")  # a sentence stands in a cell: no capital, no full stop
    styled = [code.facts.meaning[0].islower() or code.facts.meaning.startswith(names) for code in Code]
    assert all(styled)
    assert [code for code in Code if code.facts.meaning.endswith(".")] == []
    assert len({code.facts.meaning for code in Code}) == len(Code)


def test_every_code_is_on_the_reference_page(project_root: Path) -> None:
    page = (project_root / "docs/reference.md").read_text("utf-8")
    assert [code for code in Code if f"\n| `{code}` | {code.facts.fault.value} |" not in page] == []


def test_a_record_holds_a_code_as_text_and_any_other_version_s() -> None:
    made = Finding(code=Code.WRONG_VALUES, message="m")
    assert to_json(made, indent=None) == b'{"code":"WRONG_VALUES","message":"m","evidence":[]}\n'
    read = from_json(to_json(made), Finding)
    assert read == made
    assert Code.named(read.code) is Code.WRONG_VALUES
    foreign = from_json(b'{"code": "OF_ANOTHER_VERSION", "message": "m"}', Finding)
    assert Code.named(foreign.code) is None
    assert Code.named(None) is None
