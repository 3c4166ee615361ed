"""Secret shapes: drawn from a seed, near the edges, only where a shape can move alone, and they find out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mini_kv.core.progress import silent
from mini_kv.core.records.card import Case, CaseKind, Contract
from mini_kv.core.records.results import Status
from mini_kv.core.rules.suite import suite_hash
from mini_kv.core.tensors import element_count
from mini_kv.correctness.cases import run_cases
from mini_kv.run.secret_shapes import MAX_ELEMENTS, MIN_ELEMENTS, secret_cases
from mini_kv.task_card import load_task_card
from probe import probe_card, probe_case, probe_subject

ROOT = Path(__file__).resolve().parents[2]
HONEST, KNOWS_ITS_SHAPES = 0, 9
SEEDS = [f"{number:016x}" for number in range(1, 60)]


def shapes(cases: tuple[Case, ...]) -> list[Any]:
    return [case.params["shape"] for case in cases]


@pytest.mark.parametrize("name", ["vector_add", "fused_bias_relu", "rmsnorm"])
def test_the_shipped_cards_give_three_unseen_shapes_of_the_same_rank(name: str) -> None:
    card = load_task_card(ROOT / "tasks" / f"{name}.yaml", ROOT).card
    shown = {case.params["shape"] for case in card.cases}
    ranks = {len(case.params["shape"]) for case in card.cases if case.kind is CaseKind.CORE}  # type: ignore[arg-type]
    seen: set[Any] = set()
    for seed in SEEDS:
        found = secret_cases(card, seed)
        assert found == secret_cases(card, seed)
        assert [case.id for case in found] == ["secret_1", "secret_2", "secret_3"]
        for case in found:
            shape: Any = case.params["shape"]
            assert case.kind is CaseKind.BOUNDARY and shape not in shown and len(shape) in ranks
            assert MIN_ELEMENTS <= element_count(shape) <= MAX_ELEMENTS
            assert set(case.params) == {"shape", "dtype"}
        assert len(set(shapes(found))) == 3
        seen |= set(shapes(found))
    assert len(seen) > 60


def test_what_cannot_move_alone_is_left_alone() -> None:
    seed = SEEDS[0]
    core = probe_case("a", HONEST)
    assert len(secret_cases(probe_card(core), seed)) == 3
    assert secret_cases(probe_card(core, contract=Contract(secret_shapes=False)), seed) == ()
    for params in (
        {"n": 3},
        {"shape": (3, 0)},
        {"shape": ()},
        {"shape": 3},
        {"shape": (True, 2)},
        {"shape": (3, "x")},
        {"shape": (3, 33), "other_shape": (33,)},
    ):
        assert secret_cases(probe_card(msgspec.structs.replace(core, params=params)), seed) == ()
    assert secret_cases(probe_card(msgspec.structs.replace(core, kind=CaseKind.LAYOUT)), seed) == ()


def test_an_id_of_the_cards_own_is_not_taken_again() -> None:
    card = probe_card(probe_case("a", HONEST), probe_case("secret_2", HONEST, shape=(4, 4)))
    assert [case.id for case in secret_cases(card, SEEDS[1])] == ["secret_1", "secret_3", "secret_4"]


def test_one_extent_of_one_still_finds_a_shape() -> None:
    assert all(secret_cases(probe_card(probe_case("a", HONEST, shape=(64, 1))), seed) for seed in SEEDS)


def test_secret_shapes_do_not_change_the_suite() -> None:
    card = probe_card(probe_case("a", HONEST))
    off = probe_card(probe_case("a", HONEST), contract=Contract(secret_shapes=False))
    assert suite_hash(card) != suite_hash(off)


def run(mode: int, seed: str) -> dict[str, Any]:
    card = probe_card(probe_case("core_33", mode), probe_case("core_31", mode, shape=(3, 31)))
    whole = msgspec.structs.replace(card, cases=(*card.cases, *secret_cases(card, seed)))
    return {result.case_id: result for result in run_cases(probe_subject(whole), silent)}


def test_a_candidate_that_knows_the_cards_shapes_fails_the_secret_ones() -> None:
    found = run(KNOWS_ITS_SHAPES, SEEDS[2])
    assert [(found[name].code, found[name].message) for name in ("core_33", "core_31")] == [(None, None)] * 2
    assert {(found[f"secret_{n}"].status, found[f"secret_{n}"].code) for n in (1, 2, 3)} == {
        (Status.FAIL, "WRONG_VALUES")
    }
    assert found["secret_1"].inputs[0].startswith("float32[")


def test_an_honest_candidate_passes_them() -> None:
    found = {(result.status, result.code, result.message) for result in run(HONEST, SEEDS[3]).values()}
    assert found == {(Status.PASS, None, None)}


def test_a_shape_that_no_device_holds_kept_the_judge_at_primes_for_hours() -> None:
    for shape in ((1 << 62,), (1 << 62, 1 << 62), (3, 1 << 40)):
        assert secret_cases(probe_card(probe_case("a", HONEST, shape=shape)), SEEDS[0]) == ()


def test_cases_named_like_secret_ones_left_no_secret_ones() -> None:
    named = [probe_case(f"secret_{number}", HONEST) for number in (1, 2, 3)]
    found = secret_cases(probe_card(probe_case("a", HONEST), *named), SEEDS[0])
    assert [case.id for case in found] == ["secret_4", "secret_5", "secret_6"]
