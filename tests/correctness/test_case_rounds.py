"""The rounds of a case and each of its calls: what is asked, and what a bad answer is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fake_seats import (
    CRASHED,
    SECRET_SEED,
    TIMED,
    Asked,
    Crew,
    changed,
    double_card,
    double_manifest,
    said,
    spoilt,
)
from mini_kv.core import protocol as p
from mini_kv.core.canonical import derived_seed, fixed_seed
from mini_kv.core.progress import Event, silent
from mini_kv.core.records.card import Case, CaseKind, Contract, TaskCard
from mini_kv.core.records.correctness import CaseResult
from mini_kv.core.records.results import Status
from mini_kv.core.time_limits import CASE_TIMEOUT_S
from mini_kv.correctness.calls import lost_finding
from mini_kv.correctness.cases import recovery_case, run_cases
from mini_kv.correctness.rounds import plan_rounds, wants_gradients
from mini_kv.system.workers import Answer, Lost

CARD = double_card()
TRAINS = Contract(opcheck=False)
FIXED_SEED = f"{fixed_seed('double', 'core_4'):016x}"


@pytest.fixture
def crew() -> Crew:
    return Crew()


def card_of(*names: str, **contract: Any) -> TaskCard:
    made = double_card(cases=tuple(CARD.case(name) for name in names))
    return msgspec.structs.replace(made, contract=msgspec.structs.replace(made.contract, **contract))


def run(crew: Crew, card: TaskCard, **changes: Any) -> CaseResult:
    (result,) = run_cases(crew.subject(card=card, **changes), silent)
    return result


def calls(crew: Crew) -> list[p.RunCase]:
    return [one.request for one in crew.asked(p.RunCase)]  # type: ignore[misc]


# ------------------------------------------------------------------------------- the plan of the rounds


def rounds(
    kind: CaseKind = CaseKind.CORE, *, autograd: bool = False, **contract: Any
) -> list[tuple[Any, ...]]:
    card = card_of("core_4", **contract)
    case = Case(id="core_4", kind=kind, params={"n": 4})
    plans = plan_rounds(card, double_manifest(autograd=autograd), case, SECRET_SEED)
    return [(one.name, one.seed, one.poison, one.mode, one.refill, one.version) for one in plans]


def test_a_case_is_called_on_fixed_values_twice_and_on_secret_ones_in_their_place() -> None:
    assert rounds() == [
        ("fixed", FIXED_SEED, 0xFF, "no_grad", False, 1),
        ("repeat", FIXED_SEED, 0x5A, "no_grad", False, 0),
        ("secret", SECRET_SEED, 0x5A, "grad", True, 0),
    ]
    assert [one[0] for one in rounds(deterministic=False)] == ["fixed", "secret"]
    assert rounds(functional=False)[-1] == ("secret", SECRET_SEED, 0x5A, "grad", False, 0)


def test_a_timed_case_is_called_once_on_secret_values() -> None:
    assert rounds(CaseKind.BENCHMARK) == [("secret", SECRET_SEED, 0x5A, "grad", False, 0)]
    assert rounds(CaseKind.BENCHMARK, autograd=True)[0][3] == "requires_grad"


def test_an_operator_that_trains_is_called_as_in_training_and_its_gradients_compared() -> None:
    found = rounds(autograd=True, gradcheck=True)
    assert found[2:] == [
        ("secret", SECRET_SEED, 0x5A, "requires_grad", True, 0),
        ("gradients", SECRET_SEED, 0x5A, "gradients", False, 0),
    ]
    assert [one[3] for one in rounds(autograd=True, gradcheck=False)] == [
        "no_grad",
        "no_grad",
        "requires_grad",
    ]
    changing = rounds(autograd=True, gradcheck=True, functional=False)
    assert [one[3] for one in changing] == ["no_grad", "no_grad", "grad"]


@pytest.mark.parametrize("kind", CaseKind)
def test_gradients_are_wanted_of_small_sound_cases_only(kind: CaseKind) -> None:
    case = Case(id="x", kind=kind, params={})
    trains = double_manifest(autograd=True)
    wanted = kind in (CaseKind.CORE, CaseKind.LAYOUT, CaseKind.BOUNDARY)
    assert wants_gradients(double_card(contract=TRAINS), trains, case) is wanted
    assert not wants_gradients(double_card(contract=TRAINS), double_manifest(), case)
    assert not wants_gradients(double_card(contract=Contract(gradcheck=False)), trains, case)
    assert not wants_gradients(double_card(contract=Contract(functional=False)), trains, case)


# ------------------------------------------------------------------------------- what is asked


def test_a_call_carries_the_pattern_the_seed_of_its_weights_and_room_for_its_answer(crew: Crew) -> None:
    run(crew, card_of("core_4"))
    fixed, repeat, secret = calls(crew)
    assert (fixed.key, fixed.keep, fixed.poison_bytes, fixed.version, fixed.refill) == (
        "core_4", "fixed", (16,), 1, False
    )  # fmt: skip
    assert (repeat.keep, repeat.poison, secret.keep, secret.refill) == ("repeat", 0x5A, "secret", True)
    assert fixed.weights_seed == derived_seed(FIXED_SEED, p.WEIGHTS_OF_GRADIENTS)
    assert secret.weights_seed == derived_seed(SECRET_SEED, p.WEIGHTS_OF_GRADIENTS)
    (asked, *_) = crew.asked(p.RunCase)
    assert (asked.timeout_s, asked.max_reply_bytes) == (2.0, 4 * 16 + 16 + (64 << 20))


def test_the_oracle_makes_each_seed_once_has_time_for_it_and_forgets_it(crew: Crew) -> None:
    run(crew, card_of("core_4"))
    keys = [f"core_4/{FIXED_SEED}", f"core_4/{SECRET_SEED}"]
    made = crew.asked(p.MakeCase)
    assert [one.request.key for one in made] == keys
    assert [(one.request.expect_values, one.request.expect_gradients) for one in made] == [(True, False)] * 2
    assert [one.request.key for one in crew.asked(p.Forget)] == keys
    assert {one.timeout_s for one in (*made, *crew.asked(p.Compare))} == {CASE_TIMEOUT_S}
    patient = replace(crew.subject(card=card_of("core_4")), timeout_s=500.0)
    crew.log.clear()
    run_cases(patient, silent)
    assert {one.timeout_s for one in (*crew.asked(p.MakeCase), *crew.asked(p.Compare))} == {500.0}


def test_gradients_are_expected_of_the_secret_values_alone(crew: Crew) -> None:
    card = card_of("core_4", gradcheck=True)
    result = run(crew, card, manifest=double_manifest(autograd=True))
    asked = [(one.request.seed, one.request.expect_gradients) for one in crew.asked(p.MakeCase)]
    assert asked == [(FIXED_SEED, False), (SECRET_SEED, True)]
    # The reference has none, so nothing is compared with them.
    assert [one.name for one in result.rounds] == ["fixed", "repeat", "secret"]
    assert result.status is Status.PASS


def gradients_expected(crew: Crew) -> None:
    def behave(asked: Asked, honest: Answer) -> Answer:
        expected = honest.reply.expected  # type: ignore[union-attr]
        return changed(honest, gradients=expected if asked.request.expect_gradients else ())

    crew.on("oracle", p.MakeCase, behave)


def numerics(crew: Crew, wrong_key: str) -> None:
    def behave(asked: Asked, honest: Answer) -> Answer:
        numbers = msgspec.structs.replace(
            crew_numerics, mismatch_count=1 if asked.request.key == wrong_key else 0
        )
        return said(p.Compared(numerics=numbers))

    from fake_worker import numerics_of

    crew_numerics = numerics_of(b"\0\0\x80\x3f" * 4, b"\0\0\0\0" * 4)
    crew.on("oracle", p.Compare, behave)


def test_wrong_gradients_were_called_wrong_values(crew: Crew) -> None:
    gradients_expected(crew)
    numerics(crew, f"core_4/{SECRET_SEED}/gradients")
    card = card_of("core_4", gradcheck=True)
    result = run(crew, card, manifest=double_manifest(autograd=True))
    assert [one.name for one in result.rounds] == ["fixed", "repeat", "secret", "gradients"]
    assert (result.status, result.code) == (Status.FAIL, "WRONG_GRADIENTS")
    assert "argument 0 ('x')" in str(result.message)
    compared = [one.request.key.removeprefix("core_4/") for one in crew.asked(p.Compare)]
    assert compared == [FIXED_SEED, FIXED_SEED, SECRET_SEED, f"{SECRET_SEED}/gradients"]


def test_wrong_values_end_a_case_at_the_round_that_shows_them(crew: Crew) -> None:
    numerics(crew, f"core_4/{FIXED_SEED}")
    result = run(crew, card_of("core_4"))
    assert [(one.name, one.status) for one in result.rounds] == [("fixed", Status.FAIL)]
    assert (result.status, result.code, result.worker) == (Status.FAIL, "WRONG_VALUES", 1)
    assert result.message == result.rounds[0].findings[0].message
    assert result.inputs == ("float32[4] on cpu",)
    assert result.proves is None
    assert not crew.asked(p.AuditCase)
    assert [one.request.key for one in crew.asked(p.Forget)] == [f"core_4/{FIXED_SEED}"]


# ------------------------------------------------------------------------------- what a bad answer is called


def answering(crew: Crew, reply: p.Reply, *payloads: bytes, at: int = 0) -> None:
    seen: list[str] = []

    def behave(_: Asked, honest: Answer) -> Answer:
        seen.append("call")
        return said(reply, *payloads) if len(seen) == at + 1 else honest

    crew.on("candidate", p.RunCase, behave)


@pytest.mark.parametrize(
    ("reply", "code", "text"),
    [
        (p.Failed(code="OOM", message="no memory" + "x" * 900), "WORKER_FAILED", "no memory"),
        (p.Done(), "PROTOCOL_VIOLATION", "unexpected answer Done"),
        (
            p.Raised(types=("ValueError", "Exception"), message="no", device_lost=False),
            "RAISED",
            "ValueError: no",
        ),
        (
            p.Ran(outputs=(), input_blobs=(), guard_blobs=(), stray_writes=0),
            "WRONG_OUTPUT_COUNT",
            "returned 0 tensors",
        ),
    ],
)
def test_a_call_that_gives_no_result_fails_its_case(crew: Crew, reply: p.Reply, code: str, text: str) -> None:
    answering(crew, reply)
    result = run(crew, card_of("core_4"))
    assert (result.status, result.code, len(result.rounds)) == (Status.FAIL, code, 1)
    assert text in str(result.message)
    assert len(str(result.message)) <= 500
    assert crew.asked(p.RunCase)[0].request.keep == "fixed"


def test_an_exception_is_noted_and_bounded(crew: Crew) -> None:
    answering(crew, p.Raised(types=("ValueError",), message="x" * 2000, device_lost=False))
    result = run(crew, card_of("core_4"))
    assert result.rounds[0].raised == "ValueError: " + "x" * 1000


@pytest.mark.parametrize(("lost", "worker"), [(False, 1), (True, 2)])
def test_a_worker_whose_device_is_lost_is_replaced(crew: Crew, lost: bool, worker: int) -> None:
    answering(crew, p.Raised(types=("RuntimeError",), message="no", device_lost=lost))
    card = card_of("core_4", "core_6")
    first, second = run_cases(crew.subject(card=card), silent)
    assert (first.code, second.status, second.worker) == ("RAISED", Status.PASS, worker)


@pytest.mark.parametrize(
    ("field", "blobs"),
    [
        ("input_blobs", (7,)),
        ("input_blobs", (3,)),
        ("guard_blobs", (9,)),
        ("guard_blobs", (3,)),
        ("input_blobs", (1, 9)),
    ],
)
def test_a_reply_that_names_payloads_which_it_does_not_carry_is_no_answer(
    crew: Crew, field: str, blobs: tuple[int, ...]
) -> None:
    crew.on("candidate", p.RunCase, lambda _, honest: changed(honest, **{field: blobs}))
    result = run(crew, card_of("core_4"))
    assert (result.status, result.code) == (Status.FAIL, "PROTOCOL_VIOLATION")
    assert result.message == "the reply names payloads it does not carry"


def test_an_output_without_bytes_fails_by_its_form_or_as_no_answer(crew: Crew) -> None:
    def without(**form: Any) -> None:
        def behave(_: Asked, honest: Answer) -> Answer:
            (spec,) = honest.reply.outputs  # type: ignore[union-attr]
            return changed(honest, outputs=(msgspec.structs.replace(spec, blob=None, **form),))

        crew.on("candidate", p.RunCase, behave)

    without()
    assert run(crew, card_of("core_4")).code == "PROTOCOL_VIOLATION"
    without(device="meta")
    assert run(crew, card_of("core_4")).code == "WRONG_DEVICE"
    assert not crew.asked(p.Compare)


def test_a_result_of_another_shape_is_not_compared_but_its_inputs_are(crew: Crew) -> None:
    def behave(_: Asked, honest: Answer) -> Answer:
        (spec,) = honest.reply.outputs  # type: ignore[union-attr]
        out, raw, zones = honest.payloads
        reply = msgspec.structs.replace(
            honest.reply, outputs=(msgspec.structs.replace(spec, shape=(2, 2), strides=(2, 1)),)
        )
        raw = bytearray(raw)
        raw[4] ^= 1
        return Answer(reply=reply, payloads=[out, raw, zones])

    crew.on("candidate", p.RunCase, behave)
    result = run(crew, card_of("core_4"))
    assert [finding.code for finding in result.rounds[0].findings] == ["WRONG_SHAPE", "INPUT_MUTATED"]
    assert "argument 0 ('x'), first at element [1]" in result.rounds[0].findings[1].message
    assert (result.rounds[0].numerics, crew.asked(p.Compare)) == (None, [])
    assert len(result.rounds[0].output_sha256) == 1


def test_an_input_that_was_written_to_is_fine_where_the_operator_may(crew: Crew) -> None:
    def behave(_: Asked, honest: Answer) -> Answer:
        out, raw, zones = honest.payloads
        reply = msgspec.structs.replace(honest.reply, altered=(p.Altered(argument=0, traits=("shape",)),))
        return Answer(reply=reply, payloads=[out, bytearray(len(raw)), zones])

    crew.on("candidate", p.RunCase, behave)
    functional = run(crew, card_of("core_4"))
    assert [finding.code for finding in functional.rounds[0].findings] == ["INPUT_MUTATED"] * 2
    assert functional.rounds[0].numerics is not None
    assert run(crew, card_of("core_4", functional=False)).status is Status.PASS


@pytest.mark.parametrize("stray", [0, 1])
def test_a_write_outside_of_what_was_given_fails_the_round(crew: Crew, stray: int) -> None:
    def behave(_: Asked, honest: Answer) -> Answer:
        out, raw, zones = honest.payloads
        zones = bytearray(zones)
        zones[0] ^= 1 - stray
        return Answer(
            reply=msgspec.structs.replace(honest.reply, stray_writes=stray), payloads=[out, raw, zones]
        )

    crew.on("candidate", p.RunCase, behave)
    assert run(crew, card_of("core_4")).code == "OUT_OF_BOUNDS_WRITE"


def test_outputs_that_cannot_be_compared_fail_and_are_sent_in_their_order(crew: Crew) -> None:
    def moved(_: Asked, honest: Answer) -> Answer:
        out, raw, zones = honest.payloads
        (spec,) = honest.reply.outputs  # type: ignore[union-attr]
        return Answer(
            reply=msgspec.structs.replace(
                honest.reply,
                outputs=(msgspec.structs.replace(spec, blob=2),),
                input_blobs=(0,),
                guard_blobs=(1,),
            ),
            payloads=[raw, zones, out],
        )

    crew.on("candidate", p.RunCase, moved)
    assert run(crew, card_of("core_4")).status is Status.PASS
    crew.on("oracle", p.Compare, lambda *_: said(p.Failed(code="X", message="3 bytes" + "x" * 900)))
    result = run(crew, card_of("core_4"))
    assert (result.status, result.code) == (Status.FAIL, "NOT_COMPARABLE")
    assert (str(result.message)[:7], len(str(result.message))) == ("3 bytes", 500)


@pytest.mark.parametrize(("at", "round_name"), [(0, None), (1, "repeat"), (2, None)])
def test_other_bytes_on_equal_inputs_are_chance_or_unwritten(
    crew: Crew, at: int, round_name: str | None
) -> None:
    """Right within tolerance each time, as the oracle says; the bytes are compared with the call before."""
    seen: list[int] = []

    def behave(_: Asked, honest: Answer) -> Answer:
        seen.append(0)
        return spoilt(honest) if len(seen) - 1 == at else honest

    crew.on("candidate", p.RunCase, behave)
    crew.on("candidate", p.Recall, lambda *_: said(p.Done()))
    numerics(crew, "none")
    result = run(crew, card_of("core_4"))
    if round_name is None and at == 2:
        assert result.code == "OUTPUTS_NOT_KEPT"
    else:
        assert (result.code, result.rounds[-1].name) == ("NOT_DETERMINISTIC", "repeat")


def test_a_timed_case_has_no_call_to_compare_its_bytes_with(crew: Crew) -> None:
    result = run(crew, card_of(TIMED))
    assert (result.status, [one.name for one in result.rounds]) == (Status.PASS, ["secret"])


def test_the_last_words_of_a_crash_are_told_and_those_of_a_silent_worker_are_not() -> None:
    output = "free(): invalid size\n\nFatal Python error: Aborted\n  File x"
    crashed = lost_finding(Lost(code="CRASHED", message="it died", output=output))
    assert crashed.message == "it died; its last words: 'free(): invalid size'"
    assert crashed.evidence == (output,)
    late = lost_finding(Lost(code="TIMEOUT", message="no answer", output=output))
    assert (late.message, late.evidence) == ("no answer", (output,))
    silent_one = lost_finding(Lost(code="CRASHED", message="it died", output=""))
    assert (silent_one.message, silent_one.evidence) == ("it died", ())
    long = lost_finding(Lost(code="CRASHED", message="it died", output="a" * 5000))
    assert len(long.evidence[0]) == 4000
    assert long.message == f"it died; its last words: {'a' * 200!r}"


# ------------------------------------------------------------------------------- cases that prove nothing


@pytest.mark.parametrize(
    ("expected", "said_so"),
    [
        ((), "returns no tensor;"),
        ((p.ExpectedOutput(shape=(4,), dtype="complex64", device="cpu"),), "returns a tensor of complex64;"),
    ],
)
def test_a_reference_that_returns_nothing_to_compare_is_the_cards_fault(
    crew: Crew, expected: tuple[p.ExpectedOutput, ...], said_so: str
) -> None:
    crew.on("oracle", p.MakeCase, lambda _, honest: changed(honest, expected=expected))
    result = run(crew, card_of("core_4"))
    assert (result.status, result.code, result.rounds) == (Status.INVALID, "CASE_NOT_MAKEABLE", ())
    assert said_so in str(result.message)
    assert not crew.asked(p.RunCase)


def test_a_factory_that_raises_is_the_cards_fault(crew: Crew) -> None:
    failed = p.Failed(code="ValueError", message="no such shape")
    crew.on("oracle", p.MakeCase, lambda *_: said(failed))
    for name in ("core_4", "illegal_odd"):
        result = run(crew, card_of(name))
        assert (result.status, result.code) == (Status.INVALID, "CASE_NOT_MAKEABLE")
        assert "raised ValueError: no such shape" in str(result.message)


def test_a_reference_that_misses_its_own_tolerance_proves_nothing(crew: Crew) -> None:
    crew.on("oracle", p.MakeCase, lambda _, honest: changed(honest, reference_within_tolerance=False))
    result = run(crew, card_of("core_4"))
    assert (result.status, result.code) == (Status.INVALID, "REFERENCE_OUTSIDE_TOLERANCE")
    assert not crew.asked(p.RunCase)


def test_an_empty_result_proves_form(crew: Crew) -> None:
    crew.on("oracle", p.AuditCase, lambda *_: said(p.CaseAudited(element_count=0, passed=("zeros",))))
    assert run(crew, card_of("core_4")).proves == "form"


# ------------------------------------------------------------------------------- refusals


def refusing(crew: Crew, reply: p.Reply | Lost) -> CaseResult:
    def behave(asked: Asked, honest: Answer) -> Answer | Lost:
        if asked.request.key != "illegal_odd":
            return honest
        return reply if isinstance(reply, Lost) else said(reply)

    crew.on("candidate", p.RunCase, behave)
    results = run_cases(crew.subject(card=card_of("core_4", "illegal_odd")), silent)
    return results[1]


@pytest.mark.parametrize(
    ("reply", "code", "text"),
    [
        (p.Failed(code="WORKER_FAILED", message="no" + "x" * 900), "WORKER_FAILED", "nox"),
        (p.Done(), "PROTOCOL_VIOLATION", "unexpected answer"),
        (CRASHED, "CRASHED", "SIGSEGV"),
        (
            p.Ran(outputs=(), input_blobs=(), guard_blobs=(), stray_writes=0),
            "ILLEGAL_INPUT_ACCEPTED",
            "returned a result",
        ),
        (
            p.Raised(types=("KeyError",), message="must be even", device_lost=False),
            "WRONG_EXCEPTION",
            "KeyError",
        ),
        (p.Raised(types=("RuntimeError",), message="no", device_lost=False), "WRONG_MESSAGE", "lacks"),
    ],
)
def test_what_is_no_refusal_fails(crew: Crew, reply: p.Reply | Lost, code: str, text: str) -> None:
    result = refusing(crew, reply)
    assert (result.status, result.code, result.proves) == (Status.FAIL, code, None)
    assert text in str(result.message)
    assert len(str(result.message)) <= 500
    assert [one.status for one in result.rounds] == [Status.FAIL]
    assert result.inputs == ("float32[101] on cpu",)


def test_a_refusal_is_made_without_expected_values_and_followed_by_a_legal_call(crew: Crew) -> None:
    results = run_cases(crew.subject(card=card_of("core_4", "illegal_odd")), silent)
    assert (results[1].status, results[1].proves) == (Status.PASS, "refusal")
    assert results[1].rounds[0].raised == "RuntimeError: double: n must be even"
    made = [(one.request.key.partition("/")[0], one.request.expect_values) for one in crew.asked(p.MakeCase)]
    assert made[2:] == [("illegal_odd", False), ("core_4", True)]
    assert [(one.key, one.keep) for one in calls(crew)[3:]] == [("illegal_odd", "fixed"), ("core_4", "after")]
    assert crew.asked(p.Forget)[-1].request.key == f"core_4/{FIXED_SEED}"


def test_a_device_that_a_refusal_takes_along_is_lost_and_its_worker_replaced(crew: Crew) -> None:
    def behave(asked: Asked, honest: Answer) -> Answer:
        lost = p.Raised(types=("RuntimeError",), message="double: n must be even", device_lost=True)
        return said(lost) if asked.request.key == "illegal_odd" else honest

    crew.on("candidate", p.RunCase, behave)
    results = run_cases(crew.subject(card=card_of("core_4", "illegal_odd", "core_6")), silent)
    assert [finding.code for finding in results[1].rounds[0].findings] == ["DEVICE_LOST"]
    assert [(one.code, one.worker) for one in results] == [(None, 1), ("DEVICE_LOST", 1), (None, 2)]


def test_a_refusal_without_a_legal_case_next_to_it_stands_alone(crew: Crew) -> None:
    result = run(crew, card_of("illegal_odd"))
    assert (result.status, result.proves, len(calls(crew))) == (Status.PASS, "refusal", 1)


def test_a_probe_that_cannot_be_made_is_not_held_against_the_refusal(crew: Crew) -> None:
    def behave(asked: Asked, honest: Answer) -> Answer:
        failed = said(p.Failed(code="ValueError", message="no"))
        return honest if asked.request.key.startswith("illegal") else failed

    crew.on("oracle", p.MakeCase, behave)
    results = run_cases(crew.subject(card=card_of("illegal_odd", "core_4")), silent)
    assert [(one.status, one.code) for one in results] == [
        (Status.PASS, None),
        (Status.INVALID, "CASE_NOT_MAKEABLE"),
    ]


# ------------------------------------------------------------------------------- the whole card


def test_a_probe_is_a_core_case_that_passed_or_was_not_run_yet() -> None:
    card = card_of("core_4", "core_6", "illegal_odd", TIMED)

    def probe(**known: Status) -> str | None:
        results = [msgspec.structs.replace(passed, case_id=name, status=one) for name, one in known.items()]
        found = recovery_case(card, results)
        return found.id if found is not None else None

    passed = run(Crew(), card_of("core_4"))
    assert probe() == "core_4"
    assert probe(core_4=Status.FAIL) == "core_6"
    assert probe(core_6=Status.PASS) == "core_6"
    assert probe(core_4=Status.FAIL, core_6=Status.INVALID) is None
    assert probe(core_4=Status.FAIL, core_6=Status.INVALID, timed=Status.PASS) is None


def test_every_case_is_reported_as_it_comes_and_kept_when_the_run_is_cut_short(crew: Crew) -> None:
    events: list[Event] = []
    so_far: list[CaseResult] = []
    results = run_cases(crew.subject(card=card_of("core_4", "core_6")), events.append, so_far)
    assert [(one.stage, one.done, one.total, one.detail) for one in events] == [
        ("correctness", 0, 2, "core_4"),
        ("correctness", 1, 2, "core_6"),
        ("correctness", 2, 2, "all cases answered"),
    ]
    assert tuple(so_far) == results
    assert all(0.0 <= one.elapsed_s < 60.0 for one in results)
    assert max(one.elapsed_s for one in results) > 0.0


# ------------------------------------------------------------------------------- results looked at again


def test_results_are_looked_at_again_once_all_rounds_have_passed(crew: Crew) -> None:
    run(crew, card_of("core_4"))
    (asked,) = crew.asked(p.Recall)
    assert (asked.request.key, asked.request.kept) == ("core_4", ("fixed", "repeat", "secret"))
    assert (asked.timeout_s, asked.max_reply_bytes) == (2.0, 3 * 16 + (1 << 20))
    crew.log.clear()
    run(crew, card_of(TIMED))
    assert crew.asked(p.Recall) == [], "no later call can have written to the only one"


def test_results_are_not_looked_at_again_where_a_round_has_failed(crew: Crew) -> None:
    numerics(crew, f"core_4/{SECRET_SEED}")
    result = run(crew, card_of("core_4"))
    assert [one.status for one in result.rounds] == [Status.PASS, Status.PASS, Status.FAIL]
    assert (result.code, crew.asked(p.Recall)) == ("WRONG_VALUES", [])
