"""A hash of what shapes timed samples, by values and structure: names, places and comments do not count.

A root is unfolded: where it names a constant of the package, the constant's value stands; where it calls a
function, that function's own body. Local names are numbered. So renaming or moving something changes
nothing, and another value, another call or another order does.

``python tests/timer_fingerprint.py`` prints the fingerprints of the code as it stands.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "mini_kv"
# How sets of inputs are made to rotate, what a batch is asked for, and the order of the sides.
SHARED = (
    "benchmark.samples:ROTATING_SETS",
    "benchmark.samples:LARGE_SET_BYTES",
    "benchmark.samples:batch_request",
    "benchmark.samples:take_repeats",
    "benchmark.samples:held",
    "worker.timed_cases:_Prepared.rotate",
    "worker.timed_cases:TimedCases.__init__",
    "worker.timed_cases:TimedCases._batch",
)
ROOTS = {
    "cuda": (*SHARED, "worker.cuda_timer:CudaTimer"),
    "cpu": (*SHARED, "worker.cpu_timer:CpuTimer"),
}
# Here unfolding ends: a conversation between processes, what only carries data, a check of a result's class.
OPAQUE = frozenset({"take_batch", "catch_output", "timer_for", "plain", "_keep"})

Source = Callable[[str], str]
Tree = Any  # nested lists of text and numbers, as JSON has them


def package_source(module: str) -> str:
    """Return the text of a module of the package, by its dotted name below ``mini_kv``."""
    path = PACKAGE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text(encoding="utf-8")


@dataclass
class Scope:
    """Where an expression stands: its module, its class, and the local names seen so far, numbered."""

    module: str
    owner: ast.ClassDef | None = None
    local: dict[str, int] = field(default_factory=dict)


class Unfolding:
    """Turns definitions into trees without names of the package's own."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bodies: dict[str, dict[str, ast.AST]] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._fields: dict[str, int] = {}
        self.opaque: set[str] = set()

    def root(self, name: str) -> Tree:
        """Return the tree of ``module:name`` or ``module:Class.method``."""
        module, _, path = name.partition(":")
        first, _, method = path.partition(".")
        if not method:
            return self._definition(module, first)
        module, _, owner = self._resolved(module, first)
        assert isinstance(owner, ast.ClassDef)
        return self._function(method_of(owner, method), Scope(module, owner))

    def _names(self, module: str) -> dict[str, ast.AST]:
        """Return what a module defines or imports, by name."""
        if module not in self._bodies:
            found: dict[str, ast.AST] = {}
            for node in ast.parse(self._source(module)).body:
                match node:
                    case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                        found[name] = node
                    case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                        found |= {ast.unparse(one): two for one, two in zip(names, values, strict=True)}
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        found[name] = value
                    case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                        found[name] = value
                    case ast.ImportFrom(module=str(origin), names=names) if origin.startswith("mini_kv"):
                        found |= {one.asname or one.name: node for one in names}
            self._bodies[module] = found
        return self._bodies[module]

    def _resolved(self, module: str, name: str) -> tuple[str, str, ast.AST]:
        node = self._names(module).get(name)
        assert node is not None, f"mini_kv.{module} has no {name}: give its new place in ROOTS, or in OPAQUE"
        if not isinstance(node, ast.ImportFrom) or node.module == "mini_kv.core":
            return module, name, node
        real = next(one.name for one in node.names if name in (one.asname, one.name))
        return self._resolved(str(node.module).removeprefix("mini_kv").lstrip("."), real)

    def _definition(self, module: str, name: str, *, called: bool = True) -> Tree:
        module, name, node = self._resolved(module, name)
        if name in OPAQUE:
            self.opaque.add(name)
            return ["opaque"]
        if isinstance(node, ast.ClassDef) and not called:
            return ["type"]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if (module, name) in self._seen:
                return ["again", self._seen[module, name]]
            self._seen[module, name] = len(self._seen)
        if isinstance(node, ast.FunctionDef):
            return self._function(node, Scope(module))
        if isinstance(node, ast.ClassDef):
            return self._class(node, module)
        return self._tree(node, Scope(module))

    def _class(self, node: ast.ClassDef, module: str) -> Tree:
        if node.decorator_list or not any(isinstance(one, ast.FunctionDef) for one in node.body):
            return ["record"]  # what a dataclass carries shapes nothing
        methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        called = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        entries = [one for one in methods if not one.name.startswith("_") or one.name.startswith("__")]
        # The others stand where they are called; one that nothing calls shapes nothing.
        assert {one.name for one in methods} - {one.name for one in entries} <= called
        return ["class", *(self._function(one, Scope(module, node)) for one in entries)]

    def _function(self, node: ast.FunctionDef, scope: Scope) -> Tree:
        inner = Scope(scope.module, scope.owner, dict(scope.local))
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        stored = [
            one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        ]
        nested = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
        for name in (*(one.arg for one in arguments), *nested, *stored):
            inner.local.setdefault(name, len(inner.local))
        defaults = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None]
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        # A decorator may keep gradients off, or another clock on, around all of it.
        around = self._all(node.decorator_list, scope)
        return ["function", len(arguments), around, self._all(defaults, inner), self._all(body, inner)]

    def _all(self, nodes: Any, scope: Scope) -> Tree:
        return [self._tree(node, scope) for node in nodes]

    def _tree(self, node: ast.AST, scope: Scope) -> Tree:
        tree: Tree
        match node:
            case ast.Constant(value=value):
                tree = repr(value)
            case ast.Name(id=name):
                tree = self._name(name, scope)
            case ast.Attribute(value=base, attr=attr):
                tree = self._attribute(base, attr, scope)
            case ast.Call():
                tree = self._call(node, scope)
            case ast.FunctionDef():
                tree = self._function(node, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                tree = ["Assign", [self._tree(target, scope)], self._tree(value, scope)]
            case ast.Raise():
                tree = ["Raise"]
            case ast.BinOp() | ast.UnaryOp() if (number := number_of(node)) is not None:
                tree = repr(number)
            case _:
                tree = self._parts(node, scope)
        return tree

    def _parts(self, node: ast.AST, scope: Scope) -> Tree:
        parts: list[Tree] = [type(node).__name__]
        for _, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                parts.append(self._tree(value, scope))
            elif isinstance(value, list):
                parts.append([self._tree(one, scope) if isinstance(one, ast.AST) else one for one in value])
        return parts

    def _name(self, name: str, scope: Scope, *, called: bool = False) -> Tree:
        if name in scope.local:
            return ["local", scope.local[name]]
        if name not in self._names(scope.module):
            return ["name", name]
        return self._definition(scope.module, name, called=called)

    def _attribute(self, base: ast.expr, attr: str, scope: Scope) -> Tree:
        if isinstance(base, ast.Name) and base.id == "self" and scope.owner is not None:
            method = method_of(scope.owner, attr, missing_ok=True)
            if method is None:
                return ["field", self._fields.setdefault(f"{scope.owner.name}.{attr}", len(self._fields))]
            if attr in OPAQUE:
                self.opaque.add(attr)
                return ["opaque"]
            key = (scope.module, f"{scope.owner.name}.{attr}")
            if key in self._seen:
                return ["again", self._seen[key]]
            self._seen[key] = len(self._seen)
            return self._function(method, Scope(scope.module, scope.owner))
        if isinstance(base, ast.Name) and base.id not in scope.local:
            imported = self._names(scope.module).get(base.id)
            if isinstance(imported, ast.ImportFrom) and imported.module == "mini_kv.core":
                return ["protocol", attr]  # requests and replies, which carry data by these names
        return ["attribute", self._tree(base, scope), attr]

    def _call(self, node: ast.Call, scope: Scope) -> Tree:
        function = (
            self._name(node.func.id, scope, called=True)
            if isinstance(node.func, ast.Name)
            else self._tree(node.func, scope)
        )
        own = isinstance(function, list) and function[0] in ("function", "again", "record", "class", "opaque")
        # Keywords of the package's own functions are names of its own; those of others say what is done.
        keywords = [[None if own else one.arg, self._tree(one.value, scope)] for one in node.keywords]
        return ["call", function, self._all(node.args, scope), keywords]


def method_of(owner: ast.ClassDef, name: str, *, missing_ok: bool = False) -> Any:
    """Return a class's method; ``None`` where it has none and that is no mistake."""
    found = [one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == name]
    assert found or missing_ok, f"{owner.name} has no method {name}"
    return found[0] if found else None


def number_of(node: ast.expr) -> float | None:
    """Return the value of an expression of numbers only, so that ``64 << 20`` is what it is worth."""
    if any(isinstance(one, ast.Name | ast.Call | ast.Attribute) for one in ast.walk(node)):
        return None
    try:
        value = eval(compile(ast.Expression(node), "<number>", "eval"), {"__builtins__": {}})
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return value if isinstance(value, int | float) else None


def met_opaque(source: Source = package_source) -> set[str]:
    """Return where unfolding ended, over all devices."""
    found: set[str] = set()
    for roots in ROOTS.values():
        unfolding = Unfolding(source)
        for name in roots:
            unfolding.root(name)
        found |= unfolding.opaque
    return found


def fingerprint(device: str, source: Source = package_source) -> str:
    """Return 16 hexadecimal digits over everything that shapes a device's samples."""
    unfolding = Unfolding(source)
    tree = [unfolding.root(name) for name in ROOTS[device]]
    raw = json.dumps(tree, separators=(",", ":")).encode()
    return hashlib.sha256(raw).hexdigest()[:16]


if __name__ == "__main__":
    for kind in ROOTS:
        sys.stdout.write(f'"{kind}": "{fingerprint(kind)}",\n')
