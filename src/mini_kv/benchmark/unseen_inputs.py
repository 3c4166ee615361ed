"""Single calls on inputs never seen before: a candidate that remembers results is slow only there.

On the CPU only: a CUDA pilot touches every set, and there a cold time below the memory bus is what
remembering shows as. ``docs/method.md`` ("The timer") gives the argument, the error rates and what a
candidate that stops remembering meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.benchmark.samples import (
    CaseLost,
    Sets,
    TimedSubject,
    check_outputs,
    expect_reply,
    fetch_output,
    held,
    made_output_bytes,
    shifted,
    timed_seed,
)
from mini_kv.benchmark.second_look import again_us, not_reproduced
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import Series
from mini_kv.core.records.card import Case
from mini_kv.core.records.results import Finding
from mini_kv.core.rules.statistics import median
from mini_kv.core.tensors import Argument, input_bytes
from mini_kv.core.time_limits import DROP_TIMING_TIMEOUT_S, TIMED_CASE_TIMEOUT_S
from mini_kv.system.oracle_client import MadeCase

FRESH_SETS = 5
FRESH_TRIES = 3
_FIRST_SEED = 1_000  # far from the rotating sets' positions
# What fresh inputs may cost an honest call: it reads from a farther cache what rotating inputs have in a
# nearer one. A sample on its own also pays the clock and a cold branch predictor.
FRESH_FACTOR = 2.5
FRESH_SLACK_US = 20.0
# Of what far memory costs a plain copy here: an operator may meet more of it, or reach it less evenly.
FAR_FACTOR = 1.5
GROUP_BYTES = 4 << 20
MAX_CALLS_AT_ONCE = 32
SHORT_CALL_US = 200.0


@dataclass(frozen=True, kw_only=True)
class FreshTry:
    """Calls on fresh inputs, and the P50 of rotating ones before and after them; microseconds a call.

    ``calls`` of them are one sample. ``far_us`` is how much longer calls that only move the same bytes take
    on fresh inputs, by the oracle.
    """

    fresh_us: tuple[float, ...]
    before_us: float
    after_us: float
    calls: int = 1
    far_us: float = 0.0

    def clears(self, claim_us: float) -> bool:
        """Say whether the fastest fresh call is what the claim bears."""
        return min(self.fresh_us) <= self._limit_us(claim_us)

    def suspects(self, claim_us: float) -> bool:
        """Say whether it is more than even the lesser of the batches next to it bears. NaN is a fault."""
        return not min(self.fresh_us) <= self.limit_us(claim_us)

    def limit_us(self, claim_us: float) -> float:
        """Return what the fastest fresh call of an honest candidate may take.

        A batch that was fast shows that calls were fast then: the other one's word does not count, since
        load, or a candidate that has met new inputs, may have made it slow.
        """
        return self._limit_us(max(claim_us, min(self.before_us, self.after_us)))

    def _limit_us(self, around_us: float) -> float:
        return FRESH_FACTOR * around_us + FAR_FACTOR * self.far_us + FRESH_SLACK_US / self.calls


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What fresh inputs brought to light: faults, and a reason not to call the case stable."""

    wrong: tuple[Finding, ...] = ()
    doubts: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Fresh:
    timed_as: str
    case_ids: tuple[str, ...]
    sets: Sets
    calls: int
    argument_sets: tuple[tuple[tuple[Argument, ...], ...], ...]
    payloads: tuple[list[bytearray], ...]


def remembers(subject: TimedSubject, case: Case, candidate: Series) -> Remembered:
    """Try calls on fresh argument sets and check one output a try.

    Raises :class:`CaseLost` where the candidate gives no answer.
    """
    tries: list[FreshTry] = []
    while subject.device == "cpu" and len(tries) < FRESH_TRIES:
        fresh = _make(subject, case, len(tries), candidate.p50_us)
        if fresh is None:
            break  # these parameters were made before: the card's fault, if any, is known by now
        try:
            taken, wrong = _try(subject, case, fresh, candidate)
        except CaseLost:
            _release(subject, fresh)
            raise
        # Not after Ctrl-C or a lost oracle: nobody would answer, or only when the running batch has ended.
        _release(subject, fresh)
        if wrong:
            return Remembered(wrong=wrong)
        tries.append(taken)
        if taken.clears(candidate.p50_us):
            break
    return Remembered(
        wrong=judge_fresh(tries, candidate.p50_us), doubts=judge_claim_again(tries, candidate.p50_us)
    )


def _try(
    subject: TimedSubject, case: Case, fresh: _Fresh, candidate: Series
) -> tuple[FreshTry, tuple[Finding, ...]]:
    before_us = again_us(subject, case, candidate)
    fresh_us = [_time_one(subject, fresh, position) for position in range(len(fresh.case_ids))]
    fastest = min(range(len(fresh_us)), key=fresh_us.__getitem__)
    caught = [
        fetch_output(
            subject,
            p.FetchTimedOutput(case_id=fresh.case_ids[fastest], sample=sample),
            fresh.sets,
            fastest * fresh.calls + sample,
        )
        for sample in range(fresh.calls)
    ]
    after_us = again_us(subject, case, candidate)
    taken = FreshTry(
        fresh_us=tuple(fresh_us),
        before_us=before_us,
        after_us=after_us,
        calls=fresh.calls,
        far_us=_far_us(subject, fresh),
    )
    return taken, check_outputs(subject, fresh.sets, caught)


def _far_us(subject: TimedSubject, fresh: _Fresh) -> float:
    """Return by how much longer moving a call's bytes takes on the fresh sets than on rotating ones."""
    longer: list[float] = []
    with held(subject, (subject.seat, *subject.waiting)):
        for start in range(0, len(fresh.sets.keys), fresh.calls):
            keys = fresh.sets.keys[start : start + fresh.calls]
            copies = subject.oracle.time_copies(fresh.timed_as, keys, timeout_s=TIMED_CASE_TIMEOUT_S)
            longer.append(copies.fresh_us - copies.rotating_us)
    return max(median(longer), 0.0)


def touched_bytes(made: p.CaseMade) -> int:
    """Return the bytes of all inputs and outputs of a call."""
    return input_bytes(made.arguments) + made_output_bytes(made)


def calls_at_once(made: p.CaseMade, claim_us: float) -> int:
    """Return how many calls on fresh inputs are one sample: several where one is short.

    The first call after a request finds its code in no cache, all the more where it goes through Python and
    others keep the machine busy: 10 us were read as 101.
    """
    if claim_us >= SHORT_CALL_US:
        return 1
    return max(1, min(MAX_CALLS_AT_ONCE, GROUP_BYTES // max(touched_bytes(made), 1)))


def _time_one(subject: TimedSubject, fresh: _Fresh, position: int) -> float:
    ready = p.ReadyForUnseen(case_id=fresh.timed_as, calls=fresh.calls)
    expect_reply(subject.seat.ask(ready, timeout_s=subject.timeout_s, max_reply_bytes=0), p.Done)
    outcome = subject.seat.ask(
        p.TimeUnseen(case_id=fresh.case_ids[position], argument_sets=fresh.argument_sets[position]),
        fresh.payloads[position],
        timeout_s=subject.timeout_s,
        max_reply_bytes=0,
    )
    timed = expect_reply(outcome, p.Timed)
    if len(timed.samples_us) != 1 or sorted(timed.kept) != list(range(fresh.calls)):
        message = (
            f"the worker gave {len(timed.samples_us)} samples and kept {len(timed.kept)} results of "
            f"{fresh.calls} calls that are one sample"
        )
        raise CaseLost(Finding(code=Code.SHORT_TRANSCRIPT, message=message))
    return timed.samples_us[0]


def _release(subject: TimedSubject, fresh: _Fresh) -> None:
    subject.oracle.forget(*fresh.sets.keys, timeout_s=DROP_TIMING_TIMEOUT_S)
    for case_id in fresh.case_ids:
        subject.seat.drop_timing(case_id, timeout_s=DROP_TIMING_TIMEOUT_S)


def judge_fresh(tries: Sequence[FreshTry], claim_us: float) -> tuple[Finding, ...]:
    """Accuse where every try suspects. Pure; NaN is a fault."""
    if not tries or not all(one.suspects(claim_us) for one in tries):
        return ()
    best = min(tries, key=lambda one: min(one.fresh_us) / one.limit_us(claim_us))
    return (
        Finding(
            code=Code.REPEATED_INPUTS_FASTER,
            message=f"a call on inputs never seen before takes {min(best.fresh_us):.2f} us at best; "
            f"{claim_us:.2f} us where inputs return, {min(best.before_us, best.after_us):.2f} us next to it "
            f"(at most {best.limit_us(claim_us):.2f} us would be cold caches): results are remembered",
            evidence=tuple(
                f"fresh {', '.join(f'{value:.2f}' for value in one.fresh_us)} us; "
                f"rotating {one.before_us:.2f} us before, {one.after_us:.2f} us after; "
                f"{one.far_us:.2f} us for far memory"
                for one in tries
            ),
        ),
    )


def judge_claim_again(tries: Sequence[FreshTry], claim_us: float) -> tuple[Finding, ...]:
    """Doubt a claim that no try has cleared, and not every try suspects. Pure.

    The machine got busy, or the candidate slow.
    """
    if not tries or any(one.clears(claim_us) for one in tries) or judge_fresh(tries, claim_us):
        return ()
    slowest_us = max(min(one.before_us, one.after_us) for one in tries)
    return (not_reproduced(claim_us, slowest_us),)


def _make(subject: TimedSubject, case: Case, number: int, claim_us: float) -> _Fresh | None:
    """Have the oracle make groups of sets that no call has met; ``None`` where it cannot make them."""
    first = _make_one(subject, case, f"{number}/0", number * FRESH_SETS * MAX_CALLS_AT_ONCE)
    if first is None:
        return None
    made = [first]
    calls = calls_at_once(first.reply, claim_us)
    for position in range(1, FRESH_SETS * calls):
        seed = number * FRESH_SETS * MAX_CALLS_AT_ONCE + position
        further = _make_one(subject, case, f"{number}/{position}", seed)
        if further is None:
            return None
        made.append(further)
    argument_sets: list[tuple[tuple[Argument, ...], ...]] = []
    payloads: list[list[bytearray]] = []
    for start in range(0, len(made), calls):
        group: list[tuple[Argument, ...]] = []
        joined: list[bytearray] = []
        for one in made[start : start + calls]:
            group.append(shifted(one.reply.arguments, len(joined)))
            joined += one.payloads
        argument_sets.append(tuple(group))
        payloads.append(joined)
    return _Fresh(
        timed_as=case.id,
        case_ids=tuple(f"{case.id}/fresh/{group}" for group in range(FRESH_SETS)),
        sets=Sets(
            made=tuple(one.reply for one in made),
            keys=tuple(f"fresh/{case.id}/{number}/{position}" for position in range(len(made))),
            storages=(),
        ),
        calls=calls,
        argument_sets=tuple(argument_sets),
        payloads=tuple(payloads),
    )


def _make_one(subject: TimedSubject, case: Case, name: str, position: int) -> MadeCase | None:
    seed = timed_seed(subject.secret_seeds[case.id], _FIRST_SEED + position)
    key = f"fresh/{case.id}/{name}"
    made = subject.oracle.make_case(key, case, seed, timeout_s=TIMED_CASE_TIMEOUT_S, lenient=True)
    return made if isinstance(made, MadeCase) else None
