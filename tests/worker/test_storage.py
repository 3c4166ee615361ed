"""Tensors to bytes and back: whole storages, every layout, nothing lost and nothing shared."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mini_kv.core.tensors import AbsentArg, ScalarArg, TensorSpec, contiguous_strides, element_count
from mini_kv.worker import storage
from mini_kv.worker.ownership import is_held, python_keeps
from mini_kv.worker.storage import (
    as_outputs,
    describe_outputs,
    dtype_of,
    export_arguments,
    import_arguments,
    storage_bytes,
    tensor_bytes,
    tensors_of,
    values_of,
)


def round_trip(*arguments: object) -> list[Any]:
    described, payloads = export_arguments(arguments)
    return import_arguments(described, [bytearray(payload) for payload in payloads])


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bitwise, so that NaNs and signed zeros count."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.stride() == right.stride()
        and left.storage_offset() == right.storage_offset()
        and tensor_bytes(left) == tensor_bytes(right)
        and storage_bytes(left) == storage_bytes(right)
    )


BASE = torch.arange(60, dtype=torch.float32)
LAYOUTS = {
    "contiguous": BASE.clone(),
    "matrix": BASE.view(6, 10),
    "transposed": BASE.view(6, 10).t(),
    "strided": BASE[::3],
    "strided_matrix": BASE.view(6, 10)[1::2, ::3],
    "offset": BASE[1:],
    "expanded": BASE[:10].expand(4, 10),
    "expanded_scalar": torch.tensor(3.0).expand(5),
    "empty": torch.zeros(0),
    "empty_rows": torch.zeros(0, 33),
    "empty_view_of_something": BASE[5:5],
    "scalar": torch.tensor(2.5),
    "high_rank": BASE.view(1, 2, 3, 1, 2, 5).permute(5, 0, 2, 1, 4, 3),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_survives_with_its_gaps(name: str) -> None:
    (found,) = round_trip(LAYOUTS[name])
    assert same(found, LAYOUTS[name])


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16,
        torch.int32, torch.int64, torch.bool,
    ],
)  # fmt: skip
def test_a_dtype_survives(dtype: torch.dtype) -> None:
    value = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    (found,) = round_trip(value)
    assert same(found, value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_special_values_survive_bit_by_bit(dtype: torch.dtype) -> None:
    value = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e-45, 6e-8], dtype=torch.float64).to(
        dtype
    )
    (found,) = round_trip(value)
    assert same(found, value)


def test_views_of_one_storage_share_it_afterwards_and_travel_once() -> None:
    described, payloads = export_arguments((BASE[:30], BASE[10:40], BASE.view(6, 10).t()))
    assert len(payloads) == 1
    assert [spec.blob for spec in described if isinstance(spec, TensorSpec)] == [0, 0, 0]
    one, two, three = import_arguments(described, [bytearray(payload) for payload in payloads])
    assert isinstance(one, torch.Tensor)
    assert isinstance(two, torch.Tensor)
    assert isinstance(three, torch.Tensor)
    one[10] = -1.0
    assert two[0] == three.t().reshape(-1)[10] == -1.0


def test_empty_tensors_do_not_share_although_their_pointers_are_equal() -> None:
    described, payloads = export_arguments((torch.zeros(0), torch.zeros(0)))
    assert len(payloads) == 2
    assert [spec.blob for spec in described if isinstance(spec, TensorSpec)] == [0, 1]


def test_what_was_made_is_neither_the_original_nor_the_payload() -> None:
    original = BASE.clone()
    described, payloads = export_arguments((original,))
    buffers = [bytearray(payload) for payload in payloads]
    (found,) = import_arguments(described, buffers)
    assert isinstance(found, torch.Tensor)
    found.fill_(9.0)
    assert torch.equal(original, BASE)
    assert bytes(buffers[0]) == payloads[0]


@pytest.mark.parametrize("value", [True, False, 0, -7, 2**62, 1e-6, -0.0, "text", "", "\u00b5", None])
def test_scalars_survive_with_their_type(value: object) -> None:
    (found,) = round_trip(value)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, float):
        assert isinstance(found, float)
        assert math.copysign(1.0, found) == math.copysign(1.0, value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_survive(value: float) -> None:
    described, _ = export_arguments((value,))
    assert described == (ScalarArg(special=str(value)),)
    (found,) = round_trip(value)
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_an_absent_argument_is_not_a_scalar() -> None:
    assert export_arguments((None,))[0] == (AbsentArg(),)


def test_a_meta_tensor_has_a_form_and_no_bytes() -> None:
    value = torch.empty_strided((3, 4), (1, 3), dtype=torch.float16, device="meta")
    described, payloads = export_arguments((value,))
    assert b"".join(payloads) == b""
    (found,) = import_arguments(described, [bytearray(payload) for payload in payloads])
    assert isinstance(found, torch.Tensor)
    assert (found.device.type, found.shape, found.stride()) == ("meta", (3, 4), (1, 3))


@pytest.mark.parametrize("value", [object(), [torch.zeros(1)], {"a": 1}, 1j, b"raw"])
def test_what_the_protocol_does_not_carry_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="allowed"):
        export_arguments((value,))


def test_a_tensor_that_requires_a_gradient_travels_without_it() -> None:
    (found,) = round_trip(torch.ones(3, requires_grad=True))
    assert not found.requires_grad


@pytest.mark.parametrize("name", ["float", "int", "nn", "nothing", "__class__", "float8_nonsense"])
def test_a_name_that_is_no_dtype_is_a_value_error(name: str) -> None:
    if isinstance(getattr(torch, name, None), torch.dtype):
        assert dtype_of(name) is getattr(torch, name)
    else:
        with pytest.raises(ValueError, match="dtype"):
            dtype_of(name)


# ---------------------------------------------------------------------------- outputs


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_output_travels_as_contiguous_bytes_and_tells_its_own_form(name: str) -> None:
    value = LAYOUTS[name]
    (spec,), payloads = describe_outputs([value], [])
    assert (spec.shape, spec.strides) == (tuple(value.shape), value.stride())
    assert spec.storage_offset == value.storage_offset()
    assert len(payloads[0]) == 4 * value.numel()
    assert payloads[0] == tensor_bytes(value.contiguous())


def test_an_output_that_shares_an_inputs_storage_is_named_whatever_part_it_shows() -> None:
    inputs = [torch.zeros(4), 1.5, BASE.clone()]
    shared = inputs[2]
    assert isinstance(shared, torch.Tensor)
    specs, _ = describe_outputs([torch.zeros(4), shared[50:], shared.view(6, 10).t()], inputs)
    assert [spec.aliases_input for spec in specs] == [None, 2, 2]


def test_empty_storages_are_no_aliases_of_each_other() -> None:
    (spec,), _ = describe_outputs([torch.zeros(0)], [torch.zeros(0)])
    assert spec.aliases_input is None


def test_a_meta_output_has_no_bytes() -> None:
    (spec, real), payloads = describe_outputs([torch.empty(3, device="meta"), torch.ones(1)], [])
    assert (spec.blob, spec.device, real.blob) == (None, "meta", 0)
    assert len(payloads) == 1


def test_outputs_are_plain_tensors_or_a_type_error() -> None:
    one = torch.ones(1)
    assert as_outputs(one) == [one]
    assert as_outputs((one, one)) == [one, one]
    assert as_outputs([]) == []

    class Lazy(torch.Tensor):
        pass

    for wrong in (None, 1.0, "text", one.as_subclass(Lazy), torch.nn.Parameter(one), [one, None]):
        with pytest.raises(TypeError, match=r"not a torch\.Tensor"):
            as_outputs(wrong)


def test_what_is_no_plain_tensor_is_left_out_where_only_tensors_are_asked_for() -> None:
    one, other = torch.ones(1), torch.nn.Parameter(torch.ones(2))
    assert values_of(None) == [None] and values_of((1, "two")) == [1, "two"] and values_of([]) == []
    assert [id(found) for found in tensors_of([one, None, 2.0, other])] == [id(one), id(other)]
    assert tensors_of("text") == tensors_of(()) == []
    (found,) = tensors_of(other)
    assert found is other


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4), (2, 0, 4), (1, 1), (5, 1, 2)])
def test_the_plans_strides_are_torchs(shape: tuple[int, ...]) -> None:
    made = torch.zeros(shape)
    assert contiguous_strides(shape) == made.stride()
    assert element_count(shape) == made.numel()


def test_a_result_that_something_else_holds_is_named() -> None:
    """A cache that handed the same tensor out again stayed unseen as long as nobody wrote to it."""
    kept: list[torch.Tensor] = []

    def made(keeps: bool) -> torch.Tensor:
        result = torch.ones(4)
        if keeps:
            kept.append(result.view(2, 2))
        return result

    assert [spec.held for spec in describe_outputs([made(False)], [])[0]] == [False]
    assert [spec.held for spec in describe_outputs([made(True)], [])[0]] == [True]
    same = torch.ones(4)
    assert [spec.held for spec in describe_outputs([same], [])[0]] == [False]
    assert [spec.held for spec in describe_outputs([torch.ones(2)], [])[0]] == [False]
    both = torch.ones(6)
    assert [spec.held for spec in describe_outputs([both[:3], both[3:]], [])[0]] == [True, True]
    del both
    halves = list(torch.ones(6).split(3))
    assert [spec.held for spec in describe_outputs(halves, [])[0]] == [False, False]
    assert [spec.held for spec in describe_outputs([torch.ones(6).view(2, 3)], [])[0]] == [False]
    whole = torch.ones(6)
    assert [spec.held for spec in describe_outputs([whole, whole.view(2, 3)], [])[0]] == [False, False]
    del whole
    nothing = torch.empty(0)
    assert [spec.held for spec in describe_outputs([nothing.view(0, 1)], [])[0]] == [False]
    saved = torch.ones(3, requires_grad=True).exp()
    assert [spec.held for spec in describe_outputs([saved], [])[0]] == [False]


def test_a_result_that_python_keeps_is_seen_at_return() -> None:
    kept: list[torch.Tensor] = []

    def returned(keeps: bool, count: int) -> object:
        parts = tuple(torch.ones(3) for _ in range(count))
        if keeps:
            kept.append(parts[-1])
        return parts if count > 1 else parts[0]

    for count in (1, 2):
        result = returned(False, count)
        assert not python_keeps(result)
        result = returned(True, count)
        assert python_keeps(result)
    result = None
    assert not python_keeps(result)


def test_frames_that_dynamo_evaluates_hold_no_result() -> None:
    """After a compilation that failed, a call's arguments count once more: every result looked kept."""
    from torch._C._dynamo.eval_frame import set_eval_frame

    before = set_eval_frame(False)  # run only: Python's frames go through dynamo's function all the same
    try:
        test_a_result_that_python_keeps_is_seen_at_return()
    finally:
        set_eval_frame(before)


def test_a_thread_that_lets_go_of_a_result_a_little_late_does_not_hold_it() -> None:
    """A pool's thread reported its part done, and destroyed its handle of the result milliseconds later."""
    output = torch.ones(6)
    handles = [output.view(2, 3)]

    def let_go() -> None:
        time.sleep(0.005)
        handles.clear()

    thread = threading.Thread(target=let_go)
    thread.start()
    specs, payloads = describe_outputs([output], [])
    thread.join()
    assert [spec.held for spec in specs] == [False]
    assert payloads == [tensor_bytes(output)]


def test_what_a_late_thread_writes_while_owners_are_looked_at_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = torch.ones(6)
    handles = [output.view(2, 3)]
    looking = threading.Event()

    def spoil() -> None:
        looking.wait(60.0)
        handles.pop().fill_(7.0)

    def look(result: torch.Tensor, results: Sequence[torch.Tensor]) -> bool:
        looking.set()
        return is_held(result, results)

    monkeypatch.setattr(storage, "is_held", look)
    thread = threading.Thread(target=spoil)
    thread.start()
    _, payloads = describe_outputs([output], [])
    thread.join()
    assert float(output[0]) == 7.0
    assert payloads == [tensor_bytes(torch.ones(6))]
