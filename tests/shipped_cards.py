"""The shipped cards, their cases' arguments on the CPU, and what the reference makes of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from mini_kv.core.canonical import fixed_seed
from mini_kv.core.records.card import Case, TaskCard, Tolerance
from mini_kv.task_card.loading import load_task_card

ROOT = Path(__file__).resolve().parents[1]
LEAST_CASES = {"vector_add": 19, "fused_bias_relu": 20, "rmsnorm": 24}
CARDS = {name: load_task_card(ROOT / "tasks" / f"{name}.yaml", ROOT).card for name in LEAST_CASES}


def arguments_of(card: TaskCard, case: Case, seed: int | None = None) -> tuple[Any, ...]:
    """Make a case's arguments on the CPU, from the fixed seed unless another is given."""
    module, function = card.input_factory.split(":")
    generator = torch.Generator().manual_seed(fixed_seed(card.task_id, case.id) if seed is None else seed)
    made = getattr(importlib.import_module(module), function)(case.params, generator, torch.device("cpu"))
    return tuple(made)


def expected_of(card: TaskCard, arguments: tuple[Any, ...], *, wide: bool = True) -> torch.Tensor:
    """Return the reference's result: computed in float64 and rounded, or at the working dtype."""
    module, function = card.reference.split(":")
    given = [a.double() if wide and isinstance(a, torch.Tensor) else a for a in arguments]
    result: torch.Tensor = getattr(importlib.import_module(module), function)(*given)
    return result.to(arguments[0].dtype)


def mismatches(actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> int:
    """Count elements outside the tolerance; only NaN matches NaN, only the same infinity an infinity."""
    got, want = actual.double(), expected.double()
    close = (got - want).abs() <= tolerance.atol + tolerance.rtol * want.abs()
    same = (got == want) | (got.isnan() & want.isnan())
    return int((~torch.where(want.isfinite(), close, same)).sum())
