"""Places in words: which argument, which element."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from mini_kv.core.rules.byte_locations import Places, element_at
from mini_kv.core.tensors import ScalarArg, TensorSpec
from mini_kv.worker.storage import export_arguments


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    (spec,), _ = export_arguments((tensor,))
    assert isinstance(spec, TensorSpec)
    return spec


@given(st.lists(st.integers(1, 5), min_size=0, max_size=4), st.permutations(range(4)), st.data())
def test_a_byte_of_a_strided_tensor_is_told_as_its_element(
    shape: list[int], order: list[int], data: st.DataObject
) -> None:
    base = torch.empty([2 * extent for extent in shape] or [3])
    view = base[tuple(slice(1, None, 2) for _ in shape)] if shape else base[1]
    view = view.permute([one for one in order if one < view.dim()])
    index = tuple(data.draw(st.integers(0, extent - 1)) for extent in view.shape)
    element = view[index] if index else view
    byte = 4 * int(element.storage_offset()) + data.draw(st.integers(0, 3))
    assert element_at(spec_of(view), byte) == index


def test_a_gap_is_no_element() -> None:
    every_second = torch.empty(10)[1::2]
    assert element_at(spec_of(every_second), 0) is None  # before the first
    assert element_at(spec_of(every_second), 8) is None  # between two
    assert element_at(spec_of(torch.empty(0, 3)), 0) is None
    assert element_at(spec_of(torch.empty(4, 1).expand(4, 3)), 4) == (1, 0)


def test_sentences_name_arguments_as_the_schema_does() -> None:
    described, _ = export_arguments((torch.empty(2, 3), torch.empty(3), 1e-5))
    places = Places(arguments=described, names=("x", "weight", "eps"))
    assert places.storage(1) == "argument 1 ('weight')"
    assert places.byte(0, 16) == "element [1, 1]"
    assert places.tensors(("float32",)) == [0, 1]
    assert places.argument(7) == "argument 7"
    assert isinstance(described[2], ScalarArg)
    assert (Places().storage(1), Places().byte(0, 5)) == ("input payload 1", "byte 5")


def test_a_byte_lies_in_the_argument_whose_storage_it_is() -> None:
    described, _ = export_arguments((1e-5, torch.empty(2, 3), torch.empty(10)[1::2], torch.empty(4, 4)))
    places = Places(arguments=described, names=("eps", "x", "y", "z"))
    assert places.storage(1) == "argument 2 ('y')"
    assert places.byte(0, 20) == "element [1, 2]"
    assert places.byte(1, 4) == "element [0]"
    assert places.byte(1, 8) == "byte 8 of its storage"
    assert places.byte(2, 20) == "element [1, 1]"
    assert places.storage(9) == "input payload 9"
    assert places.tensors(("float32",)) == [1, 2, 3]
    assert places.tensors(("float64",)) == []


def test_two_arguments_of_one_storage_are_both_named() -> None:
    base = torch.empty(4, 4)
    described, _ = export_arguments((base, base.t()))
    assert Places(arguments=described, names=("x",)).storage(0) == "argument 0 ('x') and argument 1"
