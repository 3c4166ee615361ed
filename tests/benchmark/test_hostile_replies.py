"""Whatever a candidate's process answers, the judge comes to an end, and passes only what is right."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

import attempt_factory as make
from fake_worker import Candidate, Oracle, answer
from mini_kv.benchmark import TimedSubject
from mini_kv.benchmark.case_timing import finish_case, take_case
from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.benchmark import KernelWitness
from mini_kv.core.records.card import BenchmarkPlan, Case, CaseKind, Contract, Raises
from mini_kv.core.records.results import Status
from mini_kv.correctness import Subject
from mini_kv.correctness.cases import run_cases
from mini_kv.system.conversation import Conversation
from mini_kv.system.oracle_client import OracleClient
from mini_kv.system.workers import Answer, Lost

CASES = (
    Case(id="core_3", kind=CaseKind.CORE, params={"n": 3}),
    Case(id="core_8", kind=CaseKind.CORE, params={"n": 8}),
    Case(
        id="illegal_odd",
        kind=CaseKind.ILLEGAL,
        params={"n": 101},
        raises=Raises(exception="RuntimeError", message="must be even"),
    ),
    Case(id="timed", kind=CaseKind.BENCHMARK, params={"n": 40}),
)
CARD = make.card(
    cases=CASES,
    contract=Contract(opcheck=False, gradcheck=False, secret_shapes=False),
    benchmark=BenchmarkPlan(
        case_ids=("timed",), primary_case_id="timed", warmup=1, iterations=3, repeats=2, cache="hot"
    ),
)
SEEDS = {case.id: f"{position:016x}" for position, case in enumerate(CASES)}

INTEGERS = st.integers(-3, 40) | st.integers(-(1 << 63), 1 << 63)
TIMES = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -1.0, 1e-310, 1e300])
WORDS = st.sampled_from(["float32", "cpu", "cuda:0", "meta", "RuntimeError", "double: n must be even", ""])
OUTPUT: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    shape=st.lists(INTEGERS, max_size=3),
    strides=st.lists(INTEGERS, max_size=3),
    storage_offset=INTEGERS,
    dtype=WORDS,
    device=WORDS,
    aliases_input=st.none() | INTEGERS,
    blob=st.none() | INTEGERS,
)


def tagged(kind: type[p.Reply], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(dict, type=st.just(str(kind.__struct_config__.tag)), **fields)


DOCUMENTS = st.one_of(
    tagged(p.Done),
    tagged(p.Failed, code=WORDS, message=WORDS),
    tagged(p.Raised, types=st.lists(WORDS, max_size=3), message=WORDS, device_lost=st.booleans()),
    tagged(
        p.Ran,
        outputs=st.lists(OUTPUT, max_size=3),
        input_blobs=st.lists(INTEGERS, max_size=3),
        guard_blobs=st.lists(INTEGERS, max_size=3),
        stray_writes=INTEGERS,
    ),
    tagged(p.Recalled),
    tagged(
        p.Timed,
        samples_us=st.lists(TIMES, max_size=4),
        launch_exposed=st.lists(INTEGERS, max_size=3),
        kept=st.lists(INTEGERS, max_size=3),
        calls_per_sample=INTEGERS,
        floor_us=TIMES,
        tick_us=TIMES,
    ),
    tagged(p.TimedOutput, argument_set=INTEGERS, outputs=st.lists(OUTPUT, max_size=2)),
    tagged(p.TimedInputs),
    tagged(p.ContractAnswer, results=st.dictionaries(WORDS, st.none() | WORDS, max_size=2)),
    tagged(
        p.KernelsWitnessed,
        witness=st.just(
            msgspec.to_builtins(KernelWitness(kernel_us=1.0, samples_us=(), marker_us=0.5, kernels=()))
        ),
    ),
)
PAYLOADS = st.lists(st.binary(max_size=200) | st.sampled_from([12, 32, 160, 172]).map(bytes), max_size=4)
LOST = Lost(code="CRASHED", message="the process died from signal SIGSEGV", output="")


@dataclass(kw_only=True)
class Seat(Conversation):
    """Answers as a sound candidate does, but for the answers whose numbers are in ``instead``."""

    instead: dict[int, Answer | Lost]
    asked: int = 0
    number: int = 1
    losses: int = 0
    occupied: bool = True
    pid: int = field(default_factory=os.getpid)
    candidate: Candidate = field(default_factory=Candidate)
    hostile: list[p.Request] = field(default_factory=list)

    def ask(
        self, message: p.Request, payloads: Sequence[Any] = (), *, timeout_s: float, max_reply_bytes: int = 0
    ) -> Answer | Lost:
        position, self.asked = self.asked, self.asked + 1
        reply, out = answer(self.candidate, message, [bytearray(raw) for raw in payloads])
        if position not in self.instead:
            return Answer(reply=reply, payloads=[bytearray(raw) for raw in out])
        self.hostile.append(message)
        return self.instead[position]

    def retire(self) -> None:
        self.number += 1

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()


class Trusted(OracleClient):
    """The oracle, in this process."""

    def __init__(self) -> None:
        self._oracle = Oracle()

    def ask(self, message: p.Request, payloads: Sequence[Any] = (), **_: Any) -> Answer:
        reply, out = answer(self._oracle, message, [bytearray(raw) for raw in payloads])
        return Answer(reply=reply, payloads=[bytearray(raw) for raw in out])

    def audit(self, key: str) -> p.CaseAudited:
        return p.CaseAudited(element_count=4, passed=())


def heard(document: dict[str, Any], payloads: list[bytes]) -> Answer | Lost:
    """Return what the judge has of an answer: the protocol refuses the rest, and that worker is lost."""
    try:
        reply = p.decode_reply(msgspec.json.encode(document))
    except p.ProtocolError as error:
        return Lost(code="PROTOCOL_VIOLATION", message=str(error), output="")
    return Answer(reply=reply, payloads=[bytearray(raw) for raw in payloads])


ANSWERS = st.builds(heard, DOCUMENTS, PAYLOADS) | st.just(LOST)


@given(st.dictionaries(st.integers(0, 14), ANSWERS, min_size=1, max_size=3))
@example(
    {0: heard({"type": "ran", "outputs": [], "input_blobs": [], "guard_blobs": [-1], "stray_writes": 0}, [])}
)
def test_no_answer_to_a_case_breaks_the_judge_or_passes(instead: dict[int, Answer | Lost]) -> None:
    seat = Seat(instead=instead)
    subject: Any = Subject(
        card=CARD,
        manifest=make.manifest(),
        device="cpu",
        oracle=Trusted(),  # type: ignore[arg-type]
        seat=seat,  # type: ignore[arg-type]
        secret_seeds=SEEDS,
        timeout_s=1.0,
    )
    results = run_cases(subject, silent)
    assert [result.case_id for result in results] == [case.id for case in CASES]
    # The last call is the one that shows the process usable after its refusal, and counts against that case.
    spoiled = [message for message in seat.hostile if isinstance(message, p.RunCase)]
    if any(message.key != "illegal_odd" for message in spoiled):
        assert any(result.status is Status.FAIL for result in results), results


def subject_of(seat: Seat) -> TimedSubject:
    return TimedSubject(
        card=CARD,
        device="cpu",
        oracle=Trusted(),  # type: ignore[arg-type]
        seat=seat,  # type: ignore[arg-type]
        secret_seeds=SEEDS,
        gpu=None,
        timeout_s=1.0,
        chooser=random.Random(1),
    )


@given(st.dictionaries(st.integers(0, 40), ANSWERS, min_size=1, max_size=3))
def test_no_answer_to_a_timed_batch_breaks_the_judge(instead: dict[int, Answer | Lost]) -> None:
    seat = Seat(instead=instead)
    subject = subject_of(seat)
    timed = take_case(subject, CARD.case("timed"))
    record = finish_case(
        subject, timed, p.TimerMeasured(floor_us=0.1, tick_us=0.001, copy_gb_per_s=1.0, l2_bytes=None)
    )
    refused = [message for message in seat.hostile if isinstance(message, p.TimeBatch | p.FetchTimedOutput)]
    if any(isinstance(instead[at], Lost) for at in instead if at < seat.asked) and refused:
        assert record.status is Status.FAIL or record.timing_trust == "unverified", record
    assert msgspec.json.encode(record)


def test_the_stubs_of_this_file_pass_when_nothing_is_hostile() -> None:
    """The properties above would hold for stubs that fail always."""
    seat = Seat(instead={})
    subject: Any = Subject(
        card=CARD,
        manifest=make.manifest(),
        device="cpu",
        oracle=Trusted(),  # type: ignore[arg-type]
        seat=seat,  # type: ignore[arg-type]
        secret_seeds=SEEDS,
        timeout_s=1.0,
    )
    results = run_cases(subject, silent)
    assert [result.status for result in results] == [Status.PASS] * 4
    seat = Seat(instead={})
    subject = subject_of(seat)
    timed = take_case(subject, CARD.case("timed"))
    record = finish_case(
        subject,
        timed,
        p.TimerMeasured(floor_us=0.1, tick_us=0.001, copy_gb_per_s=1.0, l2_bytes=None),
    )
    assert record.status is Status.PASS
