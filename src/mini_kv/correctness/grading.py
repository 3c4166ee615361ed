"""Pure judgement of one reply against the plan: bytes and facts in, findings out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.dtypes import FLOATING, ITEM_SIZE_BYTES, DTypeName
from mini_kv.core.records.card import Case, Tolerance
from mini_kv.core.records.correctness import Numerics
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.byte_locations import Places
from mini_kv.core.tensors import (
    GUARD_BYTES,
    AbsentArg,
    Argument,
    ScalarArg,
    TensorSpec,
    contiguous_strides,
    element_count,
)

Payload = bytes | bytearray | memoryview
NOWHERE = Places()


def describe_argument(argument: Argument) -> str:
    """Return an argument as people write it: ``float16[4, 128] strides (128, 1) on cpu``."""
    match argument:
        case AbsentArg():
            return "None"
        case ScalarArg():
            return str(argument.special if argument.special is not None else argument.value)
        case TensorSpec():
            text = f"{argument.dtype}{list(argument.shape)}"
            if argument.strides != contiguous_strides(argument.shape):
                text += f" strides {argument.strides}"
            if argument.storage_offset:
                text += f" offset {argument.storage_offset}"
            return f"{text} on {argument.device}"


def output_bytes(expected: p.ExpectedOutput) -> int:
    """Return the bytes of one expected output."""
    return element_count(expected.shape) * ITEM_SIZE_BYTES[expected.dtype]


def grade_inputs(
    sent: Sequence[Payload], returned: Sequence[Payload], places: Places = NOWHERE
) -> tuple[Finding, ...]:
    """Compare every input storage, gaps included, byte by byte with what was sent."""
    if len(sent) != len(returned):
        return (
            Finding(
                code=Code.INPUTS_NOT_RETURNED,
                message=f"{len(returned)} input storages came back; {len(sent)} were sent",
            ),
        )
    return tuple(
        Finding(
            code=Code.INPUT_MUTATED,
            message=f"the call wrote to {places.storage(position)}, first at "
            f"{places.byte(position, _first_difference(before, after))}; a functional operator writes to no "
            "input",
        )
        for position, (before, after) in enumerate(zip(sent, returned, strict=True))
        if before != after
    )


def grade_altered(altered: Sequence[p.Altered], places: Places = NOWHERE) -> tuple[Finding, ...]:
    """Say which arguments are other tensors than they were, though their bytes may be the same."""
    return tuple(
        Finding(
            code=Code.INPUT_MUTATED,
            message=f"the call left {places.argument(one.argument)} with another {' and '.join(one.traits)}; "
            "a functional operator leaves its inputs as they are",
        )
        for one in altered
    )


def grade_guards(
    sent: Sequence[Payload],
    zones: Sequence[Payload],
    pattern: int,
    stray_writes: int,
    places: Places = NOWHERE,
) -> tuple[Finding, ...]:
    """Compare the guard zones around every input storage, byte by byte, with what they were filled with."""
    if len(sent) != len(zones):
        return (
            Finding(
                code=Code.GUARDS_NOT_RETURNED,
                message=f"{len(zones)} guard zones came back; there are {len(sent)} input storages",
            ),
        )
    filled = bytes([pattern]) * (2 * GUARD_BYTES)
    findings = [
        Finding(
            code=Code.OUT_OF_BOUNDS_WRITE,
            message=f"the call wrote outside the storage of {places.storage(position)}: "
            f"{_place(_first_difference(filled, zone), len(memoryview(storage).cast('B')))}",
        )
        for position, (storage, zone) in enumerate(zip(sent, zones, strict=True))
        if zone != (filled if len(memoryview(storage).cast("B")) else b"")
    ]
    if stray_writes:
        findings.append(
            Finding(
                code=Code.OUT_OF_BOUNDS_WRITE,
                message=f"the call wrote to {stray_writes} blocks of memory that it was not given; they lay "
                "next to the memory of its outputs",
            )
        )
    return tuple(findings)


def _place(position: int, size_bytes: int) -> str:
    if position < GUARD_BYTES:
        return f"{GUARD_BYTES - position} bytes before its start"
    return f"at byte {size_bytes + position - GUARD_BYTES}; it has {size_bytes}"


def _first_difference(before: Payload, after: Payload) -> int:
    left, right = memoryview(before).cast("B"), memoryview(after).cast("B")
    shared = min(left.nbytes, right.nbytes)
    # Halving compares memory as a whole; a loop over its bytes would take seconds.
    low, high = 0, shared
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] != right[low:middle]:
            high = middle
        else:
            low = middle
    return low if low < shared and left[low] != right[low] else shared


def grade_numerics(
    numerics: Numerics, dtypes: Sequence[str], tolerances: Mapping[DTypeName, Tolerance]
) -> tuple[Finding, ...]:
    """Turn mismatches into one finding that names the first wrong element.

    ``dtypes`` are the expected outputs', in order. Where there are several, the first wrong one is named.
    """
    if numerics.mismatch_count == 0:
        return ()
    first = numerics.first_mismatches[0]
    dtype = dtypes[first.output]
    place = f"{list(first.index)}" + (f" of output {first.output}" if len(dtypes) > 1 else "")
    return (
        Finding(
            code=Code.WRONG_VALUES,
            message=f"{numerics.mismatch_count} of {numerics.element_count} elements are wrong; the first at "
            f"{place}: expected {first.expected}, got {first.actual} ({dtype}: {_bound(dtype, tolerances)})",
        ),
    )


def grade_gradients(
    numerics: Numerics,
    dtypes: Sequence[str],
    tolerances: Mapping[DTypeName, Tolerance],
    places: Places,
) -> tuple[Finding, ...]:
    """Like :func:`grade_numerics`, for the inputs' gradients: it names the input of the first wrong one.

    They come in the inputs' order; where there are several, those of calls in which one alone wants a
    gradient follow.
    """
    if numerics.mismatch_count == 0:
        return ()
    inputs = places.tensors(FLOATING)
    first = numerics.first_mismatches[0]
    dtype = dtypes[first.output]
    whose = places.argument(inputs[first.output % len(inputs)]) if inputs else "an input"
    alone = " where it alone wants one" if first.output >= len(inputs) else ""
    return (
        Finding(
            code=Code.WRONG_GRADIENTS,
            message=f"the gradient of {whose} is wrong{alone}: of the elements of all gradients, "
            f"{numerics.mismatch_count} of {numerics.element_count} elements are wrong; the first at "
            f"{list(first.index)}: expected {first.expected}, got {first.actual} "
            f"({dtype}: {_bound(dtype, tolerances)}), relative to the largest element and eight times wider",
        ),
    )


def _bound(dtype: str, tolerances: Mapping[DTypeName, Tolerance]) -> str:
    limit = {str(name): value for name, value in tolerances.items()}.get(dtype)
    # Integers are equal or wrong, whatever tolerance the card states for them.
    if limit is None or dtype not in FLOATING:
        return "exact"
    return f"rtol {limit.rtol:g}, atol {limit.atol:g}"


# What the worker raises for a formula that does what none may; one that raises it itself has failed as well.
_GRADIENT_FAULT = "GradientFault"


def grade_raised(mode: p.CallMode, raised: p.Raised) -> Finding:
    """Say what the exception of a legal call says against the candidate."""
    if mode == "gradients" and raised.types[0] == _GRADIENT_FAULT:
        return Finding(code=Code.WRONG_GRADIENTS, message=raised.message[:500])
    return Finding(code=Code.RAISED, message=f"the call raised {raised.types[0]}: {raised.message[:500]}")


def grade_illegal(case: Case, reply: p.Ran | p.Raised) -> tuple[Finding, ...]:
    """Compare what an illegal call did with what the card says it must raise."""
    wanted = case.raises
    if wanted is None:
        return (Finding(code=Code.NO_EXPECTATION, message="the card states no exception for this case"),)
    if isinstance(reply, p.Ran):
        return (
            Finding(
                code=Code.ILLEGAL_INPUT_ACCEPTED,
                message=f"the call returned a result; the card demands {wanted.exception} "
                f"with '{wanted.message}'",
            ),
        )
    found: list[Finding] = []
    if wanted.exception not in reply.types:
        found.append(
            Finding(
                code=Code.WRONG_EXCEPTION,
                message=f"the call raised {reply.types[0]}; the card demands {wanted.exception}"
                + (f": {reply.message.splitlines()[0][:200]!r}" if reply.message.strip() else ""),
            )
        )
    if wanted.message not in reply.message:
        found.append(
            Finding(
                code=Code.WRONG_MESSAGE,
                message=f"the message lacks '{wanted.message}': {reply.message.splitlines()[0][:200]!r}"
                if reply.message
                else f"the message lacks '{wanted.message}': it is empty",
            )
        )
    return tuple(found)
