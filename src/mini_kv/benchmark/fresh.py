"""Single calls on inputs never seen before: a candidate that remembers results is slow only there.

Timed calls rotate over a few argument sets, so that a look-up by address or by values would pass for a
fast operator. On the CPU only: a CUDA pilot touches every set, and there a cold time below the memory
bus is what remembering shows as.
"""

from __future__ import annotations

from mini_kv.benchmark.samples import (
    CaseLost,
    Sets,
    TimedSubject,
    catch_output,
    check_outputs,
    expect_reply,
    made_output_bytes,
    shifted,
    time_candidate,
    timed_seed,
)
from mini_kv.core import protocol as p
from mini_kv.core.card import Case
from mini_kv.core.results import Finding, Series
from mini_kv.core.tensors import Argument, input_bytes

FRESH_SETS = 5
_FIRST_SEED = 1_000  # far from the rotating sets' positions
# A first call meets cold caches, and its result pages that were never touched: an honest call over 8 MiB
# was seen at 3.4 times its time. So every byte beyond what a core's own cache holds is allowed for at a slow
# 4 GB/s beside three times the claim; a remembered call is far above both. The fastest of several counts, so
# that a busy machine accuses nobody.
FRESH_FACTOR = 3.0
FRESH_SLACK_US = 20.0
COLD_BYTES_PER_US = 4_000.0
CACHED_BYTES = 1 << 20


def remembers(subject: TimedSubject, case: Case, candidate: Series) -> tuple[Finding, ...]:
    """Time one call on each of a few fresh argument sets, check one of them; return what is wrong.

    Raises :class:`CaseLost` where the candidate gives no answer.
    """
    if subject.device != "cpu":
        return ()
    fresh_id = f"{case.id}/fresh"
    sets, arguments, payloads = _make(subject, case)
    if not sets.keys:
        return ()
    try:
        prepare = p.PrepareTiming(case_id=fresh_id, argument_sets=arguments)
        done = subject.seat.ask(prepare, payloads, timeout_s=300.0, max_reply_bytes=0)
        expect_reply(done, p.Done)
        found = _time_fresh(subject, fresh_id, sets, candidate)
    except CaseLost:
        _release(subject, fresh_id, sets)
        raise
    # Not after Ctrl-C or a lost oracle: nobody would answer, or only when the running batch has ended.
    _release(subject, fresh_id, sets)
    return found


def _time_fresh(subject: TimedSubject, fresh_id: str, sets: Sets, candidate: Series) -> tuple[Finding, ...]:
    request = p.TimeBatch(
        case_id=fresh_id,
        warmup=1,
        iterations=len(sets.keys),
        calls_per_sample=1,
        cache=subject.card.benchmark.cache,
    )
    timed = time_candidate(subject, request, subject.timeout_s)
    wrong = check_outputs(subject, sets, (catch_output(subject, fresh_id, timed, sets),))
    # The first set was met once more by the warm-up call.
    touched_bytes = input_bytes(sets.made[0].arguments) + made_output_bytes(sets.made[0])
    return wrong or judge_fresh(min(timed.samples_us[1:]), candidate.p50_us, touched_bytes)


def _release(subject: TimedSubject, fresh_id: str, sets: Sets) -> None:
    for key in sets.keys:
        subject.oracle.ask(p.Forget(key=key), timeout_s=60.0)
    if subject.seat.occupied:
        subject.seat.ask(p.DropTiming(case_id=fresh_id), timeout_s=60.0, max_reply_bytes=0)


def judge_fresh(fresh_us: float, claim_us: float, touched_bytes: int) -> tuple[Finding, ...]:
    """Hold the fastest call on fresh inputs against the P50 on rotating ones. Pure; NaN is a fault."""
    cold_us = max(touched_bytes - CACHED_BYTES, 0) / COLD_BYTES_PER_US
    limit_us = FRESH_FACTOR * claim_us + FRESH_SLACK_US + cold_us
    if fresh_us <= limit_us:
        return ()
    return (
        Finding(
            code="REPEATED_INPUTS_FASTER",
            message=f"a call on inputs never seen before takes {fresh_us:.2f} us at best; {claim_us:.2f} us "
            f"where inputs return (at most {limit_us:.2f} us would be cold caches): results are remembered",
        ),
    )


def _make(
    subject: TimedSubject, case: Case
) -> tuple[Sets, tuple[tuple[Argument, ...], ...], list[bytearray]]:
    made: list[p.CaseMade] = []
    arguments: list[tuple[Argument, ...]] = []
    payloads: list[bytearray] = []
    keys: list[str] = []
    for position in range(FRESH_SETS):
        seed = timed_seed(subject.secret_seeds[case.id], _FIRST_SEED + position)
        key = f"fresh/{case.id}/{position}"
        request = p.MakeCase(key=key, params=case.params, seed=seed, expect_values=True)
        answer = subject.oracle.ask(request, timeout_s=300.0)
        if not isinstance(answer.reply, p.CaseMade):
            continue  # these parameters were made before: the card's fault, if any, is known by now
        arguments.append(shifted(answer.reply.arguments, len(payloads)))
        made.append(answer.reply)
        keys.append(key)
        payloads += answer.payloads
    if len(keys) < 2:
        return Sets(made=(), keys=(), storages=()), (), []
    return Sets(made=tuple(made), keys=tuple(keys), storages=()), tuple(arguments), payloads
