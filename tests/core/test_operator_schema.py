"""An operator's schema is read as PyTorch reads it; what PyTorch would refuse is told in one sentence."""

from __future__ import annotations

import pytest
import torch

from mini_kv.core.rules.operator_schema import (
    SCALAR_TYPES,
    OperatorSchema,
    SchemaFault,
    SchemaType,
    parse_schema,
)

# What no candidate's operator may have: containers and classes of TorchScript, variable arguments.
CONTAINERS = ("Dict(", "RRef(", "Future(", "Await(", "Storage", "__torch__", "...", "Any", " t ", "t[]")


def parsed(text: str) -> OperatorSchema | str:
    try:
        return parse_schema(text)
    except SchemaFault as fault:
        return str(fault)


def test_a_schema_is_read_into_its_parts() -> None:
    schema = parse_schema(
        "lib::f.out(Tensor(a!) self, Tensor?[] xs, int[2]? pad=[0, 0], *, str mode='a, (b', float eps=1e-6)"
        " -> (Tensor(a!), Tensor rstd)"
    )
    assert (schema.namespace, schema.name, schema.overload) == ("lib", "f", "out")
    assert schema.argument_names == ("self", "xs", "pad", "mode", "eps")
    assert schema.written == (0,)
    assert schema.arguments[1].type == SchemaType(base="Tensor", is_list=True, element_optional=True)
    assert schema.arguments[2].type == SchemaType(base="int", is_list=True, size=2, optional=True)
    assert [one.default for one in schema.arguments] == [None, None, "[0, 0]", "'a, (b'", "1e-6"]
    assert [one.keyword_only for one in schema.arguments] == [False, False, False, True, True]
    assert [(one.name, one.type.written) for one in schema.returns] == [(None, True), ("rstd", False)]


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor", ("x", "weight", "eps")),
        ("ns::f(Tensor(a!) out, int[2] size=[1, 2], *, bool flag=True) -> ()", ("out", "size", "flag")),
        ("f(Tensor(a -> *)[] parts, Tensor? like=None) -> (Tensor, Tensor)", ("parts", "like")),
        ("f() -> Tensor", ()),
    ],
)
def test_names_of_arguments_are_those_of_the_schema(schema: str, names: tuple[str, ...]) -> None:
    assert parse_schema(schema).argument_names == names


def test_every_schema_that_pytorch_has_is_read_as_pytorch_reads_it() -> None:
    read = 0
    for known in torch._C._jit_get_all_schemas():
        text, given = str(known), known.arguments
        schema = parsed(text)
        if isinstance(schema, str):
            types = {str(one.type) for one in (*given, *known.returns)}
            strange = [one for one in types if one.strip("[]?") not in ("Tensor", *SCALAR_TYPES)]
            assert strange or any(word in text for word in CONTAINERS), (text, schema)
            continue
        read += 1
        assert schema.argument_names == tuple(one.name for one in given), text
        assert [one.keyword_only for one in schema.arguments] == [one.kwarg_only for one in given], text
        has_default = [one.default is not None for one in schema.arguments]
        assert has_default == [one.has_default_value() for one in given], text
        written = [bool(one.alias_info and one.alias_info.is_write) for one in given]
        assert [one.type.written for one in schema.arguments] == written, text
        assert len(schema.returns) == len(known.returns), text
    assert read > 4000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("f", "found 'f'; allowed: name(arguments) -> returns"),
        ("f(Tensor x -> Tensor", "found 'f(Tensor x -> Tensor'; allowed: name(arguments) -> returns"),
        ("f(Tensor x)]", "allowed: name(arguments) -> returns, '-> ()' for none"),
        ("f(Tensor x) -> ", "'-> ()' for none"),
        ("f(tensor x) -> Tensor", "found the argument 'tensor x'; allowed: a type of Tensor, int, SymInt"),
        ("f(Tensor) -> Tensor", "found the argument 'Tensor'; allowed: 'Type name' or 'Type name=default'"),
        ("f(Tensor x=) -> Tensor", "found the argument 'Tensor x='"),
        ("f(Tensor x, *, *, int n) -> Tensor", "found the argument '*'"),
        ("f(Tensor x, Tensor x) -> Tensor", "found the argument 'x' twice"),
        ("f(int(a!) x) -> Tensor", "an alias set for tensors and generators only"),
        ("f(Tensor[][] x) -> Tensor", "lists of plain or optional values"),
        ("f(Tensor x) -> 3", "found the return '3'; allowed: a type of"),
        ("f(Tensor x) -> Tensor out of", "found the return 'Tensor out of'"),
        ("f(Tensor(a x) -> Tensor", "allowed: name(arguments) -> returns"),
    ],
)
def test_what_is_no_schema_is_told_in_one_sentence(text: str, found: str) -> None:
    with pytest.raises(SchemaFault) as caught:
        parse_schema(text)
    assert found in str(caught.value)


@pytest.mark.parametrize("text", ["()", ")", "f)(", "f(]", "f((", "f(Tensor x) -> (", "", "*", "f(,) -> ()"])
def test_brackets_that_do_not_match_are_no_crash(text: str) -> None:
    with pytest.raises(SchemaFault):
        parse_schema(text)
