"""Workers without torch: they answer the protocol in milliseconds and misbehave on request.

``use_script`` runs a piece of Python against the raw wire, ``use_cast`` a whole oracle or candidate for the
operator ``double(x) = 2 * x`` on one float32 tensor of ``params["n"]`` elements. The faults of a cast are
Python source by place: ``"candidate/run_case"`` or ``"candidate/run_case/core_3"``; the source may change
``reply`` and ``payloads``, or do to its process whatever it likes.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mini_kv.core import protocol as p
from mini_kv.core.records.correctness import Mismatch, Numerics
from mini_kv.core.records.process_state import ProcessState
from mini_kv.core.tensors import GUARD_BYTES, OutputSpec, TensorSpec
from mini_kv.worker.channel import Channel

if TYPE_CHECKING:
    import pytest

HERE = str(Path(__file__).resolve().parent)
SCHEMA = "fixture_double::double(Tensor x) -> Tensor"


def use_script(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Have workers that are started from now on execute ``source``."""
    _boot(monkeypatch, f"fake_worker.run_script(a, {source!r})")


def use_cast(monkeypatch: pytest.MonkeyPatch, faults: dict[str, str]) -> None:
    """Have workers that are started from now on play oracle or candidate with these faults."""
    _boot(monkeypatch, f"fake_worker.play(a, {faults!r})")


def _boot(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    # The workers import this module too, hundreds of times in a run of the tests, and start no others.
    from mini_kv.system import workers

    # What a worker needs is imported before it may have to enter a cage.
    first = "import json, sys; a = json.loads(sys.argv[1]); "
    path = f"sys.path[:] = [{HERE!r}, *a['path']]; import fake_worker; "
    monkeypatch.setattr(workers, "_BOOT", first + path)
    monkeypatch.setattr(workers, "_SERVE", call)


class Wire(Channel):
    """A worker's end of the socket that can also say what it should not."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.socket: socket.socket = self._socket

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, reply: p.Reply, payloads: Sequence[bytes] = ()) -> None:
        self.send(p.encode_message(reply), payloads)


def run_script(options: dict[str, Any], source: str) -> None:
    names = {"wire": Wire(options["fd"]), "p": p, "os": os, "signal": signal, "struct": struct, "time": time}
    exec(source, names)


def play(options: dict[str, Any], faults: dict[str, str]) -> None:
    if options["role"] == "importer":  # it serves nobody: it leaves bytecode, where torch lacks it, and ends
        return
    wire = Wire(options["fd"])
    role = "oracle" if options["role"] == "oracle" else "candidate"
    actor: Any = Oracle() if role == "oracle" else Candidate()
    state: dict[str, Any] = {"role": options["role"], "count": 0}
    while True:
        try:
            request, payloads = wire.receive()
        except EOFError:
            return
        if isinstance(request, p.Rouse):
            wire.say(p.Done(), [])
            continue
        tag = str(request.__struct_config__.tag)
        key = getattr(request, "case_id", None) or getattr(request, "key", "")
        state["count"] += 1
        reply, out = answer(actor, request, payloads)
        for place in (f"{role}/{tag}", f"{role}/{tag}/{key.partition('/')[0]}"):
            if place in faults:
                names: dict[str, Any] = {
                    "reply": reply, "payloads": out, "request": request, "wire": wire, "state": state,
                    "p": p, "os": os, "signal": signal, "time": time, "change": msgspec.structs.replace,
                }  # fmt: skip
                exec(faults[place], names)
                reply, out = names["reply"], names["payloads"]
        wire.say(reply, out)


def answer(actor: Any, request: p.Request, payloads: Sequence[bytearray]) -> tuple[p.Reply, list[Any]]:
    try:
        reply, out = actor.answer(request, payloads)
    except Exception as error:  # noqa: BLE001 - as the real worker's main does
        return p.Failed(code=type(error).__name__, message=str(error)), []
    return reply, out


def inputs_of(seed: str, count: int) -> bytes:
    first = int(seed[:4], 16) + 1.0
    return struct.pack(f"<{count}f", *(first + position for position in range(count)))


def doubled(raw: bytes | bytearray) -> bytes:
    count = len(raw) // 4
    return struct.pack(f"<{count}f", *(2.0 * value for value in struct.unpack(f"<{count}f", raw)))


def output_spec(count: int) -> OutputSpec:
    return OutputSpec(
        shape=(count,),
        strides=(1,),
        storage_offset=0,
        dtype="float32",
        device="cpu",
        aliases_input=None,
        blob=0,
    )


def numerics_of(actual: bytes | bytearray, expected: bytes) -> Numerics:
    count = len(expected) // 4
    pairs = list(zip(struct.unpack(f"<{count}f", actual), struct.unpack(f"<{count}f", expected), strict=True))
    wrong = [position for position, (got, want) in enumerate(pairs) if got != want]
    return Numerics(
        element_count=count,
        mismatch_count=len(wrong),
        nonfinite_mismatch_count=0,
        max_abs_error=max((abs(got - want) for got, want in pairs), default=None),
        max_rel_error=None,
        max_error_eps=None,
        reference_max_abs_error=0.0,
        reference_max_error_eps=0.0,
        first_mismatches=tuple(
            Mismatch(output=0, index=(at,), expected=str(pairs[at][1]), actual=str(pairs[at][0]))
            for at in wrong[:8]
        ),
    )


def samples(iterations: int, p50_us: float) -> tuple[float, ...]:
    return tuple(p50_us * (1.0 + 0.001 * (position % 3 - 1)) for position in range(iterations))


def timed(request: p.TimeBatch, p50_us: float) -> p.Timed:
    return p.Timed(
        samples_us=samples(request.iterations, p50_us),
        launch_exposed=(),
        kept=tuple(range(request.iterations)),
        calls_per_sample=request.calls_per_sample or 4,
        floor_us=0.05,
        tick_us=0.001,
    )


READY = p.Ready(torch="2.11.0", torch_cuda=None, device="cpu", device_count=1)


class Oracle:
    """Knows what is right; its reference takes 20 us."""

    def __init__(self) -> None:
        self.expected: dict[str, bytes] = {}

    def answer(  # noqa: PLR0911 - one a request
        self, request: p.Request, payloads: Sequence[bytearray]
    ) -> tuple[p.Reply, list[Any]]:
        match request:
            case p.Hello():
                return READY, []
            case p.LoadReference():
                return p.ReferenceLoaded(source_sha256="a" * 64, has_cost_model=True), []
            case p.MakeCase():
                return self.make(request)
            case p.Compare():
                actual = payloads[request.outputs[0].blob]  # type: ignore[index]
                return p.Compared(numerics=numerics_of(actual, self.expected[request.key])), []
            case p.AuditCase():
                return p.CaseAudited(element_count=len(self.expected[request.key]) // 4, passed=()), []
            case p.TimeBatch():
                return timed(request, 20.0), []
            case p.TimeCopies():
                return p.CopiesTimed(fresh_us=3.0, rotating_us=2.0), []
            case p.MeasureTimer():
                return p.TimerMeasured(floor_us=0.05, tick_us=0.001, copy_gb_per_s=10.0, l2_bytes=None), []
            case _:
                return p.Done(), []

    def make(self, request: p.MakeCase) -> tuple[p.Reply, list[Any]]:
        count = int(request.params["n"])  # type: ignore[arg-type]
        raw = inputs_of(request.seed, count)
        if request.expect_values:
            self.expected[request.key] = doubled(raw)
        spec = TensorSpec(
            shape=(count,),
            strides=(1,),
            storage_offset=0,
            dtype="float32",
            device="cpu",
            storage_bytes=len(raw),
            blob=0,
        )
        expected = (p.ExpectedOutput(shape=(count,), dtype="float32", device="cpu"),)
        return (
            p.CaseMade(
                arguments=(spec,),
                expected=expected if request.expect_values else (),
                bytes_moved=8 * count,
                flops=count,
                reference_within_tolerance=True,
            ),
            [raw],
        )


class Candidate:
    """Doubles, refuses an odd ``n`` of more than 100 elements, takes 10 us."""

    def __init__(self) -> None:
        self.sets: dict[str, list[bytearray]] = {}
        self.kept: dict[str, bytes] = {}
        self.last: dict[str, tuple[int, float]] = {}

    def answer(  # noqa: PLR0911 - one a request
        self, request: p.Request, payloads: Sequence[bytearray]
    ) -> tuple[p.Reply, list[Any]]:
        match request:
            case p.Hello():
                return READY, []
            case p.LoadCandidate():
                return p.CandidateLoaded(schema=SCHEMA, kernels={"CPU": True, "Meta": True}), []
            case p.RunCase():
                self.kept[str(request.keep)] = doubled(payloads[0])
                return self.run(payloads[0], request.poison)
            case p.CheckContract():
                parts = ("test_schema", "test_autograd_registration", "test_faketensor")
                names = [f"opcheck.{part}" for part in (*parts, "test_aot_dispatch_dynamic")]
                asked = names if request.check == "opcheck" else [request.check]
                return p.ContractAnswer(results=dict.fromkeys(asked)), []
            case p.DescribeState():
                state = ProcessState(facts={"torch.default_dtype": "torch.float32"})
                return p.StateDescribed(before=state, after=state), []
            case p.PrepareTiming():
                self.sets[request.case_id] = list(payloads)
                return p.Done(), []
            case p.TimeBatch():
                reply = timed(request, 10.0)
                self.last[request.case_id] = (reply.calls_per_sample, request.kept_at)
                return reply, []
            case p.RunRepeats() if request.kept_outputs:
                return p.Repeated(kept=(request.calls - 1,)), []
            case p.TimeUnseen():
                self.sets[request.case_id] = list(payloads)
                self.last[request.case_id] = (1, 1.0)
                kept = tuple(range(len(payloads)))
                samples_us = samples(1, 10.0)
                return p.Timed(
                    samples_us=samples_us,
                    launch_exposed=(),
                    kept=kept,
                    calls_per_sample=1,
                    floor_us=0.05,
                    tick_us=0.001,
                ), []
            case p.FetchRepeated():
                sets = self.sets[request.case_id]
                used = request.position % len(sets)
                raw = doubled(sets[used])
                return p.TimedOutput(argument_set=used, outputs=(output_spec(len(raw) // 4),)), [raw]
            case p.Recall():
                return p.Recalled(), [self.kept[name] for name in request.kept]
            case p.FetchTimedInputs():
                return p.TimedInputs(), [self.sets[request.case_id][request.argument_set]]
            case p.FetchTimedOutput():
                sets = self.sets[request.case_id]
                calls, kept_at = self.last[request.case_id]
                used = (request.sample * calls + p.kept_call(kept_at, calls)) % len(sets)
                raw = doubled(sets[used])
                return p.TimedOutput(argument_set=used, outputs=(output_spec(len(raw) // 4),)), [raw]
            case _:
                return p.Done(), []

    def run(self, raw: bytearray, pattern: int) -> tuple[p.Reply, list[Any]]:
        count = len(raw) // 4
        if count > 100 and count % 2:
            types = ("RuntimeError", "Exception", "BaseException", "object")
            return p.Raised(types=types, message="double: n must be even", device_lost=False), []
        zones = bytes([pattern]) * (2 * GUARD_BYTES)
        ran = p.Ran(outputs=(output_spec(count),), input_blobs=(1,), guard_blobs=(2,), stray_writes=0)
        return ran, [doubled(raw), raw, zones]
