"""An operator's schema, ``name(Tensor(a!) self, int[] dims=[]) -> Tensor``, read into parts. Pure.

The grammar is that of ``torch.library.define`` (``torch/csrc/jit/frontend/function_schema_parser.cpp``), for
what a registered operator may have: no dictionaries, no classes, no type variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# What an argument may be made of, tensors aside.
SCALAR_TYPES = (
    "int",
    "SymInt",
    "float",
    "SymFloat",
    "bool",
    "SymBool",
    "complex",
    "Scalar",
    "str",
    "ScalarType",
    "Layout",
    "MemoryFormat",
    "Device",
    "Generator",
)
TENSOR = "Tensor"

_HEAD = re.compile(
    r"\s*(?:(?P<namespace>[A-Za-z_]\w*)::)?(?P<name>[A-Za-z_]\w*)(?:\.(?P<overload>[A-Za-z_]\w*))?\s*\("
)
_BASE = re.compile(r"\s*(?P<base>[A-Za-z_]\w*)")
_ALIAS = re.compile(r"\(\s*(?P<before>[\w*|]+)\s*(?P<written>!?)\s*(?:->\s*(?P<after>[\w*| ]+?)\s*)?\)")
_SUFFIX = re.compile(r"\?|\[(?P<size>\d*)\]")
_NAME = re.compile(r"\s+(?P<name>[A-Za-z_]\w*)\s*")


class SchemaFault(ValueError):
    """What is wrong with a schema: ``found X; allowed: Y``."""


@dataclass(frozen=True, kw_only=True)
class SchemaType:
    """``Tensor(a!)?[]``: its base, what it aliases, and what stands around it.

    ``optional`` says that ``None`` may be given in place of it, ``element_optional`` that it may stand in the
    list.
    """

    base: str
    is_list: bool = False
    size: int | None = None
    optional: bool = False
    element_optional: bool = False
    aliases: tuple[str, ...] = ()
    written: bool = False


@dataclass(frozen=True, kw_only=True)
class SchemaArgument:
    """One argument; ``default`` is the text behind ``=``, ``None`` where the argument must be given."""

    name: str
    type: SchemaType
    keyword_only: bool = False
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class SchemaReturn:
    """One thing that is returned; most have no name."""

    type: SchemaType
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class OperatorSchema:
    """An operator's name, its arguments and what it returns."""

    name: str
    namespace: str | None
    overload: str | None
    arguments: tuple[SchemaArgument, ...]
    returns: tuple[SchemaReturn, ...]

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The arguments' names, in order."""
        return tuple(argument.name for argument in self.arguments)

    @property
    def written(self) -> tuple[int, ...]:
        """The positions of the arguments that the operator writes to."""
        return tuple(place for place, argument in enumerate(self.arguments) if argument.type.written)


def parse_schema(text: str) -> OperatorSchema:
    """Return a schema's parts; raises :class:`SchemaFault` with what was found and what is allowed."""
    head = _HEAD.match(text)
    closing = _closing(text, head.end() - 1) if head else None
    if head is None or closing is None:
        raise SchemaFault(f"found {text!r}; allowed: name(arguments) -> returns")
    arrow, returned = text[closing + 1 :].strip(), ""
    if arrow.startswith("->"):
        returned = arrow[2:].strip()
    if not returned:
        raise SchemaFault(f"found {text!r}; allowed: name(arguments) -> returns, '-> ()' for none")
    arguments = tuple(_arguments(text[head.end() : closing]))
    twice = [
        one.name for place, one in enumerate(arguments) if one.name in {a.name for a in arguments[:place]}
    ]
    if twice:
        raise SchemaFault(f"found the argument {twice[0]!r} twice; allowed: each name once")
    return OperatorSchema(
        name=head["name"],
        namespace=head["namespace"],
        overload=head["overload"],
        arguments=arguments,
        returns=tuple(_returns(returned)),
    )


def _split_outside_brackets(text: str) -> list[str]:
    # At the commas that stand in no bracket and in no string.
    cuts, depth = [-1], 0
    for place, character in _outside_strings(text, 0):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            cuts.append(place)
    parts = [text[start + 1 : end].strip() for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]
    return [] if parts == [""] else parts


def _outside_strings(text: str, start: int) -> Iterator[tuple[int, str]]:
    quote, escaped = "", False
    for place, character in enumerate(text[start:], start):
        if quote:
            if not escaped and character == quote:
                quote = ""
            escaped = character == "\\" and not escaped
        elif character in "\"'":
            quote = character
        else:
            yield place, character


def _closing(text: str, opening: int) -> int | None:
    # The bracket that closes the one at ``opening``; None where brackets do not match.
    pairs, stack = {")": "(", "]": "["}, []
    for place, character in _outside_strings(text, opening):
        if character in "([":
            stack.append(character)
        elif character in pairs:
            if stack.pop() != pairs[character]:
                return None
            if not stack:
                return place
    return None


def _arguments(text: str) -> Iterator[SchemaArgument]:
    keyword_only = False
    for part in _split_outside_brackets(text):
        if part == "*" and not keyword_only:
            keyword_only = True
            continue
        kind, rest = _type(part, "the argument")
        name = _NAME.match(rest)
        equals = rest[name.end() :] if name else ""
        default = equals[1:].strip() if equals.startswith("=") else None
        if name is None or (equals and not default):
            raise SchemaFault(f"found the argument {part!r}; allowed: 'Type name' or 'Type name=default'")
        yield SchemaArgument(name=name["name"], type=kind, keyword_only=keyword_only, default=default)


def _returns(text: str) -> Iterator[SchemaReturn]:
    inner = text[1:-1] if text.startswith("(") and _closing(text, 0) == len(text) - 1 else text
    for part in _split_outside_brackets(inner):
        kind, rest = _type(part, "the return")
        name = _NAME.fullmatch(rest)
        if rest.strip() and name is None:
            raise SchemaFault(f"found the return {part!r}; allowed: a type, or 'Type name'")
        yield SchemaReturn(type=kind, name=name["name"] if name else None)


def _type(part: str, what: str) -> tuple[SchemaType, str]:
    # The type at the start of a part, and what comes after it.
    match = _BASE.match(part)
    base = match["base"] if match else ""
    if match is None or base not in (TENSOR, *SCALAR_TYPES):
        raise SchemaFault(f"found {what} {part!r}; allowed: a type of {TENSOR}, {', '.join(SCALAR_TYPES)}")
    rest = part[match.end() :]
    alias = _ALIAS.match(rest)
    if alias is not None:
        rest = rest[alias.end() :]
        if base not in (TENSOR, "Generator"):
            raise SchemaFault(f"found {what} {part!r}; allowed: an alias set for tensors and generators only")
    sets = (alias["before"], alias["after"] or "") if alias else ()
    is_list, size, optional, element_optional = False, None, False, False
    while (suffix := _SUFFIX.match(rest)) is not None:
        if suffix.group() == "?" and not optional:
            optional = True
        elif suffix.group() != "?" and not is_list:
            is_list, element_optional, optional = True, optional, False
            size = int(suffix["size"]) if suffix["size"] else None
        else:
            raise SchemaFault(f"found {what} {part!r}; allowed: lists of plain or optional values")
        rest = rest[suffix.end() :]
    return (
        SchemaType(
            base=base,
            is_list=is_list,
            size=size,
            optional=optional,
            element_optional=element_optional,
            aliases=tuple(name.strip() for each in sets for name in each.split("|") if name.strip()),
            written=bool(alias and alias["written"]),
        ),
        rest,
    )
