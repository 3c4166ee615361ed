"""Oracle and candidate worker in this process, and one built operator that breaks a rule on request."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from mini_kv.compiler import BuildRequest, build
from mini_kv.core import protocol as p
from mini_kv.core.records.build import Build
from mini_kv.core.records.card import BenchmarkPlan, Case, CaseKind, Contract, TaskCard, Tolerance
from mini_kv.core.records.results import Status
from mini_kv.correctness import Subject
from mini_kv.system.oracle_client import OracleClient
from mini_kv.system.toolchain import find_toolchain
from mini_kv.system.workers import Answer
from mini_kv.task_card import load_manifest
from mini_kv.worker.candidate import Candidate
from mini_kv.worker.oracle import Oracle

FIXTURE = Path(__file__).resolve().parent / "fixtures" / "primitives"
SEED = "0123456789abcdef"


class SeatHere(OracleClient):
    """A seat whose worker is in this process: the real roles, no socket between."""

    number = 1
    losses = 0
    occupied = True
    pid = os.getpid()

    def __init__(self, role: Any) -> None:
        self._role = role
        self._role.answer(p.Hello(device="cpu", threads=1), ())

    def load(self, request: p.Request) -> Any:
        return self._role.answer(request, ())[0]

    def ask(
        self,
        message: p.Request,
        payloads: Sequence[Any] = (),
        *,
        timeout_s: float,
        max_reply_bytes: int = 0,
        last: bool = False,
    ) -> Answer:
        try:
            reply, out = self._role.answer(message, [bytearray(payload) for payload in payloads])
        except Exception as error:  # noqa: BLE001 - as the real worker's main does
            return Answer(reply=p.Failed(code=type(error).__name__, message=str(error)), payloads=[])
        return Answer(reply=reply, payloads=[bytearray(payload) for payload in out])

    def retire(self) -> None:
        raise AssertionError("the device works")

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()


@functools.cache
def built() -> Build:
    """Build the fixture's operator once (kept in the checkout's own build folder)."""
    root = FIXTURE.parents[2]
    folder = FIXTURE / "candidates" / "probe" / "v0"
    request = BuildRequest(
        project_root=str(root),
        candidate_folder=folder.relative_to(root).as_posix(),
        manifest=load_manifest(folder, FIXTURE).manifest,
        device="cpu",
        arch_list=(),
        timeout_s=280,
    )
    made = build(request, find_toolchain(root / ".build", os.environ))
    assert made.status is Status.PASS, made.first_error or made.message
    return made


@functools.cache
def candidate_seat() -> SeatHere:
    """Load the operator into this process once: a dispatcher name cannot be registered twice."""
    seat = SeatHere(Candidate())
    made = built()
    loaded = seat.load(
        p.LoadCandidate(
            library=str(FIXTURE.parents[2] / str(made.library)),
            library_sha256=str(made.library_sha256),
            python=None,
            dispatcher="mini_kv_probe::probe",
            schema="probe(Tensor x, int mode) -> Tensor",
        )
    )
    assert isinstance(loaded, p.CandidateLoaded), loaded
    return seat


@functools.cache
def oracle_seat() -> SeatHere:
    """Return an oracle that has imported the fixture's reference."""
    sys.path.insert(0, str(FIXTURE))
    seat = SeatHere(Oracle())
    seat.load(
        p.LoadReference(
            reference="probe_reference:reference",
            input_factory="probe_reference:make_inputs",
            tolerances={"float32": Tolerance(rtol=1e-5, atol=0.0)},
        )
    )
    sys.path.remove(str(FIXTURE))
    return seat


def probe_case(case_id: str, mode: int, kind: CaseKind = CaseKind.CORE, **params: Any) -> Case:
    return Case(id=case_id, kind=kind, params={"shape": (3, 33), "mode": mode, **params})


def probe_card(*cases: Case, contract: Contract | None = None, **plan: Any) -> TaskCard:
    timed = tuple(case.id for case in cases if case.kind is CaseKind.BENCHMARK) or (cases[0].id,)
    options = {"warmup": 1, "iterations": 5, "repeats": 2} | plan
    return TaskCard(
        schema_version="1.0.0",
        task_id="probe",
        operator="probe",
        operator_version="1.0.0",
        reference="probe_reference:reference",
        input_factory="probe_reference:make_inputs",
        candidate="candidates/probe/v0",
        device="cpu",
        cases=cases,
        tolerances={"float32": Tolerance(rtol=1e-5, atol=0.0)},
        contract=contract or Contract(),
        benchmark=BenchmarkPlan(case_ids=timed, primary_case_id=timed[0], **options),
    )


def probe_subject(card: TaskCard) -> Subject:
    return Subject(
        card=card,
        manifest=load_manifest(FIXTURE / "candidates" / "probe" / "v0", FIXTURE).manifest,
        device="cpu",
        oracle=oracle_seat(),  # type: ignore[arg-type]
        seat=candidate_seat(),  # type: ignore[arg-type]
        secret_seeds={case.id: f"{time.monotonic_ns() & (2**64 - 1):016x}" for case in card.cases},
        timeout_s=30.0,
    )
