"""Pairs of processes: order, net times, and whose fault a missing time is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mini_kv.benchmark.pair_timing import (
    MAX_MOVED_BYTES,
    PairInputs,
    batch_order,
    faster_than_verified,
    measure_pair,
    pair_plan,
)
from mini_kv.benchmark.samples import Sets, SideLost, TimedSubject
from mini_kv.core import protocol as p
from mini_kv.core.records.card import BenchmarkPlan, Case, CaseKind, Contract
from mini_kv.core.records.correctness import Numerics
from mini_kv.core.records.pairs import PairName, PairResult
from mini_kv.core.tensors import OutputSpec
from mini_kv.system.conversation import Conversation
from mini_kv.system.oracle_client import OracleClient
from mini_kv.system.workers import Answer, Lost

CASE = Case(id="bench", kind=CaseKind.BENCHMARK, params={})
PLAN = pair_plan(BenchmarkPlan(case_ids=("bench",), primary_case_id="bench"), repeats=4, iterations=50)


class FakeSeat(Conversation):
    """A candidate's seat whose clock reads ``time_us`` above ``floor_us``, through ticks of 32 ns."""

    occupied = True

    def __init__(self, log: list[str], name: str, time_us: float, floor_us: float, **faults: Any) -> None:
        self.log, self.name, self.time_us, self.floor_us, self.faults = log, name, time_us, floor_us, faults

    def ask(self, message: p.Request, payloads: object = (), **_: object) -> Answer | Lost:
        match message:
            case p.TimeBatch():
                self.log.append(self.name)
                return self._time(message)
            case p.FetchTimedOutput():
                spec = OutputSpec(
                    shape=(1,),
                    strides=(1,),
                    storage_offset=0,
                    dtype="float32",
                    device="cuda:0",
                    aliases_input=None,
                    blob=0,
                )
                return _answer(p.TimedOutput(argument_set=0, outputs=(spec,)))
            case _:
                return _answer(p.Done())

    def _time(self, message: p.TimeBatch) -> Answer | Lost:
        if "lost" in self.faults:
            return Lost(code="CRASHED", message="the process died", output="")
        chance = random.Random(len(self.log))
        samples = tuple(
            0.032 * math.floor((self.time_us + self.floor_us) / 0.032 + chance.random())
            for _ in range(message.iterations)
        )
        exposed = range(message.iterations) if "exposed" in self.faults else ()
        return _answer(
            p.Timed(
                samples_us=samples,
                launch_exposed=tuple(exposed),
                kept=(message.iterations - 1,),
                calls_per_sample=1,
                floor_us=self.floor_us,
                tick_us=0.032,
            )
        )


class FakeOracle(OracleClient):
    def __init__(self, mismatches: int = 0) -> None:
        self.mismatches = mismatches

    def ask(self, message: p.Request, payloads: object = (), **_: object) -> Answer:
        if isinstance(message, p.Compare):
            numerics = Numerics(
                element_count=1,
                mismatch_count=self.mismatches,
                nonfinite_mismatch_count=0,
                max_abs_error=None,
                max_rel_error=None,
                max_error_eps=None,
                reference_max_abs_error=None,
                reference_max_error_eps=None,
                first_mismatches=(),
            )
            return _answer(p.Compared(numerics=numerics))
        return _answer(p.Done())


def _answer(reply: p.Reply) -> Answer:
    return Answer(reply=reply, payloads=[bytearray(4)])


KEYS = ("timed/bench/0", "timed/bench/1", "timed/bench/2")


def _measure(
    a: FakeSeat,
    b: FakeSeat,
    pair: int = 0,
    mismatches: int = 0,
    keys: tuple[str, ...] = KEYS[:1],
    oracle: FakeOracle | None = None,
    payloads: Sequence[bytearray] = (),
) -> PairResult:
    made = p.CaseMade(
        arguments=(),
        expected=(p.ExpectedOutput(shape=(1,), dtype="float32", device="cuda:0"),),
        bytes_moved=None,
        flops=None,
        reference_within_tolerance=True,
    )

    def subject(seat: FakeSeat) -> TimedSubject:
        return TimedSubject(
            card=cast(Any, SimpleNamespace(contract=Contract())),
            device="cuda",
            oracle=cast(Any, oracle or FakeOracle(mismatches)),
            seat=cast(Any, seat),
            secret_seeds={},
            gpu=None,
            timeout_s=1.0,
            chooser=random.Random(0),
        )

    inputs = PairInputs(sets=Sets(made=(made,) * len(keys), keys=keys), payloads=payloads)
    seated: dict[PairName, TimedSubject] = {"a": subject(a), "b": subject(b)}
    return measure_pair(seated, CASE, inputs, PLAN, pair=pair, labels=("old", "new"))


def test_a_slowdown_below_one_tick_shows_and_the_processes_offsets_do_not() -> None:
    log: list[str] = []
    result = _measure(FakeSeat(log, "a", 2.0, 3.17), FakeSeat(log, "b", 2.02, 3.29))
    assert result.log_ratio == pytest.approx(math.log(1.01), abs=0.003)
    assert (result.a.label, result.b.label) == ("old", "new")
    assert result.b.net_us == pytest.approx(2.02, abs=0.006)


def test_the_judge_draws_which_call_of_a_sample_is_kept_and_judges_that_one() -> None:
    """Only the last call of a sample was looked at: a candidate could work on that one alone."""
    asked: list[p.TimeBatch] = []
    judged: list[str] = []

    class Seat(FakeSeat):
        def _time(self, message: p.TimeBatch) -> Answer | Lost:
            asked.append(message)
            answer = super()._time(message)
            assert isinstance(answer, Answer) and isinstance(answer.reply, p.Timed)
            return _answer(msgspec.structs.replace(answer.reply, calls_per_sample=4))

    class Oracle(FakeOracle):
        def ask(self, message: p.Request, payloads: object = (), **rest: object) -> Answer:
            if isinstance(message, p.Compare):
                judged.append(message.key)
            return super().ask(message, payloads, **rest)

    log: list[str] = []
    _measure(Seat(log, "a", 2.0, 3.0), Seat(log, "b", 2.0, 3.0), keys=KEYS, oracle=Oracle())
    assert len({request.kept_at for request in asked}) == PLAN.repeats  # the two draw alike here
    last = dict(zip(log, asked, strict=True))
    expected = [
        KEYS[((PLAN.iterations - 1) * 4 + p.kept_call(last[name].kept_at, 4)) % len(KEYS)] for name in "ab"
    ]
    assert judged == expected


@pytest.mark.parametrize(("payload_bytes", "moves"), [(16, True), (MAX_MOVED_BYTES + 1, False)])
def test_every_repeat_of_a_pair_has_its_inputs_elsewhere(payload_bytes: int, moves: bool) -> None:
    asked: list[tuple[str, bool]] = []

    class Seat(FakeSeat):
        def _time(self, message: p.TimeBatch) -> Answer | Lost:
            asked.append((self.name, message.elsewhere))
            return super()._time(message)

    class Payload(bytearray):
        def __len__(self) -> int:
            return payload_bytes

    log: list[str] = []
    _measure(Seat(log, "a", 2.0, 3.0), Seat(log, "b", 2.0, 3.0), payloads=[Payload()])
    for name in "ab":
        assert [elsewhere for side, elsewhere in asked if side == name] == [False, *[moves] * 3]


def test_order_is_mirrored_and_odd_pairs_begin_with_the_other_side() -> None:
    for pair, expected in ((0, "abbaabba"), (1, "baabbaab")):
        log: list[str] = []
        result = _measure(FakeSeat(log, "a", 2.0, 3.0), FakeSeat(log, "b", 2.0, 3.0), pair)
        assert "".join(log) == expected
        assert result.first == expected[0]
    order = batch_order("a", 4)
    assert sum(i for i, name in enumerate(order) if name == "a") == sum(
        i for i, name in enumerate(order) if name == "b"
    )


@pytest.mark.parametrize(
    ("fault", "code"), [({"lost": True}, "CRASHED"), ({"exposed": True}, "LAUNCH_EXPOSED")]
)
def test_the_faulty_side_is_named(fault: dict[str, bool], code: str) -> None:
    log: list[str] = []
    with pytest.raises(SideLost) as lost:
        _measure(FakeSeat(log, "a", 2.0, 3.0), FakeSeat(log, "b", 2.0, 3.0, **fault))
    assert (lost.value.name, lost.value.finding.code) == ("b", code)


def test_a_call_no_longer_than_an_empty_one_is_no_time() -> None:
    log: list[str] = []
    with pytest.raises(SideLost) as lost:
        _measure(FakeSeat(log, "a", -0.5, 3.0), FakeSeat(log, "b", 2.0, 3.0))
    assert (lost.value.name, lost.value.finding.code) == ("a", "BELOW_FLOOR")


def test_a_wrong_output_of_a_timed_call_is_found() -> None:
    log: list[str] = []
    with pytest.raises(SideLost) as lost:
        _measure(FakeSeat(log, "a", 2.0, 3.0), FakeSeat(log, "b", 2.0, 3.0), mismatches=1)
    assert lost.value.finding.code == "TIMED_OUTPUT_WRONG"


def test_a_candidate_that_is_fast_in_pairs_only_gives_no_ratio() -> None:
    """One that remembered results in the pairs was called faster by 165 %, though it was 2.6 times slower."""
    log: list[str] = []
    result = _measure(FakeSeat(log, "a", 30.0, 3.0), FakeSeat(log, "b", 12.0, 3.0))
    assert faster_than_verified(result, (30.0, 13.0), "cuda") == ()
    assert faster_than_verified(result, (None, None), "cuda") == ()
    ((label, finding),) = faster_than_verified(result, (30.0, 80.0), "cuda")
    assert (label, finding.code) == ("new", "FASTER_THAN_VERIFIED")
    assert faster_than_verified(result, (30.0, math.nan), "cpu")
