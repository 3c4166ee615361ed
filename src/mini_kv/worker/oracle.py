"""The oracle: makes inputs, runs and times the reference, holds expected values, compares.

It never loads a candidate, and nothing it holds enters a candidate's process but the inputs.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mini_kv.core import protocol as p
from mini_kv.core.canonical import derived_seed
from mini_kv.core.cost import Cost
from mini_kv.core.dtypes import ITEM_SIZE_BYTES
from mini_kv.core.records.card import ParamValue, Tolerance
from mini_kv.core.records.correctness import Numerics
from mini_kv.core.tensors import OutputSpec, element_count
from mini_kv.worker.channel import Payload
from mini_kv.worker.device import open_device
from mini_kv.worker.gradients import gradients_of
from mini_kv.worker.nulls import audit_nulls
from mini_kv.worker.numerics import (
    Expected,
    compare,
    expect,
    expect_gradient,
    reference_within_tolerance,
)
from mini_kv.worker.storage import as_outputs, dtype_name, dtype_of, export_arguments, values_of
from mini_kv.worker.timed_cases import TimedCases

Function = Callable[..., object]
Answer = tuple[p.Reply, Sequence[Payload]]


@dataclass(frozen=True, kw_only=True)
class _Kept:
    arguments: tuple[object, ...]
    expected: tuple[Expected, ...]


class Oracle:
    """State of the oracle process: device, reference, and what it knows a case must give."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._reference: Function | None = None
        self._factory: Function | None = None
        self._cost_model: Function | None = None
        self._tolerances: dict[str, Tolerance] = {}
        self._kept: dict[str, _Kept] = {}
        self._timed: TimedCases | None = None

    def answer(self, request: p.Request, payloads: Sequence[bytearray]) -> Answer:
        """Carry out one request; raises what the reference or factory raises."""
        match request:
            case p.Hello():
                self._device, ready = open_device(request)
                self._timed = TimedCases(self._device, keeps_outputs=False)
                return ready, ()
            case p.LoadReference():
                return self._load(request), ()
            case p.MakeCase():
                return self._make(request)
            case p.Compare():
                return p.Compared(numerics=self._compare(request, payloads)), ()
            case p.AuditCase():
                kept = self._kept[request.key]
                return audit_nulls(kept.arguments, kept.expected), ()
            case p.Forget():
                self._kept.pop(request.key, None)
                self._kept.pop(p.gradients_key(request.key), None)
                return p.Done(), ()
            case p.PrepareReferenceTiming() | p.TimeCopies():
                return self._time(request), ()
            case (
                p.TimeBatch()
                | p.MeasureTimer()
                | p.WitnessKernels()
                | p.PrepareRepeats()
                | p.RunRepeats()
                | p.FetchRepeated()
                | p.DropTiming()
            ):
                return self._timing().answer(request)
            case _:
                raise ValueError(f"the oracle does not answer {type(request).__name__}")

    def _time(self, request: p.PrepareReferenceTiming | p.TimeCopies) -> p.Done | p.CopiesTimed:
        sets = [self._kept[key].arguments for key in request.keys]
        if isinstance(request, p.PrepareReferenceTiming):
            self._timing().prepare(request.case_id, self._need(self._reference), sets)
            return p.Done()
        results = [want.working for want in self._kept[request.keys[0]].expected]
        fresh_us, rotating_us = self._timing().copies(request.case_id, sets, results)
        return p.CopiesTimed(fresh_us=fresh_us, rotating_us=rotating_us)

    def _timing(self) -> TimedCases:
        if self._timed is None:
            raise ValueError("Hello comes first")
        return self._timed

    def _need(self, function: Function | None) -> Function:
        if function is None:
            raise ValueError("LoadReference comes first")
        return function

    def _load(self, request: p.LoadReference) -> p.ReferenceLoaded:
        self._tolerances = request.tolerances
        self._reference = _import(request.reference)
        self._factory = _import(request.input_factory)
        names = [request.reference.partition(":")[0], request.input_factory.partition(":")[0]]
        # The reference's own, else that of the factory, which knows the same parameters.
        models = (getattr(sys.modules[name], "cost_model", None) for name in names)
        self._cost_model = next((model for model in models if model is not None), None)
        return p.ReferenceLoaded(
            source_sha256=_source_digest(names), has_cost_model=self._cost_model is not None
        )

    def _make(self, request: p.MakeCase) -> Answer:
        generator = torch.Generator().manual_seed(int(request.seed, 16) & (2**63 - 1))
        made = self._need(self._factory)(request.params, generator, self._device)
        arguments = tuple(values_of(made))
        described, payloads = export_arguments(arguments)
        expected: tuple[Expected, ...] = ()
        if request.expect_values:
            expected = self._expect(arguments)
            self._kept[request.key] = _Kept(arguments=arguments, expected=expected)
        gradients = self._expect_gradients(request, arguments) if request.expect_gradients else ()
        cost = self._cost(request.params) if request.expect_values else None
        return (
            p.CaseMade(
                arguments=described,
                expected=tuple(map(_form, expected)),
                gradients=tuple(map(_form, gradients)),
                bytes_moved=cost.bytes_moved if cost else None,
                flops=cost.flops if cost else None,
                reference_within_tolerance=reference_within_tolerance(expected),
            ),
            payloads,
        )

    def _expect(self, arguments: tuple[object, ...]) -> tuple[Expected, ...]:
        reference = self._need(self._reference)
        with torch.no_grad():
            working = as_outputs(reference(*_copies(arguments)))
            exact = as_outputs(reference(*_copies(arguments, upcast=True)))
        return tuple(expect(low, high, self._tolerances) for low, high in zip(working, exact, strict=True))

    def _expect_gradients(self, request: p.MakeCase, arguments: tuple[object, ...]) -> tuple[Expected, ...]:
        reference = self._need(self._reference)
        weights = derived_seed(request.seed, p.WEIGHTS_OF_GRADIENTS)
        try:
            working = gradients_of(reference, _copies(arguments), weights)
            exact = gradients_of(reference, _copies(arguments, upcast=True), weights)
        except (ValueError, RuntimeError):  # this reference cannot be differentiated
            return ()
        pairs = zip(working, exact, strict=True)
        expected = tuple(expect_gradient(low, high, self._tolerances) for low, high in pairs)
        if not reference_within_tolerance(expected):
            return ()
        self._kept[p.gradients_key(request.key)] = _Kept(arguments=(), expected=expected)
        return expected

    def _cost(self, params: Mapping[str, ParamValue]) -> Cost | None:
        if self._cost_model is None:
            return None
        cost = self._cost_model(params)
        return cost if isinstance(cost, Cost) else None

    def _compare(self, request: p.Compare, payloads: Sequence[bytearray]) -> Numerics:
        kept = self._kept[request.key]
        actual = [
            _rebuild(spec, payloads, want.working)
            for spec, want in zip(request.outputs, kept.expected, strict=True)
        ]
        return compare(actual, kept.expected)


def _form(want: Expected) -> p.ExpectedOutput:
    return p.ExpectedOutput(
        shape=tuple(want.working.shape),
        dtype=dtype_name(want.working.dtype),
        device=str(want.working.device),
    )


def _rebuild(spec: OutputSpec, payloads: Sequence[bytearray], like: torch.Tensor) -> torch.Tensor:
    # Shape and dtype come from the plan; the payload is only bytes, and of exactly that many.
    shape = tuple(like.shape)
    size = element_count(shape) * ITEM_SIZE_BYTES[dtype_name(like.dtype)]
    payload = payloads[spec.blob] if spec.blob is not None else bytearray()
    if spec.shape != shape or dtype_of(spec.dtype) != like.dtype or len(payload) != size:
        raise ValueError("an output's bytes do not fit the plan's shape and dtype")
    if size == 0:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    return torch.frombuffer(payload, dtype=like.dtype).reshape(shape).to(like.device)


def _copies(arguments: tuple[object, ...], *, upcast: bool = False) -> list[object]:
    # The reference gets its own copies: one that wrote to an input must not change what is kept.
    return [
        (value.to(torch.float64, copy=True) if upcast and value.dtype.is_floating_point else value.clone())
        if isinstance(value, torch.Tensor)
        else value
        for value in arguments
    ]


def _import(path: str) -> Function:
    module_name, _, name = path.partition(":")
    function = getattr(importlib.import_module(module_name), name, None)
    if not callable(function):
        raise ImportError(f"module '{module_name}' has no function '{name}'")
    return function  # type: ignore[no-any-return]


def _source_digest(modules: Sequence[str]) -> str:
    # The reference's own modules and those it imported from the same package folder.
    folders = {Path(inspect.getfile(sys.modules[name])).parent for name in modules}
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {Path(path) for path in paths if path and Path(path).parent in folders}
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        raw = file.read_bytes()
        digest.update(f"{file.name}\0{len(raw)}\0".encode())
        digest.update(raw)
    return digest.hexdigest()
