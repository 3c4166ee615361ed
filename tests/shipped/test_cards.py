"""The shipped Task Cards: enough cases, legal ones that prove something, tolerances that hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mini_kv.core.records.card import Case, CaseKind, TaskCard
from shipped_cards import CARDS, LEAST_CASES, arguments_of, expected_of, mismatches

LEGAL = [
    pytest.param(card, case, id=f"{name}-{case.id}")
    for name, card in CARDS.items()
    for case in card.cases
    if case.kind not in (CaseKind.ILLEGAL, CaseKind.BENCHMARK)
]


def null_results(arguments: tuple[Any, ...], like: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield results of candidates that compute nothing."""
    yield "zeros", torch.zeros_like(like)
    yield "ones", torch.ones_like(like)
    for position, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            yield f"argument {position}", argument.expand(like.shape)
            yield f"mean of argument {position}", argument.double().mean().to(like.dtype).expand(like.shape)
    half = like.clone().flatten()
    half[half.numel() // 2 :] = 0
    yield "half the work", half.view(like.shape)


@pytest.mark.parametrize("name", LEAST_CASES)
def test_a_card_has_its_cases_of_every_kind(name: str) -> None:
    kinds = Counter(case.kind for case in CARDS[name].cases)
    assert kinds[CaseKind.CORE] == 12
    assert set(kinds) == set(CaseKind)
    assert kinds.total() - kinds[CaseKind.BENCHMARK] >= LEAST_CASES[name]


@pytest.mark.parametrize("name", LEAST_CASES)
def test_core_cases_are_six_shapes_in_two_dtypes(name: str) -> None:
    core = [case.params for case in CARDS[name].cases if case.kind is CaseKind.CORE]
    pairs = {(params["shape"], params["dtype"]) for params in core}
    assert len(pairs) == 12 and {dtype for _, dtype in pairs} == {"float32", "float16"}
    assert len({shape for shape, _ in pairs}) == 6


@pytest.mark.parametrize("name", LEAST_CASES)
def test_timed_cases_are_outside_the_core(name: str) -> None:
    card = CARDS[name]
    assert all(card.case(case_id).kind is CaseKind.BENCHMARK for case_id in card.benchmark.case_ids)
    assert card.benchmark.primary_case_id in card.benchmark.case_ids


def test_the_profiled_rmsnorm_case_is_primary() -> None:
    card = CARDS["rmsnorm"]
    assert card.case(card.benchmark.primary_case_id).params == {"shape": (1024, 4096), "dtype": "float16"}


@pytest.mark.parametrize(("card", "case"), LEGAL)
def test_the_reference_keeps_the_cards_own_tolerance(card: TaskCard, case: Case) -> None:
    for seed in (None, 1, 2):
        arguments = arguments_of(card, case, seed)
        expected = expected_of(card, arguments)
        actual = expected_of(card, arguments, wide=False)
        assert mismatches(actual, expected, card.tolerances[str(case.params["dtype"])]) == 0  # type: ignore[index]


@pytest.mark.parametrize(("card", "case"), LEGAL)
def test_no_null_candidate_passes_a_case(card: TaskCard, case: Case) -> None:
    arguments = arguments_of(card, case)
    expected = expected_of(card, arguments)
    if expected.numel() == 0:
        return  # an empty result has nothing to get wrong but its shape
    tolerance = card.tolerances[str(case.params["dtype"])]  # type: ignore[index]
    passed = [
        n for n, result in null_results(arguments, expected) if mismatches(result, expected, tolerance) == 0
    ]
    assert passed == []


@pytest.mark.parametrize(("card", "case"), LEGAL)
def test_special_values_reach_the_result(card: TaskCard, case: Case) -> None:
    expected = expected_of(card, arguments_of(card, case))
    values = case.params.get("values")
    if values == "infinities":
        assert (~expected.isfinite()).any() and expected.isfinite().any()
    elif values == "nans":
        assert expected.isnan().any() and expected.isfinite().any()
    else:
        assert expected.isfinite().all()
