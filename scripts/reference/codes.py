"""Collects the codes that mini-kv can give from its source, each with its sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# A local name -> the lines at which it was given a sentence.
Names = Mapping[str, list[tuple[int, str]]]

_CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
# Calls whose upper-case words name an environment variable, a placeholder or a statement and no code.
_NO_CODE = frozenset({"add_argument", "get", "execute", "sysconf", "endswith", "startswith", "getattr"})


def collect_codes(source: Path) -> dict[str, tuple[str, ...]]:
    """Return every code that the source can give, with the sentences that go with it ("..." is filled in).

    A code is an upper-case constant with a sentence after it in the same call or tuple, or the ``code`` of a
    finding.
    """
    found: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.Module):
                names = _assigned_texts(function) if isinstance(function, ast.FunctionDef) else {}
                for code, sentence in _codes_in(function, names):
                    found.setdefault(code, set()).add(sentence)
    return {code: tuple(sorted(filter(None, found[code]))) for code in sorted(found)}


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Walk a scope without the functions inside it: each is a scope of its own."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef):
            yield from _own_nodes(child)


def _assigned_texts(function: ast.AST) -> Names:
    texts: dict[str, list[tuple[int, str]]] = {}
    for node in _own_nodes(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _sentence(node.value, {})
            if " " in text:
                texts.setdefault(node.targets[0].id, []).append((node.lineno, text))
    return texts


def _codes_in(scope: ast.AST, names: Names) -> Iterator[tuple[str, str]]:
    for node in _own_nodes(scope):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _NO_CODE:
                continue
            named = {word.arg for word in node.keywords if _is_code(word.value) and word.arg == "code"}
            values = [*node.args, *(word.value for word in node.keywords)]
            yield from _pairs(values, names, certain=bool(named) or called.endswith("Error"))
        elif isinstance(node, ast.Tuple):
            yield from _pairs(node.elts, names, certain=False)


def _is_code(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_CODE.fullmatch(node.value))
    )


def _pairs(values: list[ast.expr], names: Names, *, certain: bool) -> Iterator[tuple[str, str]]:
    for number, value in enumerate(values):
        if isinstance(value, ast.Constant) and _is_code(value):
            after = [_sentence(each, names) for each in values[number + 1 :]]
            sentence = next((text for text in after if " " in text), "")
            if certain or sentence:
                yield str(value.value), sentence
            return


def _sentence(node: ast.expr, names: Names) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "..."
                for part in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sentence(left, names) + (_sentence(right, names) or "...")
        case ast.IfExp(body=body):
            return _sentence(body, names)
        case ast.BoolOp(values=values):
            return next((text for each in values if (text := _sentence(each, names))), "")
        case ast.Name(id=name, lineno=line):
            # The nearest assignment above: a function may use one name for several sentences.
            return max(((at, text) for at, text in names.get(name, ()) if at <= line), default=(0, ""))[1]
        case _:
            return ""
