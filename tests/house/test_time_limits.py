"""Time limits stand in one table, ``core/time_limits.py``; a number of seconds written elsewhere is found."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TABLE = Path("core/time_limits.py")
NAMES = frozenset({"timeout", "timeout_s", "timeout_ms", "deadline", "deadline_s"})
# Methods of the standard library whose first argument is a time limit.
WAITS = frozenset({"alarm", "communicate", "join", "poll", "result", "settimeout", "wait"})
# Names under which a limit is kept; of a deadline only its unit tells it from a moment.
LIMIT = re.compile(r"timeout|deadline_m?s|max_wait")
# A function of the package that takes a time limit by position: where in the call it stands.
Positions = dict[str, int]


def numbers(node: ast.AST) -> list[float]:
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
        and isinstance(part.value, int | float)
        and not isinstance(part.value, bool)
    ]


def only_numbers(value: ast.AST) -> bool:
    """Whether an expression is a number, or is reckoned from written numbers alone; zero never waits."""
    parts = ast.Constant, ast.BinOp, ast.operator
    return any(numbers(value)) and all(isinstance(part, parts) for part in ast.walk(value))


def stored(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Return what a statement or a dict puts under a name, an attribute or a key of text."""
    pairs: list[tuple[ast.expr | None, ast.expr]]
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            pairs = list(zip(names, values, strict=False))
        case (
            ast.Assign(targets=[target], value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
        ):
            pairs = [(target, value)]
        case ast.Dict(keys=keys, values=values):
            pairs = [pair for pair in zip(keys, values, strict=True) if isinstance(pair[0], ast.Constant)]
        case _:
            pairs = []
    return [(ast.unparse(one).rpartition(".")[2].lower(), value) for one, value in pairs if one is not None]


def reads_a_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "monotonic"


def writes_a_limit(value: ast.AST) -> bool:
    """Whether an expression has a number of its own; a bound at zero of a computed one is none."""
    return (isinstance(value, ast.Constant) and bool(numbers(value))) or any(numbers(value))


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    found = [*function.args.posonlyargs, *function.args.args]
    return found[1:] if found and found[0].arg in ("self", "cls") else found


def positions(trees: dict[Path, ast.Module]) -> Positions:
    return {
        node.name: place
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for place, argument in enumerate(arguments_of(node))
        if argument.arg in NAMES
    }


def written_in_call(call: ast.Call, known: Positions) -> Iterator[ast.AST]:
    for keyword in call.keywords:
        if keyword.arg in NAMES and writes_a_limit(keyword.value):
            yield call
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            place = known.get(name)
            if place is not None and len(call.args) > place and writes_a_limit(call.args[place]):
                yield call
            if name in WAITS and call.args and only_numbers(call.args[0]):
                yield call
            if name == "add_argument" and "timeout" in "".join(ast.unparse(one) for one in call.args):
                yield from (one for one in call.keywords if one.arg == "default" and numbers(one.value))
        case _:
            pass


def written(tree: ast.AST, known: Positions) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                yield from written_in_call(node, known)
            case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
                plain = [*arguments.posonlyargs, *arguments.args]
                defaults = zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True)
                for argument, default in [
                    *defaults,
                    *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
                ]:
                    if argument.arg in NAMES and default is not None and writes_a_limit(default):
                        yield node
            case ast.BinOp(left=now, op=ast.Add(), right=value) if reads_a_clock(now) and numbers(value):
                yield node
            case ast.Compare(left=ast.BinOp(left=now), comparators=[ast.Constant() as value]):
                if reads_a_clock(now) and any(numbers(value)):
                    yield node
            case _:
                if any(LIMIT.search(name) and any(numbers(value)) for name, value in stored(node)):
                    yield node


def limits_outside_the_table(package: Path) -> list[str]:
    """Return where a module other than the table writes a number of seconds that something may take."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))}
    assert trees, f"{package} holds no module"
    known = positions(trees)
    return [
        f"{path.relative_to(package).as_posix()}:{node.lineno}"  # type: ignore[attr-defined]
        for path, tree in trees.items()
        if path.relative_to(package) != TABLE
        for node in written(tree, known)
    ]


def table_of(path: Path) -> dict[str, tuple[float, str]]:
    """Return each limit of the table with its value and its reason."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found: dict[str, tuple[float, str]] = {}
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        match node, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=float(value))),
                ast.Expr(value=ast.Constant(value=str(reason))),
            ):
                found[name] = (value, reason)
            case ast.Assign(), _:
                raise AssertionError(
                    f"{ast.unparse(node)} has no reason below it, or is no number of seconds"
                )
            case _:
                pass
    return found


def test_every_time_limit_stands_in_the_table(project_root: Path) -> None:
    found = limits_outside_the_table(project_root / "src/mini_kv")
    assert found == [], f"a time limit is written in {TABLE} alone, under a name"


def test_every_limit_has_its_unit_and_is_used(project_root: Path) -> None:
    package = project_root / "src/mini_kv"
    table = table_of(package / TABLE)
    assert len(table) > 20
    for name, (_, reason) in table.items():
        assert name.endswith(("_TIMEOUT_S", "_TIMEOUT_FACTOR")), name
        assert reason.strip().endswith("."), name
    used = {
        node.id
        for path in package.rglob("*.py")
        if path != package / TABLE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name)
    }
    assert sorted(set(table) - used) == [], "limits that nothing uses"


@pytest.mark.parametrize(
    "source",
    [
        "seat.ask(request, timeout_s=30.0)",
        "seat.ask(request, timeout_s=max(subject.timeout_s, 120.0))",
        "subprocess.run(argv, timeout=2)",
        "with exclusive_lock(path, timeout_s=0.0):\n    pass",
        "one.settimeout(0.5)",
        "process.wait(5)",
        "def probe(argv, *, timeout_s=10.0):\n    pass",
        "def probe(argv, timeout=10.0):\n    pass",
        "class Request:\n    timeout_s: float = 60.0",
        "_LOCK_TIMEOUT_S = 3600.0",
        "BATCH_TIMEOUT_FACTOR = 2 * 5",
        "def hold(lock, timeout_s):\n    pass\nhold(lock, 3.0)",
        "class Seat:\n    def hold(self, timeout_s):\n        pass\nseat.hold(3.0)",
        "parser.add_argument('--timeout', type=float, default=60.0)",
        "process.wait(2 * 60)",
        "poll.poll(5000)",
        "signal.alarm(60)",
        "async def probe(argv, timeout_s=10.0):\n    pass",
        "def f(self):\n    self._timeout_s = 5.0",
        "A_TIMEOUT_S, B_TIMEOUT_S = 3.0, 4.0",
        "options = {'timeout': 5}",
        "_DEADLINE_S = 30.0",
        "MAX_WAIT_S = 5",
        "deadline = time.monotonic() + 30.0",
        "while time.monotonic() - started < 10:\n    pass",
        "seat.ask(request, timeout_ms=500)",
    ],
)
def test_a_planted_limit_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "planted.py").write_text(source)
    assert limits_outside_the_table(tmp_path)[0].startswith("planted.py:")


@pytest.mark.parametrize(
    "source",
    [
        "seat.ask(request, timeout_s=FORGET_TIMEOUT_S)",
        "run(argv, timeout_s=max(0.0, deadline - now()))",
        "', '.join(names)",
        "code = 'TIMEOUT'",
        "', '.join(names[:3])",
        "poll.poll(timeout_s * 1000.0)",
        "poll.poll(0)",
        "timeouts = 0",
        "deadline = time.monotonic() + timeout_s",
        "left_s = deadline - time.monotonic()",
        "if time.monotonic() - started > RETRY_BUDGET_S:\n    pass",
        "self._timeout_s = timeout_s",
        "options = {'timeout': CALL_TIMEOUT_S, 'retries': 3}",
    ],
)
def test_a_named_limit_or_a_computed_one_is_none(tmp_path: Path, source: str) -> None:
    (tmp_path / "module.py").write_text(source)
    assert limits_outside_the_table(tmp_path) == []


@pytest.mark.parametrize(
    "source", ["A_TIMEOUT_S = 3.0\n", "A_TIMEOUT_S = 3.0\nB_TIMEOUT_S = 4.0\n'''why.'''\n"]
)
def test_a_limit_without_a_reason_is_no_row(tmp_path: Path, source: str) -> None:
    (tmp_path / "limits.py").write_text(source)
    with pytest.raises(AssertionError, match="no reason"):
        table_of(tmp_path / "limits.py")
