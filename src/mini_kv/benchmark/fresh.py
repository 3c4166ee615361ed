"""Single calls on inputs never seen before: a candidate that remembers results is slow only there.

Timed calls rotate over a few argument sets, so that a look-up by address or by values would pass for a
fast operator. On the CPU only: a CUDA pilot touches every set, and there a cold time below the memory
bus is what remembering shows as.

Each set arrives with the request for its one call, and nothing is called in between: what stands in the
process before a call can be found there and worked out in advance, the more so where a warm-up calls first.
Short calls are timed several at once, each on a set of its own: what a call on its own costs beside them, for
which a fixed time is allowed, would hide them.
The fastest call decides, so its result is the one that the oracle looks at: none is worth skipping.

The test is one of ranks in time. A try takes a batch on rotating inputs, then one call on each of a few
fresh sets, then another batch on rotating inputs, within milliseconds. An honest call costs the same on
both kinds of inputs, up to what is allowed for below; so an honest candidate is suspected only if every
one of the fresh calls is stretched beyond :data:`FRESH_FACTOR` and neither batch around them is. Load
that lasts longer than the calls stretches a batch too; a shorter burst must hit all the calls and
neither neighbour, in each of :data:`FRESH_TRIES` tries on other inputs. One that remembers results meets
this every time. One that stops remembering after the plan makes the neighbours slow instead, and its
claim is not reproduced: that leaves the case unstable, as load does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_kv.benchmark.again import again_us, not_reproduced
from mini_kv.benchmark.samples import (
    CaseLost,
    Sets,
    TimedSubject,
    check_outputs,
    expect_reply,
    fetch_output,
    made_output_bytes,
    shifted,
    timed_seed,
)
from mini_kv.core import protocol as p
from mini_kv.core.benchmark import Series
from mini_kv.core.card import Case
from mini_kv.core.results import Finding
from mini_kv.core.tensors import Argument, input_bytes

FRESH_SETS = 5
FRESH_TRIES = 3
_FIRST_SEED = 1_000  # far from the rotating sets' positions
# What fresh inputs may cost an honest call: it is the first to read them after they were copied in, and
# what a core's own cache does not hold comes from memory, at 4 GB/s on a slow machine (an honest call over
# 8 MiB was seen at 3.4 times its time). A call on its own also pays the clock and a cold branch predictor.
FRESH_FACTOR = 3.0
FRESH_SLACK_US = 20.0
COLD_BYTES_PER_US = 4_000.0
CACHED_BYTES = 1 << 20
MAX_CALLS_AT_ONCE = 32
SHORT_CALL_US = 200.0


@dataclass(frozen=True, kw_only=True)
class FreshTry:
    """Calls on fresh inputs, and the P50 of rotating ones before and after them; microseconds a call."""

    fresh_us: tuple[float, ...]
    before_us: float
    after_us: float
    touched_bytes: int
    calls: int = 1

    def limit_us(self, claim_us: float) -> float:
        """Return what the fastest fresh call of an honest candidate may take, where ``calls`` are one sample.

        ``touched_bytes`` are those of all of these calls.
        """
        cold_us = max(self.touched_bytes - CACHED_BYTES, 0) / COLD_BYTES_PER_US
        around_us = max(claim_us, self.before_us, self.after_us)
        return FRESH_FACTOR * around_us + (FRESH_SLACK_US + cold_us) / self.calls


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What fresh inputs brought to light: faults, and a reason not to call the case stable."""

    wrong: tuple[Finding, ...] = ()
    doubts: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Fresh:
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
        if not judge_fresh(tries, candidate.p50_us):
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
    made = fresh.sets.made[0]
    taken = FreshTry(
        fresh_us=tuple(fresh_us),
        before_us=before_us,
        after_us=after_us,
        touched_bytes=fresh.calls * touched_bytes(made),
        calls=fresh.calls,
    )
    return taken, check_outputs(subject, fresh.sets, caught)


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
    return max(1, min(MAX_CALLS_AT_ONCE, CACHED_BYTES // max(touched_bytes(made), 1)))


def _time_one(subject: TimedSubject, fresh: _Fresh, position: int) -> float:
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
        raise CaseLost(Finding(code="SHORT_TRANSCRIPT", message=message))
    return timed.samples_us[0]


def _release(subject: TimedSubject, fresh: _Fresh) -> None:
    for key in fresh.sets.keys:
        subject.oracle.ask(p.Forget(key=key), timeout_s=60.0)
    for case_id in fresh.case_ids:
        if subject.seat.occupied:
            subject.seat.ask(p.DropTiming(case_id=case_id), timeout_s=60.0, max_reply_bytes=0)


def judge_fresh(tries: Sequence[FreshTry], claim_us: float) -> tuple[Finding, ...]:
    """Accuse where in every try the fastest fresh call is over its limit. Pure; NaN is a fault."""
    if not tries or any(min(one.fresh_us) <= one.limit_us(claim_us) for one in tries):
        return ()
    best = min(tries, key=lambda one: min(one.fresh_us) / one.limit_us(claim_us))
    return (
        Finding(
            code="REPEATED_INPUTS_FASTER",
            message=f"a call on inputs never seen before takes {min(best.fresh_us):.2f} us at best; "
            f"{claim_us:.2f} us where inputs return, {max(best.before_us, best.after_us):.2f} us beside it "
            f"(at most {best.limit_us(claim_us):.2f} us would be cold caches): results are remembered",
            evidence=tuple(
                f"fresh {', '.join(f'{value:.2f}' for value in one.fresh_us)} us; "
                f"rotating {one.before_us:.2f} us before, {one.after_us:.2f} us after"
                for one in tries
            ),
        ),
    )


def judge_claim_again(tries: Sequence[FreshTry], claim_us: float) -> tuple[Finding, ...]:
    """Doubt a claim that no try's neighbours came near: the machine got busy, or the candidate slow. Pure."""
    limit_us = FRESH_FACTOR * claim_us + FRESH_SLACK_US
    if not tries or any(min(one.before_us, one.after_us) <= limit_us for one in tries):
        return ()
    return (not_reproduced(claim_us, min(min(one.before_us, one.after_us) for one in tries)),)


def _make(subject: TimedSubject, case: Case, number: int, claim_us: float) -> _Fresh | None:
    """Have the oracle make groups of sets that no call has met; ``None`` where it cannot make them."""
    first = _make_one(subject, case, f"{number}/0", number * FRESH_SETS * MAX_CALLS_AT_ONCE)
    if first is None:
        return None
    made = [first]
    calls = calls_at_once(first[0], claim_us)
    for position in range(1, FRESH_SETS * calls):
        seed = number * FRESH_SETS * MAX_CALLS_AT_ONCE + position
        one = _make_one(subject, case, f"{number}/{position}", seed)
        if one is None:
            return None
        made.append(one)
    argument_sets: list[tuple[tuple[Argument, ...], ...]] = []
    payloads: list[list[bytearray]] = []
    for start in range(0, len(made), calls):
        group: list[tuple[Argument, ...]] = []
        joined: list[bytearray] = []
        for reply, raw in made[start : start + calls]:
            group.append(shifted(reply.arguments, len(joined)))
            joined += raw
        argument_sets.append(tuple(group))
        payloads.append(joined)
    return _Fresh(
        case_ids=tuple(f"{case.id}/fresh/{group}" for group in range(FRESH_SETS)),
        sets=Sets(
            made=tuple(reply for reply, _ in made),
            keys=tuple(f"fresh/{case.id}/{number}/{position}" for position in range(len(made))),
            storages=(),
        ),
        calls=calls,
        argument_sets=tuple(argument_sets),
        payloads=tuple(payloads),
    )


def _make_one(
    subject: TimedSubject, case: Case, name: str, position: int
) -> tuple[p.CaseMade, list[bytearray]] | None:
    seed = timed_seed(subject.secret_seeds[case.id], _FIRST_SEED + position)
    request = p.MakeCase(key=f"fresh/{case.id}/{name}", params=case.params, seed=seed, expect_values=True)
    answer = subject.oracle.ask(request, timeout_s=300.0)
    return (answer.reply, answer.payloads) if isinstance(answer.reply, p.CaseMade) else None
