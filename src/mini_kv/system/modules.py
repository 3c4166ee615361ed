"""Python modules as files: where workers import from, and what a module defines, without importing it."""

from __future__ import annotations

import ast
import functools
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, PathFinder
from pathlib import Path

import mini_kv
from mini_kv.system.paths import PathRefused, read_regular_file

MAX_MODULE_BYTES = 1 << 20
# What may define any name when it runs.
_DYNAMIC = frozenset({"globals", "exec", "eval", "setattr", "vars", "__getattr__", "*"})


def import_path(root: Path) -> Sequence[str]:
    """Return what workers import from."""
    # The workers run isolated from the environment; a card's reference may lie in the project itself.
    own = str(Path(mini_kv.__file__).resolve().parent.parent)
    inherited = [entry for entry in sys.path if entry and Path(entry).exists()]
    return list(dict.fromkeys([own, *inherited, str(root)]))


class ModuleMissing(Exception):
    """No file of the import path is this module; the text is the first part of its name that is not there."""


@functools.lru_cache(maxsize=1024)
def module_file(name: str, search: tuple[str, ...]) -> Path | None:
    """Return the source file of a module that ``search`` leads to, ``None`` for one that has no such file.

    Nothing is imported, packages on the way neither. Raises :class:`ModuleMissing`.
    """
    steps = name.split(".")
    locations: Sequence[str] = search
    for depth, step in enumerate(steps):
        if not depth and (BuiltinImporter.find_spec(step) is not None or _hooked(step)):
            return None
        # By its own name alone: to find a submodule by its full one takes an imported package.
        spec = PathFinder.find_spec(step, list(locations))
        if spec is None:
            raise ModuleMissing(".".join(steps[: depth + 1]))
        if depth + 1 == len(steps):
            return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
        if spec.submodule_search_locations is None:
            raise ModuleMissing(".".join(steps[: depth + 2]))
        locations = list(spec.submodule_search_locations)
    return None


def _hooked(name: str) -> bool:
    """Say whether a finder of another kind knows the module, as those of editable installations do."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        own = getattr(finder, "__module__", "").startswith("_frozen_importlib")
        if find is not None and not own and find(name, None) is not None:
            return True
    return False


@functools.lru_cache(maxsize=1024)
def defined_names(path: Path) -> frozenset[str] | None:
    """Return the names that a module's source defines at its top, ``None`` where it may define any.

    Modules that it imports are left out: they are no functions. Raises ``SyntaxError``.
    """
    try:
        source = read_regular_file(path, MAX_MODULE_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, path.name)
    except (PathRefused, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    used: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)  # what is inside is its own
            case ast.ImportFrom():
                names |= {one.asname or one.name for one in node.names}
            case ast.Name():
                (names if isinstance(node.ctx, ast.Store) else used).add(node.id)
            case _:
                waiting += ast.iter_child_nodes(node)
    return None if (names | used) & _DYNAMIC else frozenset(names)
