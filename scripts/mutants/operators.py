"""Every single-point mutation of a module, made on its syntax tree. Pure.

A mutant is named by module, function, operator and the text of the line: code may move without renaming it.
Texts that people read, type hints, decorators and time limits are left alone: they decide nothing.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# ``not a <= b`` is true of a NaN, ``a > b`` is not: what fails closed no longer does.
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
_FUNCTIONS = {"any": "all", "all": "any", "min": "max", "max": "min"}
# Keyword arguments whose value is read by people, or only bounds a hang.
_TEXT_KEYWORDS = frozenset({"message", "evidence", "detail", "timeout_s", "max_reply_bytes"})


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mutation. ``number`` is its place among all of the module.

    ``first_line`` to ``last_line`` hold what is changed, ``statement`` are the lines of the statement around
    it. ``at_import`` tells code that runs when the module is imported, before any test.
    """

    module: str
    function: str
    operator: str
    text: str
    repeat: int
    number: int
    first_line: int
    last_line: int
    statement: tuple[int, int]
    at_import: bool

    @property
    def name(self) -> str:
        """Its name, whatever moves around it: ``module:function: operator: line (2)``."""
        again = f" ({self.repeat})" if self.repeat > 1 else ""
        return f"{self.module}:{self.function}: {self.operator}: {self.text}{again}"

    @property
    def rank(self) -> str:
        """Its place in a sample, which follows from its name alone."""
        return hashlib.sha256(self.name.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a node stands: the function by name, the statement's lines, whether import runs it."""

    function: str = "module"
    statement: tuple[int, int] = (1, 1)
    at_import: bool = True


@dataclass(frozen=True, kw_only=True)
class _Change:
    """One node of a tree with what replaces it: an expression, or ``None`` for a statement that goes."""

    node: ast.AST
    operator: str
    replacement: ast.AST


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return every mutant of a module's source, in the order of its lines."""
    lines = source.splitlines()
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for number, (place, change) in enumerate(_changes(ast.parse(source))):
        first, last = _lines(change.node)
        function = place.function
        text = lines[first - 1].strip()
        seen[function, change.operator, text] += 1
        found.append(
            Mutant(
                module=module,
                function=function,
                operator=change.operator,
                text=text,
                repeat=seen[function, change.operator, text],
                number=number,
                first_line=first,
                last_line=last,
                statement=place.statement,
                at_import=place.at_import,
            )
        )
    return found


def mutated_tree(source: str, number: int) -> ast.Module:
    """Return the syntax tree of the source with that one mutation in it."""
    tree = ast.parse(source)
    _, change = next(each for place, each in enumerate(_changes(tree)) if place == number)
    replaced = ast.copy_location(change.replacement, change.node)
    whole = _Replace(change.node, replaced).visit(tree)
    assert isinstance(whole, ast.Module)
    return ast.fix_missing_locations(whole)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the replacement for the one node."""
        return self._new if node is self._old else self.generic_visit(node)


def _lines(node: ast.AST) -> tuple[int, int]:
    first = getattr(node, "lineno", 1)
    # A statement with a body stands for its head: its lines are not those of the body.
    return first, first if hasattr(node, "body") and isinstance(node, ast.stmt) else getattr(
        node, "end_lineno", first
    )


def _changes(tree: ast.Module) -> Iterator[tuple[_Place, _Change]]:
    yield from _walk(tree, _Place())


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[_Place, _Change]]:
    if isinstance(node, ast.stmt):
        place = replace(place, statement=_lines(node))
    body, inside = set[int](), place
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        name = node.name if place.function == "module" else f"{place.function}.{node.name}"
        place = replace(place, function=name)
        # A default is evaluated where the function is defined, its body where it is called.
        inside = replace(place, at_import=place.at_import and isinstance(node, ast.ClassDef))
        body = set(map(id, node.body))
    for change in _changes_at(node):
        yield place, change
    for child in _children(node):
        yield from _walk(child, inside if id(child) in body else place)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.JoinedStr() | ast.Raise():
            return
        case ast.FunctionDef():
            yield from (*node.args.defaults, *(each for each in node.args.kw_defaults if each), *node.body)
        case ast.ClassDef():
            yield from node.body
        case ast.AnnAssign():
            yield from ([node.value] if node.value is not None else [])
        case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__") or (
            name[:1].isupper() and _is_type(node)
        ):
            return
        case ast.Call():
            yield from (node.func, *node.args)
            yield from (each.value for each in node.keywords if each.arg not in _TEXT_KEYWORDS)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
            return
        case _:
            yield from ast.iter_child_nodes(node)


def _is_type(node: ast.Assign) -> bool:
    # ``AxisName = Literal[...]``: a type, not a value.
    name = ast.unparse(node.targets[0])
    return isinstance(node.value, ast.Subscript | ast.BinOp) and name != name.upper()


def _changes_at(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _Change(node=node, operator="without not", replacement=operand)
            if (
                isinstance(operand, ast.Compare)
                and type(operand.ops[0]) in _OPPOSITES
                and len(operand.ops) == 1
            ):
                opposite = ast.Compare(
                    operand.left, [_OPPOSITES[type(operand.ops[0])]()], operand.comparators
                )
                yield _Change(node=node, operator="NaN on the other side", replacement=opposite)
        case ast.Compare(ops=[operator, *_]) if type(operator) in _COMPARISONS:
            changed = copy.copy(node)
            changed.ops = [_COMPARISONS[type(operator)](), *node.ops[1:]]
            yield _Change(node=node, operator="other comparison", replacement=changed)
        case ast.BoolOp():
            changed_bool = copy.copy(node)
            changed_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _Change(node=node, operator="and/or", replacement=changed_bool)
        case ast.BinOp(op=arithmetic) if type(arithmetic) in _ARITHMETIC and not _is_text(node):
            changed_op = copy.copy(node)
            changed_op.op = _ARITHMETIC[type(arithmetic)]()
            yield _Change(node=node, operator="other arithmetic", replacement=changed_op)
        case ast.Name(id=name, ctx=ast.Load()) if name in _FUNCTIONS:
            yield _Change(
                node=node, operator="any/all, min/max", replacement=ast.Name(_FUNCTIONS[name], ast.Load())
            )
        case ast.Constant(value=bool() as value):
            yield _Change(node=node, operator="other truth", replacement=ast.Constant(not value))
        case ast.Constant(value=int() | float() as number):
            yield _Change(
                node=node,
                operator="other number",
                replacement=ast.Constant(number * 2 if number > 2 else number + 1),
            )
        case ast.If() | ast.IfExp():
            for value in (True, False):
                yield _Change(node=node.test, operator=f"if {value}", replacement=ast.Constant(value))
        case ast.comprehension(ifs=[condition, *_]):
            yield _Change(node=condition, operator="filter nothing", replacement=ast.Constant(True))
        case (
            ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom())
            | ast.AugAssign()
            | ast.Raise()
            | ast.Break()
        ):
            yield _Change(node=node, operator="statement dropped", replacement=ast.Pass())
        case ast.Return(value=ast.Tuple(elts=[_, *_]) as returned):
            yield _Change(node=returned, operator="nothing returned", replacement=ast.Tuple([], ast.Load()))
        case _:
            return


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
