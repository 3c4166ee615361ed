"""Seats: whoever sits there may be lost and is replaced by one that has opened the same library."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mini_kv
from fake_worker import READY, use_cast
from mini_kv.core import protocol as p
from mini_kv.core.errors import ConfigurationError, InternalError
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.seats import CandidateSeat, OracleSeat
from mini_kv.system.workers import Answer, Lost, Nursery
from mini_kv.task_card import load_task_card

HELLO = p.Hello(device="cpu", threads=1)
LOAD = p.LoadCandidate(
    library="fake.so",
    library_sha256="a" * 64,
    python=None,
    dispatcher="fixture_double::double",
    schema="double(Tensor x) -> Tensor",
)
WORK = p.DropTiming(case_id="x")
CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"

Cast = Callable[..., CandidateSeat]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    adopt_orphans()
    source = str(Path(mini_kv.__file__).parent.parent)
    made = Nursery(tmp_path, [source, *filter(None, sys.path)])
    yield made
    made.close()


@pytest.fixture
def seat(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> Cast:
    def begin(faults: dict[str, str] | None = None, *, loaded: bool = True) -> CandidateSeat:
        use_cast(monkeypatch, faults or {})
        made = CandidateSeat(nursery, HELLO)
        if loaded:
            assert made.greet() == READY
            assert isinstance(made.load(LOAD), p.CandidateLoaded)
        return made

    return begin


def ask(seat: CandidateSeat, message: p.Request = WORK) -> Any:
    outcome = seat.ask(message, timeout_s=20.0)
    return outcome.reply if isinstance(outcome, Answer) else outcome


def test_a_seat_greets_loads_and_answers(seat: Cast) -> None:
    sound = seat()
    assert ask(sound) == p.Done()
    assert (sound.number, sound.losses, sound.occupied) == (1, 0, True)
    assert sound.ready == READY


def test_a_lost_worker_is_replaced_by_one_that_has_loaded_the_library(seat: Cast) -> None:
    # Every worker's third message (after Hello and LoadCandidate) is its last.
    fragile = seat({"candidate/drop_timing": f"if state['count'] == 4: {CRASH}"})
    assert ask(fragile) == p.Done()
    lost = ask(fragile)
    assert isinstance(lost, Lost)
    assert lost.code == "CRASHED"
    assert not fragile.occupied
    assert ask(fragile) == p.Done()
    assert (fragile.number, fragile.losses) == (2, 1)


def test_a_spare_waits_from_the_first_loss_on_and_not_before(seat: Cast, nursery: Nursery) -> None:
    fragile = seat({"candidate/drop_timing/crash": CRASH})
    assert nursery.started == 1
    ask(fragile, p.DropTiming(case_id="crash"))
    assert nursery.started == 2
    assert ask(fragile) == p.Done()
    assert nursery.started == 3  # the spare sits now, and another waits


def test_no_spare_imports_for_a_worker_that_is_lost_in_its_last_request(seat: Cast, nursery: Nursery) -> None:
    # A candidate that crashed in the traced call cost an import of torch that nobody asked anything.
    fragile = seat({"candidate/drop_timing": CRASH})
    assert isinstance(fragile.ask(WORK, timeout_s=20.0, last=True), Lost)
    assert nursery.started == 1


def test_a_loss_in_every_request_ends_in_as_many_losses(seat: Cast) -> None:
    fragile = seat({"candidate/drop_timing": CRASH})
    outcomes = [ask(fragile) for _ in range(3)]
    assert [outcome.code for outcome in outcomes] == ["CRASHED"] * 3
    assert (fragile.number, fragile.losses) == (3, 3)


def test_a_seat_that_nobody_sits_in_has_nothing_to_drop(seat: Cast, nursery: Nursery) -> None:
    fragile = seat({"candidate/drop_timing/crash": CRASH})
    assert fragile.drop_timing("x", timeout_s=20.0) == Answer(reply=p.Done(), payloads=[])
    assert isinstance(fragile.drop_timing("crash", timeout_s=20.0), Lost)
    assert fragile.drop_timing("x", timeout_s=20.0) == Answer(reply=p.Done(), payloads=[])
    assert (fragile.number, fragile.losses) == (1, 1)  # the spare was not seated for that


def test_a_replacement_that_cannot_load_is_a_loss_with_the_reason(seat: Cast, tmp_path: Path) -> None:
    fragile = seat({"candidate/drop_timing": CRASH}, loaded=True)
    ask(fragile)
    fragile._load_request = None
    with pytest.raises(InternalError, match="before its library was named"):
        ask(fragile)


def test_a_replacement_that_is_refused_its_library_says_why(
    seat: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile = seat({"candidate/drop_timing": CRASH})
    refuse = "reply = p.Failed(code='LIBRARY_CHANGED', message='not the one that was built')"
    use_cast(monkeypatch, {"candidate/load_candidate": refuse})
    ask(fragile)
    lost = ask(fragile)
    assert isinstance(lost, Lost)
    assert (lost.code, lost.message) == ("LIBRARY_CHANGED", "not the one that was built")


def test_a_retired_worker_is_replaced(seat: Cast) -> None:
    sound = seat()
    sound.retire()
    assert ask(sound) == p.Done()
    assert (sound.number, sound.losses) == (2, 1)


def test_a_closed_seat_is_empty(seat: Cast, nursery: Nursery) -> None:
    sound = seat()
    sound.close()
    assert not sound.occupied


def test_an_abandoned_seat_answers_at_once_and_starts_nobody(seat: Cast, nursery: Nursery) -> None:
    slow = seat({"candidate/drop_timing": "time.sleep(600)"})
    outcomes: list[Any] = []
    asking = threading.Thread(target=lambda: outcomes.extend(ask(slow) for _ in range(5)))
    asking.start()
    time.sleep(0.3)
    started = nursery.started
    begun = time.monotonic()
    slow.abandon()
    asking.join(10)
    assert not asking.is_alive()
    assert time.monotonic() - begun < 5.0
    assert all(isinstance(outcome, Lost) for outcome in outcomes)
    assert [outcome.code for outcome in outcomes[1:]] == ["ABANDONED"] * 4
    assert nursery.started == started


def test_a_worker_that_refuses_to_greet_says_why(seat: Cast) -> None:
    mute = seat({"candidate/hello": "reply = p.Failed(code='RuntimeError', message='no CUDA')"}, loaded=False)
    assert mute.greet() == p.Failed(code="RuntimeError", message="no CUDA")


def test_a_worker_that_dies_before_it_greets_is_lost(seat: Cast) -> None:
    dead = seat({"candidate/hello": "os._exit(3)"}, loaded=False).greet()
    assert isinstance(dead, Lost)
    assert dead.code == "EXITED"


def test_a_greeting_with_something_else_is_a_fault_of_the_tool(seat: Cast) -> None:
    with pytest.raises(InternalError):
        seat({"candidate/hello": "reply = p.Done()"}, loaded=False).greet()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("reply = p.Done()", "PROTOCOL_VIOLATION"),
        ("reply = p.Failed(code='OPERATOR_NOT_REGISTERED', message='none')", "OPERATOR_NOT_REGISTERED"),
        ("os._exit(0)", "EXITED"),
        (CRASH, "CRASHED"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_a_value(seat: Cast, fault: str, code: str) -> None:
    unlucky = seat({"candidate/load_candidate": fault}, loaded=False)
    unlucky.greet()
    outcome = unlucky.load(LOAD)
    assert isinstance(outcome, p.Failed | Lost)
    assert outcome.code == code


# ---------------------------------------------------------------------------- the oracle's seat


def oracle(nursery: Nursery, monkeypatch: pytest.MonkeyPatch, faults: dict[str, str]) -> OracleSeat:
    use_cast(monkeypatch, faults)
    return OracleSeat(nursery, HELLO)


ROOT = Path(__file__).resolve().parents[2]
CARD = msgspec.structs.replace(
    load_task_card(ROOT / "tasks" / "vector_add.yaml", ROOT).card, reference="a:b", input_factory="a:c"
)


def test_an_oracle_greets_and_loads(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = oracle(nursery, monkeypatch, {})
    assert sound.greet() == READY
    assert sound.load_card(CARD).has_cost_model


def test_a_reference_that_cannot_be_imported_is_the_users_to_mend(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = "reply = p.Failed(code='ModuleNotFoundError', message='no a')"
    with pytest.raises(ConfigurationError, match=r"a:b.*ModuleNotFoundError: no a") as caught:
        oracle(nursery, monkeypatch, {"oracle/load_reference": fault}).load_card(CARD)
    assert caught.value.code == "REFERENCE_NOT_IMPORTABLE"


def test_a_device_that_the_oracle_cannot_open_is_a_configuration_error(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = "reply = p.Failed(code='RuntimeError', message='no CUDA')"
    with pytest.raises(ConfigurationError, match="no CUDA"):
        oracle(nursery, monkeypatch, {"oracle/hello": fault}).greet()


def test_a_lost_oracle_is_raised_with_its_last_words(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = f"print('last words', flush=True); {CRASH}"
    with pytest.raises(InternalError, match=r"SIGSEGV.*last words") as caught:
        oracle(nursery, monkeypatch, {"oracle/drop_timing": fault}).ask(WORK, timeout_s=20.0)
    assert caught.value.code == "ORACLE_LOST"


def test_what_the_reference_raised_is_a_reply_like_others(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = "reply = p.Failed(code='ValueError', message='no')"
    answer = oracle(nursery, monkeypatch, {"oracle/make_case": fault}).ask(
        p.MakeCase(key="k", params={"n": 1}, seed="00", expect_values=True), timeout_s=20.0
    )
    assert isinstance(answer.reply, p.Failed)
