"""The form of a result against the plan: number, shape, dtype, device, strides, whose memory it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.card import Contract
from mini_kv.core.records.results import Finding
from mini_kv.core.tensors import OutputSpec, contiguous_strides, element_count


def grade_form(
    outputs: Sequence[OutputSpec], expected: Sequence[p.ExpectedOutput], contract: Contract
) -> tuple[Finding, ...]:
    """Compare number, shape, dtype, device, strides and aliasing of what came back with the plan."""
    if len(outputs) != len(expected):
        return (
            Finding(
                code=Code.WRONG_OUTPUT_COUNT,
                message=f"the operator returned {len(outputs)} tensors; the reference {len(expected)}",
            ),
        )
    findings: list[Finding] = []
    for position, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        name = f"output {position}"
        if got.shape != want.shape:
            findings.append(_differs(Code.WRONG_SHAPE, name, "shape", list(got.shape), list(want.shape)))
        if got.dtype != want.dtype:
            findings.append(_differs(Code.WRONG_DTYPE, name, "dtype", got.dtype, want.dtype))
        if got.device != want.device:
            findings.append(_differs(Code.WRONG_DEVICE, name, "device", got.device, want.device))
        strides = contiguous_strides(want.shape)
        if got.shape == want.shape and got.strides != strides and element_count(want.shape) > 0:
            findings.append(
                _differs(Code.WRONG_STRIDES, name, "strides", got.strides, f"{strides} (contiguous)")
            )
        if contract.functional and got.aliases_input is not None:
            findings.append(
                Finding(
                    code=Code.ALIASES_INPUT,
                    message=f"{name} shares its storage with input {got.aliases_input}; "
                    "a functional operator returns fresh memory",
                )
            )
        elif contract.functional and got.held:
            findings.append(
                Finding(
                    code=Code.OUTPUT_HELD,
                    message=f"something other than the caller holds the memory of {name}, which a later call "
                    "could hand out again or overwrite; a functional operator returns fresh memory",
                )
            )
    return tuple(findings)


def _differs(code: Code, name: str, what: str, got: object, want: object) -> Finding:
    return Finding(code=code, message=f"{name} has {what} {got}; the plan demands {want}")
