"""The mutation harness: what each operator makes, what it leaves alone, and when a run fails."""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, project_root: Path) -> Any:
    monkeypatch.syspath_prepend(str(project_root / "scripts"))
    return importlib.import_module("run_mutants")


@pytest.fixture
def operators(harness: Any) -> Any:
    return importlib.import_module("mutants.operators")


@pytest.fixture
def made(operators: Any) -> Callable[[str], list[tuple[str, str]]]:
    """Return a module's mutants: the operator, and the changed source on one line."""

    def make(source: str) -> list[tuple[str, str]]:
        found = operators.mutants_of("m", source)
        trees = [operators.mutated_tree(source, mutant.number) for mutant in found]
        return [
            (mutant.operator, "; ".join(ast.unparse(tree).splitlines()))
            for mutant, tree in zip(found, trees, strict=True)
        ]

    return make


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a < b", [("other comparison", "a <= b")]),
        ("a >= b", [("other comparison", "a > b")]),
        ("a == b", [("other comparison", "a != b")]),
        ("a is not b", [("other comparison", "a is b")]),
        ("a in b", [("other comparison", "a not in b")]),
        ("a < b < c", [("other comparison", "a <= b < c")]),
        ("a and b", [("and/or", "a or b")]),
        ("a or b or c", [("and/or", "a and b and c")]),
        ("a - b", [("other arithmetic", "a + b")]),
        ("a / b", [("other arithmetic", "a * b")]),
        ("a // b", [("other arithmetic", "a * b")]),
        ("x = any(y)", [("any/all, min/max", "x = all(y)")]),
        ("x = max(y)", [("any/all, min/max", "x = min(y)")]),
        ("x = True", [("other truth", "x = False")]),
        ("x = 1.0", [("other number", "x = 2.0")]),
        ("x = 200", [("other number", "x = 400")]),
        ("x = not y", [("without not", "x = y")]),
        (
            "x = not y <= z",
            [
                ("without not", "x = y <= z"),
                ("NaN on the other side", "x = y > z"),
                ("other comparison", "x = not y < z"),
            ],
        ),
        ("x = a if b else c", [("if True", "x = a if True else c"), ("if False", "x = a if False else c")]),
        ("if a:\n    b = c", [("if True", "if True:;     b = c"), ("if False", "if False:;     b = c")]),
        ("x = [y for y in z if y]", [("filter nothing", "x = [y for y in z if True]")]),
        ("f(x)", [("statement dropped", "pass")]),
        ("a += b", [("statement dropped", "pass")]),
        ("raise ValueError(f'{1}')", [("statement dropped", "pass")]),
        ("def f():\n    return a, b", [("nothing returned", "def f():;     return ()")]),
    ],
)
def test_each_operator_makes_what_it_says(
    made: Callable[[str], list[tuple[str, str]]], source: str, mutants: list[tuple[str, str]]
) -> None:
    assert made(source) == mutants


@pytest.mark.parametrize(
    "source",
    [
        "x = 'text'",
        "x = f'{a:.2f} of {b + 1}'",
        "x = f(message='found ' + a, evidence=(1,), timeout_s=5.0, max_reply_bytes=1 << 20)",
        "x: int | None = y",
        "Name = Literal[1, 2]",
        "__all__ = [1]",
        "@cache(maxsize=3)\ndef f(a: Meta[1]) -> Meta[2]:\n    return a",
        "if TYPE_CHECKING:\n    x = 1",
        "assert x == 1",
        "x = 'a' + b",
    ],
)
def test_what_decides_nothing_is_left_alone(
    made: Callable[[str], list[tuple[str, str]]], source: str
) -> None:
    assert made(source) == []


TWO = """
LIMIT = 3

def judged(x, y=2):
    if x > y:
        return x > y
    return f(
        4,
    )

class Policy:
    share = 5
    def over(self, z=6):
        return z > 1
"""


def test_names_stay_when_lines_move_and_tell_equal_lines_apart(operators: Any) -> None:
    before = operators.mutants_of("m", TWO)
    after = operators.mutants_of(
        "m", "import os\n\n\n" + TWO.replace("class Policy", "# More.\n\nclass Policy")
    )
    assert [one.name for one in before] == [one.name for one in after]
    assert [one.rank for one in before] == [one.rank for one in after]
    assert [one.first_line for one in before] != [one.first_line for one in after]
    names = [one.name for one in before]
    assert len(set(names)) == len(names)
    assert "m:judged: other comparison: if x > y:" in names
    assert "m:Policy.over: other number: return z > 1" in names


def test_what_import_runs_is_told_from_what_a_call_runs(operators: Any) -> None:
    at_import = {one.text for one in operators.mutants_of("m", TWO) if one.at_import}
    assert at_import == {"LIMIT = 3", "def judged(x, y=2):", "share = 5", "def over(self, z=6):"}
    (four,) = [one for one in operators.mutants_of("m", TWO) if one.text == "4,"]
    assert (four.first_line, four.last_line, four.statement) == (8, 8, (7, 9))


def test_the_sample_is_the_same_twice_and_part_of_all(harness: Any) -> None:
    module = "mini_kv.regression.gate"
    sample = harness.chosen(module, whole=False)
    assert sample == harness.chosen(module, whole=False)
    assert len(sample) == harness.plan.SAMPLE_PER_MODULE
    everything = harness.chosen(module, whole=True)
    assert len(everything) > 100
    assert set(sample) < set(everything)
    assert [one.number for one in sample] == sorted(one.number for one in sample)


def test_the_plan_is_of_modules_and_tests_that_are_there(harness: Any, project_root: Path) -> None:
    modules = harness.plan.DECIDING
    tried = sum(len(harness.chosen(module, whole=False)) for module in modules)
    assert tried >= harness.plan.LEAST_MUTANTS
    assert {
        place for places in modules.values() for place in places if not (project_root / place).exists()
    } == set()
    with pytest.raises(SystemExit, match=r"the plan names mini_kv\.gone, which is not there"):
        harness.source_of("mini_kv.gone")


# ------------------------------------------------------------------------------- a run in a small project

GATE = """
def over(time_us: float, limit_us: float) -> bool:
    return not time_us <= limit_us
"""
TESTS = """
from small.gate import over

def test_a_time_at_its_limit_is_not_over_it_and_nan_is():
    assert not over(1.0, 1.0)
    assert over(float("nan"), 1.0)
"""
UNTESTED = """
def positive(x: float) -> bool:
    return x > y
"""
SURVIVOR = "small.gate:positive: other comparison: return x > y"
NOTICED = "small.gate:over: without not: return not time_us <= limit_us"


class Project:
    """A project of one module, with the harness turned to it."""

    def __init__(self, root: Path, harness: Any) -> None:
        self.root, self.harness = root, harness

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(textwrap.dedent(text), encoding="utf-8")

    def run(self, *arguments: str) -> int:
        return int(self.harness.main([*arguments, "--jobs", "2"]))


@pytest.fixture
def small(harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path, harness)
    project.write("src/small/__init__.py", "")
    project.write("src/small/gate.py", GATE)
    project.write("tests/test_gate.py", TESTS)
    project.write(harness.plan.EQUIVALENT, "[]\n")
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness.plan, "DECIDING", {"small.gate": ("tests/test_gate.py",)})
    monkeypatch.setattr(harness.plan, "LEAST_MUTANTS", 3)
    monkeypatch.setattr(harness.runner, "preload", lambda: None)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each child would import them all
    monkeypatch.chdir(tmp_path)
    return project


def test_a_module_whose_every_mutant_is_noticed_passes(
    small: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small.run() == 0
    out, err = capsys.readouterr()
    assert "3 of 3 noticed, 100.0 %" in out
    assert (err, "survived:" in out) == ("", False)
    monkeypatch.setattr(small.harness.plan, "LEAST_MUTANTS", 4)
    monkeypatch.setattr(small.harness.plan, "UNIT_TESTS_LIMIT_S", -1.0)
    assert small.run() == 1
    told = capsys.readouterr().err
    assert "3 mutants were tried; required: at least 4" in told
    assert "s of processor time; allowed: -1 s" in told


def test_a_branch_that_no_test_runs_is_reported(small: Project, capsys: pytest.CaptureFixture[str]) -> None:
    small.write("src/small/gate.py", GATE + UNTESTED)
    assert small.run() == 1
    out, err = capsys.readouterr()
    assert f"survived (no unit test runs it): {SURVIVOR}" in out
    assert "3 of 4 noticed, 75.0 %" in out
    assert (
        f"each survivor needs a test, or an entry with its reason in {small.harness.plan.EQUIVALENT}" in err
    )
    # A list of equivalents excuses the survivor, and does not make the share larger.
    small.write(small.harness.plan.EQUIVALENT, f"- mutant: '{SURVIVOR}'\n  reason: it is\n")
    assert small.run() == 1
    assert capsys.readouterr().err == "mutants: 75.0 % are noticed; required: at least 95 %\n"


def test_a_test_that_runs_the_line_and_checks_nothing_notices_nothing(
    small: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write("tests/test_gate.py", TESTS.replace("    assert over", "    over"))
    assert small.run() == 1
    out = capsys.readouterr().out
    assert "survived: small.gate:over: NaN on the other side: return not time_us <= limit_us" in out


def test_an_entry_that_is_noticed_gone_or_without_a_reason_fails(
    small: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [NOTICED, "small.gate:gone: if True: if x:", "other.module:f: if True: if x:"]
    listed = "".join(f"- mutant: '{name}'\n  reason: it is\n" for name in entries)
    small.write(small.harness.plan.EQUIVALENT, listed)
    assert small.run() == 1
    told = capsys.readouterr().err
    assert "listed as equivalent, but tests/test_gate.py::test_a_time_at_its_limit" in told
    assert f"notices it: {NOTICED}" in told
    for name in entries[1:]:
        assert f"listed as equivalent, but there is no such mutant any more: {name}" in told
    small.write(small.harness.plan.EQUIVALENT, f"- mutant: '{NOTICED}'\n  reason: ' '\n")
    with pytest.raises(SystemExit, match=f"gives no reason for {NOTICED}"):
        small.run()


def test_a_test_that_fails_on_the_code_as_it_is_stops_the_run(small: Project) -> None:
    small.write("tests/test_gate.py", TESTS + "\ndef test_wrong():\n    assert over(0.0, 1.0)\n")
    with pytest.raises(SystemExit) as stopped:
        small.run()
    assert str(stopped.value) == (
        "mutants: the unit tests of tests/test_gate.py fail on the code as it is: "
        "tests/test_gate.py::test_wrong"
    )


def test_a_test_that_fails_only_the_second_time_would_notice_whatever_it_is_shown(small: Project) -> None:
    once = "\ndef test_once():\n    import os\n    assert not over(1.0, 2.0)\n    os.mkdir('made')\n"
    small.write("tests/test_gate.py", TESTS + once)
    with pytest.raises(SystemExit) as stopped:
        small.run()
    assert str(stopped.value) == (
        "mutants: the unit tests of small.gate fail where nothing is mutated: tests/test_gate.py::test_once"
    )


def test_a_fault_of_the_harness_was_taken_for_a_mutant_that_was_noticed(
    small: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> ast.Module:
        raise LookupError("no such mutant")

    monkeypatch.setattr(small.harness.runner, "mutated_tree", broken)
    with pytest.raises(SystemExit, match=r"(?s)a fault of the harness itself:.*LookupError: no such mutant"):
        small.run()


def test_a_mutant_that_ends_its_process_is_noticed(
    small: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write("src/small/gate.py", GATE + "\nimport os\n\ndef end(x):\n    if x:\n        os._exit(1)\n")
    small.write("tests/test_gate.py", TESTS + "\nfrom small.gate import end\n\ndef test_end():\n    end(0)\n")
    assert small.run("--module", "gate") == 1
    out = capsys.readouterr().out
    assert "noticed, for it ended its process: small.gate:end: if True: if x:" in out
    assert "survived: small.gate:end: if False: if x:" in out


def test_the_names_are_listed_and_nothing_is_run(small: Project, capsys: pytest.CaptureFixture[str]) -> None:
    small.write("tests/test_gate.py", "raise SystemExit(1)\n")
    assert small.run("--list", "--all") == 0
    names = capsys.readouterr().out.splitlines()
    assert (len(names), NOTICED in names) == (3, True)
