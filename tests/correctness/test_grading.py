"""One reply against the plan, purely: form, inputs, numbers, refusals."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mini_kv.core import protocol as p
from mini_kv.core.records.card import Case, CaseKind, Contract, Raises, Tolerance
from mini_kv.core.records.correctness import Mismatch, Numerics
from mini_kv.core.rules.byte_locations import Places
from mini_kv.core.rules.output_form import grade_form
from mini_kv.core.tensors import GUARD_BYTES, AbsentArg, OutputSpec, ScalarArg, TensorSpec, input_bytes
from mini_kv.correctness.grading import (
    describe_argument,
    grade_gradients,
    grade_guards,
    grade_illegal,
    grade_inputs,
    grade_numerics,
    grade_raised,
    output_bytes,
)
from mini_kv.worker.numerics import compare, expect

GOOD = OutputSpec(
    shape=(2, 3),
    strides=(3, 1),
    storage_offset=0,
    dtype="float32",
    device="cpu",
    aliases_input=None,
    blob=0,
)
WANTED = p.ExpectedOutput(shape=(2, 3), dtype="float32", device="cpu")


def form(*outputs: OutputSpec, wanted: Any = (WANTED,), contract: Contract | None = None) -> list[str]:
    return [finding.code for finding in grade_form(outputs, wanted, contract or Contract())]


def changed(**changes: Any) -> OutputSpec:
    return msgspec.structs.replace(GOOD, **changes)


def test_what_the_plan_demands_passes() -> None:
    assert form(GOOD) == []
    assert form(changed(storage_offset=7)) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"shape": (3, 2), "strides": (2, 1)}, "WRONG_SHAPE"),
        ({"shape": (2, 3, 1), "strides": (3, 1, 1)}, "WRONG_SHAPE"),
        ({"dtype": "float64"}, "WRONG_DTYPE"),
        ({"device": "meta"}, "WRONG_DEVICE"),
        ({"strides": (1, 2)}, "WRONG_STRIDES"),
        ({"aliases_input": 0}, "ALIASES_INPUT"),
        ({"aliases_input": 3}, "ALIASES_INPUT"),
    ],
)
def test_each_departure_has_its_own_code(changes: dict[str, Any], code: str) -> None:
    assert form(changed(**changes)) == [code]


def test_all_departures_of_an_output_are_told_at_once() -> None:
    wrong = changed(shape=(1,), strides=(1,), dtype="int32", device="cuda:0", aliases_input=1)
    assert form(wrong) == ["WRONG_SHAPE", "WRONG_DTYPE", "WRONG_DEVICE", "ALIASES_INPUT"]


def test_a_wrong_number_of_outputs_is_told_alone() -> None:
    for outputs in ((), (GOOD, GOOD)):
        assert form(*outputs) == ["WRONG_OUTPUT_COUNT"]


def test_the_second_output_is_named() -> None:
    (finding,) = grade_form((GOOD, changed(dtype="float16")), (WANTED, WANTED), Contract())
    assert "output 1" in finding.message
    assert "float16" in finding.message
    assert "float32" in finding.message


def test_an_alias_is_fine_where_the_card_does_not_demand_a_functional_operator() -> None:
    assert form(changed(aliases_input=0), contract=Contract(functional=False)) == []


def test_strides_of_an_empty_output_mean_nothing() -> None:
    wanted = p.ExpectedOutput(shape=(0, 3), dtype="float32", device="cpu")
    assert form(changed(shape=(0, 3), strides=(17, 5)), wanted=(wanted,)) == []


# ---------------------------------------------------------------------------- inputs


def test_inputs_that_come_back_as_they_were_sent_pass() -> None:
    assert grade_inputs([b"abc", b""], [bytearray(b"abc"), bytearray()]) == ()


@given(st.binary(min_size=1, max_size=300), st.data())
def test_the_first_byte_that_was_written_is_found(sent: bytes, data: st.DataObject) -> None:
    returned = bytearray(sent)
    first = data.draw(st.integers(0, len(sent) - 1))
    for position in range(first, len(sent)):
        if position == first or data.draw(st.booleans()):
            returned[position] ^= 0xFF
    (finding,) = grade_inputs([b"same", sent], [b"same", returned])
    assert finding.code == "INPUT_MUTATED"
    assert "payload 1" in finding.message
    assert f"first at byte {first};" in finding.message


@pytest.mark.parametrize(
    ("returned", "byte"), [(b"abc", 3), (b"abcde", 4), (b"", 0), (b"abX", 2), (b"Xbcde", 0)]
)
def test_an_input_of_another_length_was_not_left_alone(returned: bytes, byte: int) -> None:
    (finding,) = grade_inputs([b"abcd"], [returned])
    assert finding.code == "INPUT_MUTATED"
    assert f"first at byte {byte};" in finding.message


def test_inputs_that_do_not_come_back_prove_nothing() -> None:
    for returned in ([], [b"abc"], [b"abc", b"", b""]):
        assert [finding.code for finding in grade_inputs([b"abc", b""], returned)] == ["INPUTS_NOT_RETURNED"]


def test_a_late_byte_of_a_large_input_is_found_quickly() -> None:
    sent = bytes(32 << 20)
    returned = bytearray(sent)
    returned[-1] = 1
    begun_s = time.process_time()
    (finding,) = grade_inputs([sent], [returned])
    assert f"byte {len(sent) - 1};" in finding.message
    assert time.process_time() - begun_s < 0.5  # 0.03; a loop over the bytes takes seconds


# ---------------------------------------------------------------------------- numbers


TOLERANCES: dict[Any, Tolerance] = {
    "float16": Tolerance(rtol=1e-2, atol=0.5),
    "float32": Tolerance(rtol=1e-5, atol=0.0),
}


def numerics(mismatches: int, output: int = 0) -> Numerics:
    first = (Mismatch(output=output, index=(1, 2), expected="1.0", actual="nan"),) if mismatches else ()
    return Numerics(
        element_count=6,
        mismatch_count=mismatches,
        nonfinite_mismatch_count=0,
        max_abs_error=None,
        max_rel_error=None,
        max_error_eps=None,
        reference_max_abs_error=None,
        reference_max_error_eps=None,
        first_mismatches=first,
    )


def test_no_mismatch_is_no_finding() -> None:
    assert grade_numerics(numerics(0), ["float32"], {}) == ()
    assert grade_gradients(numerics(0), ["float32"], {}, Places()) == ()


def test_a_mismatch_names_count_place_values_and_bound() -> None:
    (finding,) = grade_numerics(numerics(2), ["float32"], TOLERANCES)
    assert finding.code == "WRONG_VALUES"
    assert finding.message == (
        "2 of 6 elements are wrong; the first at [1, 2]: expected 1.0, got nan (float32: rtol 1e-05, atol 0)"
    )


def test_of_several_outputs_the_wrong_one_is_named_with_its_own_tolerance() -> None:
    """Output 0's dtype and tolerance stood there whichever was wrong."""
    (finding,) = grade_numerics(numerics(2, output=1), ["float32", "float16", "int64"], TOLERANCES)
    assert finding.message == (
        "2 of 6 elements are wrong; the first at [1, 2] of output 1: expected 1.0, got nan "
        "(float16: rtol 0.01, atol 0.5)"
    )
    (finding,) = grade_numerics(numerics(2), ["float32", "int64"], TOLERANCES)
    assert "[1, 2] of output 0: expected 1.0, got nan (float32: rtol 1e-05, atol 0)" in finding.message


def test_a_dtype_without_a_tolerance_is_exact() -> None:
    for dtype in ("int32", "float64"):
        assert grade_numerics(numerics(1), [dtype], TOLERANCES)[0].message.endswith(f"({dtype}: exact)")


def test_integers_are_said_to_be_compared_as_they_are() -> None:
    """The card's tolerance for an integer dtype was told, which the comparison does not use."""
    tolerances: dict[Any, Tolerance] = {
        "int32": Tolerance(rtol=0.0, atol=1.0),
        "float32": Tolerance(rtol=0.0, atol=1.0),
    }
    for dtype, bound in ((torch.int32, "exact"), (torch.float32, "rtol 0, atol 1")):
        right = torch.zeros(3, dtype=dtype)
        for step in (1, 2):
            found = compare([right + step], [expect(right, right.to(torch.float64), tolerances)])
            name = str(dtype).removeprefix("torch.")
            accepts = not grade_numerics(found, [name], tolerances)
            assert accepts is (bound != "exact" and step == 1)
            if not accepts:
                assert grade_numerics(found, [name], tolerances)[0].message.endswith(f"({name}: {bound})")


@pytest.mark.parametrize(
    ("position", "whose", "dtype"),
    [
        (0, "argument 0 ('x') is wrong", "float32: rtol 1e-05, atol 0"),
        (1, "argument 2 ('weight') is wrong", "float16: rtol 0.01, atol 0.5"),
        (3, "argument 2 ('weight') is wrong where it alone wants one", "float16: rtol 0.01, atol 0.5"),
    ],
)
def test_a_wrong_gradient_names_its_input_and_the_inputs_tolerance(
    position: int, whose: str, dtype: str
) -> None:
    places = Places(
        arguments=(tensor(dtype="float32"), tensor(dtype="int64"), tensor()), names=("x", "index", "weight")
    )
    dtypes = ["float32", "float16"] * 2
    (finding,) = grade_gradients(numerics(2, output=position), dtypes, TOLERANCES, places)
    assert finding.code == "WRONG_GRADIENTS"
    assert finding.message == (
        f"the gradient of {whose}: of the elements of all gradients, 2 of 6 elements are wrong; the first at "
        f"[1, 2]: expected 1.0, got nan ({dtype}), relative to the largest element and eight times wider"
    )


# ---------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize(
    ("mode", "name", "code"),
    [
        ("gradients", "GradientFault", "WRONG_GRADIENTS"),
        ("gradients", "RuntimeError", "RAISED"),
        ("no_grad", "GradientFault", "RAISED"),
        ("requires_grad", "GradientFault", "RAISED"),
    ],
)
def test_an_exception_of_that_name_in_an_ordinary_call_was_a_wrong_gradient(
    mode: p.CallMode, name: str, code: str
) -> None:
    assert grade_raised(mode, raised("it leaks", name, "Exception")).code == code


# ---------------------------------------------------------------------------- refusals

CASE = Case(
    id="i", kind=CaseKind.ILLEGAL, params={}, raises=Raises(exception="RuntimeError", message="same shape")
)


def raised(message: str, *types: str) -> p.Raised:
    return p.Raised(types=types or ("RuntimeError", "Exception"), message=message, device_lost=False)


def refusal(reply: p.Raised, case: Case = CASE) -> list[str]:
    return [finding.code for finding in grade_illegal(case, reply)]


def test_the_stated_exception_with_the_stated_words_passes() -> None:
    assert refusal(raised("add: a and b must have the same shape\nC++ frame 1")) == []
    assert refusal(raised("same shape", "NotImplementedError", "RuntimeError", "Exception")) == []


def test_another_class_and_other_words_are_two_findings() -> None:
    assert refusal(raised("no", "ValueError", "Exception")) == ["WRONG_EXCEPTION", "WRONG_MESSAGE"]
    assert refusal(raised("Same Shape")) == ["WRONG_MESSAGE"]
    assert refusal(raised("")) == ["WRONG_MESSAGE"]
    assert refusal(raised("\n\nlater")) == ["WRONG_MESSAGE"]


def test_an_exception_is_known_by_its_whole_name() -> None:
    assert refusal(raised("same shape", "MyRuntimeError", "Exception")) == ["WRONG_EXCEPTION"]


def test_a_case_without_an_expectation_is_no_pass() -> None:
    assert refusal(raised("same shape"), msgspec.structs.replace(CASE, raises=None)) == ["NO_EXPECTATION"]


# ---------------------------------------------------------------------------- words and sizes


def tensor(**changes: Any) -> TensorSpec:
    made = TensorSpec(
        shape=(4, 128),
        strides=(128, 1),
        storage_offset=0,
        dtype="float16",
        device="cuda:0",
        storage_bytes=1024,
        blob=0,
    )
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (tensor(), "float16[4, 128] on cuda:0"),
        (tensor(strides=(1, 4)), "float16[4, 128] strides (1, 4) on cuda:0"),
        (tensor(storage_offset=3), "float16[4, 128] offset 3 on cuda:0"),
        (tensor(shape=(), strides=()), "float16[] on cuda:0"),
        (ScalarArg(value=1e-6), "1e-06"),
        (ScalarArg(special="-inf"), "-inf"),
        (ScalarArg(value=False), "False"),
        (AbsentArg(), "None"),
    ],
)
def test_an_argument_is_described_as_people_write_it(argument: Any, text: str) -> None:
    assert describe_argument(argument) == text


def test_sizes_count_elements_and_not_storages() -> None:
    assert (
        input_bytes([tensor(storage_bytes=1 << 30), ScalarArg(value=1), tensor(dtype="float64")]) == 512 * 10
    )
    assert output_bytes(p.ExpectedOutput(shape=(3, 5), dtype="bfloat16", device="cpu")) == 30


def test_one_element_with_strides_of_its_own_is_not_contiguous() -> None:
    wanted = p.ExpectedOutput(shape=(1,), dtype="float32", device="cpu")
    assert form(changed(shape=(1,), strides=(1,)), wanted=(wanted,)) == []
    assert form(changed(shape=(1,), strides=(7,)), wanted=(wanted,)) == ["WRONG_STRIDES"]


def test_memory_that_something_else_holds_is_told_once() -> None:
    assert form(changed(held=True)) == ["OUTPUT_HELD"]
    assert form(changed(held=True, aliases_input=0)) == ["ALIASES_INPUT"]
    assert form(changed(held=True), contract=Contract(functional=False)) == []


FILLED = bytes([0x5A]) * (2 * GUARD_BYTES)


def guards(zones: list[bytes], sent: tuple[bytes, ...] = (b"abcd", b""), stray: int = 0) -> list[str]:
    return [finding.message for finding in grade_guards(sent, zones, 0x5A, stray)]


def test_a_storage_without_bytes_has_no_guard_zone() -> None:
    assert guards([FILLED, b""]) == []
    (found,) = guards([FILLED, FILLED])
    assert found.startswith("the call wrote outside the storage of input payload 1")
    assert len(guards([b"", b""])) == 1
    assert guards([FILLED]) == ["1 guard zones came back; there are 2 input storages"]


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (0, f"{GUARD_BYTES} bytes before its start"),
        (GUARD_BYTES - 1, "1 bytes before its start"),
        (GUARD_BYTES, "at byte 4; it has 4"),
        (GUARD_BYTES + 3, "at byte 7; it has 4"),
    ],
)
def test_a_write_next_to_an_input_is_told_by_its_place(at: int, told: str) -> None:
    zone = bytearray(FILLED)
    zone[at] ^= 1
    (found,) = guards([bytes(zone), b""])
    assert found.endswith(told)


def test_stray_writes_are_counted_next_to_the_guard_zones() -> None:
    (found,) = guards([FILLED, b""], stray=2)
    assert found.startswith("the call wrote to 2 blocks of memory that it was not given; they lay next to")
