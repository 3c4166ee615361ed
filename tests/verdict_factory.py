"""The records of a run, and the axes and the exit code that follow from them, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from attempt_factory import benchmark
from mini_kv.core.records.attempt import Axis
from mini_kv.core.records.benchmark import Benchmark
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import CaseKind
from mini_kv.core.records.correctness import CaseResult, ContractCheck, Correctness, Round
from mini_kv.core.records.regression import Decision, Regression
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.verdict import axes_of, exit_code_of

BUILD = Build(
    schema_version="1.0.0",
    status=Status.PASS,
    code=None,
    message=None,
    key="a" * 64,
    cached=True,
    elapsed_s=0.0,
    device="cpu",
    library="x.so",
    library_sha256="b" * 64,
    library_bytes=1,
    torch="2.11.0",
    cxx="g++",
    cuda_compiler=None,
    arch_list=(),
    units=(),
    source_sha256={},
)
FAULT = Finding(code="LOAD_EXITED", message="it left")


def case(
    name: str = "core", kind: CaseKind = CaseKind.CORE, status: Status = Status.PASS, **changes: Any
) -> CaseResult:
    from mini_kv.core.tensors import OutputSpec

    output = OutputSpec(
        shape=(1,),
        strides=(1,),
        storage_offset=0,
        dtype="float32",
        device="cpu",
        aliases_input=None,
        blob=0,
    )
    code = None if status is Status.PASS else "WRONG_VALUES"
    findings = () if code is None else (Finding(code=code, message="they differ"),)
    one = Round(
        name="fixed",
        seed="0" * 16,
        status=status,
        findings=findings,
        numerics=None,
        outputs=(output,),
        output_sha256=(),
    )
    made = CaseResult(
        case_id=name,
        kind=kind,
        status=status,
        code=code,
        message=None if code is None else "they differ",
        rounds=(one,),
        inputs=("float32[4] on cpu",),
        worker=1,
        elapsed_s=0.0,
    )
    return msgspec.structs.replace(made, **changes)


def check(name: str = "gradcheck", status: Status = Status.PASS) -> ContractCheck:
    return ContractCheck(name=name, case_id="core", status=status, code=None, message=None, elapsed_s=0.0)


def correctness(*cases: CaseResult, checks: tuple[ContractCheck, ...] = ()) -> Correctness:
    return Correctness(
        schema_version="1.0.0",
        status=Status.PASS,
        device="cpu",
        planned_cases=len(cases),
        passed_cases=0,
        cases=cases,
        contract=checks,
        workers_started=2,
        workers_lost=0,
        elapsed_s=0.0,
    )


SOUND = correctness(case(), checks=(check(),))
TIMED = benchmark()


def regression(decision: Decision) -> Regression:
    return Regression(
        schema_version="1.0.0",
        decision=decision,
        code="X",
        message="x",
        baseline="b.json",
        baseline_sha256=None,
        cases=(),
    )


def axes(
    build: Build | None = BUILD,
    fault: Finding | None = None,
    found: Correctness | None = SOUND,
    timed: Benchmark | None = TIMED,
    gate: Regression | None = None,
    *,
    skipped: bool = False,
    **more: Any,
) -> tuple[Axis, ...]:
    return axes_of(build, fault, found, timed, regression=gate, benchmark_skipped=skipped, **more)


def axis(name: str, *arguments: Any, **named: Any) -> Axis:
    return next(axis for axis in axes(*arguments, **named) if axis.name == name)


def code_of(*arguments: Any, **named: Any) -> int:
    return exit_code_of(axes(*arguments, **named), None, interrupted=False)
