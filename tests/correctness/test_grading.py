"""One reply against the plan, purely: form, inputs, numbers, refusals."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_kv.core import protocol as p
from mini_kv.core.records.card import Case, CaseKind, Contract, Raises, Tolerance
from mini_kv.core.records.correctness import Mismatch, Numerics
from mini_kv.core.rules.output_form import grade_form
from mini_kv.core.tensors import AbsentArg, OutputSpec, ScalarArg, TensorSpec, input_bytes
from mini_kv.correctness.grading import (
    describe_argument,
    grade_illegal,
    grade_inputs,
    grade_numerics,
    grade_raised,
    output_bytes,
)

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


def numerics(mismatches: int) -> Numerics:
    first = (Mismatch(output=0, index=(1, 2), expected="1.0", actual="nan"),) if mismatches else ()
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
    assert grade_numerics(numerics(0), "float32", {}) == ()


def test_a_mismatch_names_count_place_values_and_bound() -> None:
    (finding,) = grade_numerics(numerics(2), "float32", {"float32": Tolerance(rtol=1e-5, atol=0.0)})
    assert finding.code == "WRONG_VALUES"
    for part in ("2 of 6", "[1, 2]", "expected 1.0", "got nan", "rtol 1e-05"):
        assert part in finding.message


def test_a_dtype_without_a_tolerance_is_exact() -> None:
    assert "exact" in grade_numerics(numerics(1), "int32", {})[0].message


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
