"""A run without processes: the real seats, and workers for them that live in this one and answer at once.

``Crew`` stands in for the nursery. Its workers play the oracle and the candidate of ``fake_worker`` for the
operator ``double(x) = 2 * x``; what is said to them passes through the protocol's own encoder, as on a
wire. Every request is written down with who was stopped meanwhile. A behaviour may change the answer to one
kind of request, or lose the worker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from fake_worker import SCHEMA, Candidate, Oracle, answer
from mini_kv.benchmark.samples import Caught, Sets, Taken, TimedSubject, hand_over, make_sets, take_repeats
from mini_kv.core import protocol as p
from mini_kv.core.records.card import (
    BenchmarkPlan,
    CandidateManifest,
    Case,
    CaseKind,
    Contract,
    Raises,
    TaskCard,
    Tolerance,
)
from mini_kv.core.records.pairs import PairName
from mini_kv.correctness import Subject
from mini_kv.system.seats import CandidateSeat, OracleSeat
from mini_kv.system.workers import Answer, Lost, Nursery

CLOSED = Lost(code="CLOSED", message="the worker was closed", output="")
CRASHED = Lost(code="CRASHED", message="the process died from signal SIGSEGV", output="free(): invalid size")
LOAD = p.LoadCandidate(
    library="fake.so",
    library_sha256="a" * 64,
    python=None,
    dispatcher="fixture_double::double",
    schema=SCHEMA.partition("::")[2],
)
# Above every number that Linux gives to a process.
NO_PROCESS = 1 << 23
TIMED = "timed"
SECRET_SEED = "00ff00ff00ff00ff"
PLAN = BenchmarkPlan(
    case_ids=(TIMED,), primary_case_id=TIMED, warmup=7, iterations=10, repeats=5, cache="hot"
)


def double_card(*, plan: dict[str, Any] | None = None, **changes: Any) -> TaskCard:
    """Return a card with two core cases, an illegal one and a timed one; ``plan`` changes its benchmark."""
    made = TaskCard(
        schema_version="1.0.0",
        task_id="double",
        operator="double",
        operator_version="1.0.0",
        reference="fixture_reference:reference",
        input_factory="fixture_reference:make_inputs",
        candidate="candidates/double/v0",
        device="cpu",
        cases=(
            Case(id="core_4", kind=CaseKind.CORE, params={"n": 4}),
            Case(id="core_6", kind=CaseKind.CORE, params={"n": 6}),
            Case(
                id="illegal_odd",
                kind=CaseKind.ILLEGAL,
                params={"n": 101},
                raises=Raises(exception="RuntimeError", message="must be even"),
            ),
            Case(id=TIMED, kind=CaseKind.BENCHMARK, params={"n": 40}),
        ),
        tolerances={"float32": Tolerance(rtol=1e-6, atol=0.0)},
        contract=Contract(opcheck=False, gradcheck=False),
        benchmark=msgspec.structs.replace(PLAN, **(plan or {})),
    )
    return msgspec.structs.replace(made, **changes)


def double_manifest(**changes: Any) -> CandidateManifest:
    """Return the manifest of a candidate for ``double`` on the CPU, float32 alone."""
    made = CandidateManifest(
        schema_version="1.0.0",
        candidate_id="double_v0",
        operator="double",
        version="0.1.0",
        dispatcher=LOAD.dispatcher,
        schema=LOAD.schema,
        sources=("op.cpp",),
        backends=("cpu",),
        autograd=False,
        kernel_name_regex="double",
        dtypes=("float32",),
    )
    return msgspec.structs.replace(made, **changes)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request to a worker (numbered from 0), its limits, and the roles that were stopped meanwhile."""

    role: str
    worker: int
    request: p.Request
    payloads: tuple[bytes, ...]
    timeout_s: float
    max_reply_bytes: int
    stopped: frozenset[str]


# Gets what was asked and the honest answer; returns what is answered instead.
Behaviour = Callable[[Asked, Answer], Answer | Lost]


def changed(found: Answer, **fields: Any) -> Answer:
    """Return the answer with other values in its reply."""
    return Answer(reply=msgspec.structs.replace(found.reply, **fields), payloads=found.payloads)


def said(reply: p.Reply, *payloads: bytes) -> Answer:
    """Return an answer."""
    return Answer(reply=reply, payloads=[bytearray(payload) for payload in payloads])


def spoilt(found: Answer) -> Answer:
    """Return the answer with another first byte in its first payload."""
    first = bytearray(found.payloads[0])
    first[0] ^= 0x01
    return Answer(reply=found.reply, payloads=[first, *found.payloads[1:]])


class WorkerHere:
    """A worker without a process, with the methods that a seat uses."""

    def __init__(self, crew: Crew, role: str, number: int) -> None:
        self._crew, self._role = crew, role
        self._actor = Oracle() if role == "oracle" else Candidate()
        self._lost: Lost | None = None
        self._number = number
        self.pid = NO_PROCESS + number

    @property
    def alive(self) -> bool:
        return self._lost is None

    def request(
        self,
        message: p.Request,
        payloads: Sequence[Any] = (),
        *,
        timeout_s: float,
        max_reply_bytes: int = p.DEFAULT_MAX_FRAME_BYTES,
    ) -> Answer | Lost:
        if self._lost is not None:
            return self._lost
        assert self._role not in self._crew.stopped, f"{self._role} was asked while it was stopped"
        asked = Asked(
            role=self._role,
            worker=self._number,
            request=p.decode_request(p.encode_message(message)),
            payloads=tuple(map(bytes, payloads)),
            timeout_s=timeout_s,
            max_reply_bytes=max_reply_bytes,
            stopped=frozenset(self._crew.stopped),
        )
        self._crew.log.append(asked)
        reply, out = answer(self._actor, asked.request, [bytearray(raw) for raw in asked.payloads])
        outcome = self._crew.behave(asked, said(reply, *out))
        if isinstance(outcome, Answer):
            outcome = _received(outcome, max_reply_bytes)
        if isinstance(outcome, Lost):
            self._lost = outcome
        return outcome

    @contextmanager
    def held(self) -> Iterator[None]:
        self._crew.stopped.append(self._role)
        try:
            yield
        finally:
            self._crew.stopped.remove(self._role)

    def bring(self, request: p.LoadCandidate) -> p.LoadCandidate:
        return request

    def kill(self) -> None:
        self._lost = self._lost or CLOSED

    close = kill


def _received(outcome: Answer, limit: int) -> Answer | Lost:
    if sum(map(len, outcome.payloads)) > limit:
        return Lost(code="PROTOCOL_VIOLATION", message=f"payloads of more than {limit} bytes", output="")
    try:
        return Answer(reply=p.decode_reply(p.encode_message(outcome.reply)), payloads=outcome.payloads)
    except p.ProtocolError as error:
        return Lost(code="PROTOCOL_VIOLATION", message=str(error), output="")


@dataclass
class Crew:
    """Starts workers for seats, and remembers all that was asked of them, in order."""

    log: list[Asked] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    workers: list[WorkerHere] = field(default_factory=list)
    behaviours: dict[tuple[str, type], Behaviour] = field(default_factory=dict)

    def start(self, role: str) -> WorkerHere:
        self.workers.append(WorkerHere(self, role, len(self.workers)))
        return self.workers[-1]

    def sweep(self) -> int:
        return 0

    def on(self, role: str, kind: type, behaviour: Behaviour) -> None:
        """Have workers of a role answer this kind of request otherwise."""
        self.behaviours[role, kind] = behaviour

    def behave(self, asked: Asked, honest: Answer) -> Answer | Lost:
        behaviour = self.behaviours.get((asked.role, type(asked.request)))
        return honest if behaviour is None else behaviour(asked, honest)

    def asked(self, kind: type, role: str | None = None) -> list[Asked]:
        """Return what was asked of that kind, of one role or of all."""
        return [one for one in self.log if isinstance(one.request, kind) and role in (None, one.role)]

    def oracle(self) -> OracleSeat:
        """Return an oracle's seat."""
        return OracleSeat(cast(Nursery, self), p.Hello(device="cpu", threads=1))

    def seat(self, role: str = "candidate") -> CandidateSeat:
        """Return a candidate's seat whose worker has opened the library; forgets that it was asked to."""
        seat = CandidateSeat(cast(Nursery, self), p.Hello(device="cpu", threads=1), role)
        assert isinstance(seat.greet(), p.Ready)
        assert isinstance(seat.load(LOAD), p.CandidateLoaded)
        self.log.clear()
        return seat

    def timed(self, **changes: Any) -> TimedSubject:
        """Return what a timed case of :func:`double_card` needs."""
        return TimedSubject(
            card=changes.pop("card", None) or double_card(),
            oracle=changes.pop("oracle", None) or self.oracle(),
            seat=changes.pop("seat", None) or self.seat(),
            **{
                "device": "cpu",
                "secret_seeds": {TIMED: SECRET_SEED},
                "gpu": None,
                "timeout_s": 2.0,
                "chooser": random.Random(7),
            }
            | changes,
        )

    def sides(self) -> dict[PairName, TimedSubject]:
        """Return two candidates, ``candidate`` and ``other``, with one oracle."""
        a = self.timed()
        return {"a": a, "b": self.timed(oracle=a.oracle, seat=self.seat("other"))}

    def subject(self, **changes: Any) -> Subject:
        """Return what the cases of :func:`double_card` need."""
        card = changes.pop("card", None) or double_card()
        return Subject(
            card=card,
            manifest=changes.pop("manifest", None) or double_manifest(),
            device="cpu",
            oracle=self.oracle(),
            seat=changes.pop("seat", None) or self.seat(),
            secret_seeds={case.id: SECRET_SEED for case in card.cases},
            timeout_s=2.0,
        )


def prepared(subject: TimedSubject) -> Sets:
    """Make the sets of the timed case and hand them to both sides."""
    case = subject.card.case(TIMED)
    sets, payloads = make_sets(subject, case)
    hand_over(subject, case, sets, payloads)
    return sets


def repeats(crew: Crew, **changes: Any) -> tuple[dict[str, Taken], list[Caught], list[str]]:
    """Take all repeats of the timed case: what both sides took, what was caught, whose turn it was."""
    subject = crew.timed(**changes)
    order: list[str] = []
    taken, caught = take_repeats(subject, subject.card.case(TIMED), prepared(subject), order)
    return taken, caught, order


def batch_requests(crew: Crew, role: str) -> list[p.TimeBatch]:
    """Return the batches that one role was asked for."""
    return [cast(p.TimeBatch, one.request) for one in crew.asked(p.TimeBatch, role)]


def timed_reply(**changes: Any) -> p.Timed:
    """Return a batch of two samples of four calls each, both kept."""
    made = p.Timed(
        samples_us=(10.0, 11.0),
        launch_exposed=(),
        kept=(0, 1),
        calls_per_sample=4,
        floor_us=0.5,
        tick_us=0.01,
    )
    return msgspec.structs.replace(made, **changes)
