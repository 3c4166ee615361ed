"""Peers as references: right, compiled once and for static shapes, and cards that can be measured."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mini_kv.benchmark import samples
from mini_kv.core import protocol as p
from mini_kv.core.cost import Cost
from mini_kv.core.records.card import Case, CaseKind
from mini_kv.core.tensors import element_count
from mini_kv.references import fused_bias_relu, peers, rmsnorm, vector_add
from mini_kv.system.oracle_client import OracleClient
from mini_kv.system.workers import Answer
from mini_kv.task_card.loading import load_task_card
from mini_kv.worker.oracle import Oracle
from shipped_cards import arguments_of, mismatches

ROOT = Path(__file__).resolve().parents[2]
CARDS = {path.stem: load_task_card(path, ROOT).card for path in (ROOT / "tasks" / "peers").glob("*.yaml")}
FORMULAS: dict[str, Any] = {
    "rmsnorm": rmsnorm.reference,
    "fused_bias_relu": fused_bias_relu.reference,
    "vector_add": vector_add.reference,
}


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Record calls of ``torch.compile``, which then returns what it was given."""
    calls: list[dict[str, Any]] = []

    def compile_nothing(formula: Any, **options: Any) -> Any:
        calls.append({"formula": formula, **options})
        return formula

    monkeypatch.setattr(torch, "compile", compile_nothing)
    peers.compiled.cache_clear()
    yield calls
    peers.compiled.cache_clear()


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_peer_is_within_the_cards_tolerance_of_the_formula(
    name: str, compilations: list[dict[str, Any]]
) -> None:
    card = CARDS[name]
    module, _, function = card.reference.partition(":")
    if "triton" in module:
        pytest.importorskip("triton")
    peer = getattr(importlib.import_module(module), function)
    for case in card.cases:
        if case.kind is CaseKind.CORE:
            arguments = arguments_of(card, case)
            wide = [a.double() if isinstance(a, torch.Tensor) else a for a in arguments]
            expected = FORMULAS[card.operator](*wide).to(arguments[0].dtype)
            tolerance = card.tolerances[str(case.params["dtype"])]  # type: ignore[index]
            assert mismatches(peer(*arguments), expected, tolerance) == 0, case.id


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_peers_card_times_what_it_is_for(name: str) -> None:
    card = CARDS[name]
    assert card.device == "cuda"
    timed = {case.id for case in card.cases if case.kind is CaseKind.BENCHMARK}
    assert set(card.benchmark.case_ids) == timed
    assert {case.params["dtype"] for case in card.cases if case.kind is CaseKind.CORE} == set(card.tolerances)


def test_a_formula_is_compiled_once_for_static_shapes(compilations: list[dict[str, Any]]) -> None:
    size = peers.COMPILED_ELEMENTS
    for length in (size, size + 1, size + 2):
        peers.vector_add_compiled(torch.ones(length), torch.ones(length))
    assert compilations == [{"formula": vector_add.reference, "fullgraph": True, "dynamic": False}]
    peers.bias_relu_compiled(torch.ones(2, size), torch.ones(size))
    assert len(compilations) == 2
    peers.bias_relu_compiled(torch.ones(2, 3), torch.ones(3))
    assert len(compilations) == 2


@pytest.mark.parametrize("name", sorted(CARDS))
def test_whatever_a_compiled_peer_is_timed_on_is_compiled(name: str) -> None:
    for case in CARDS[name].cases:
        shape = case.params["shape"]
        assert isinstance(shape, tuple)
        timed = case.kind is CaseKind.BENCHMARK
        assert (element_count(tuple(map(int, shape))) >= peers.COMPILED_ELEMENTS) == timed, case.id


def test_a_compiled_peer_that_falls_back_to_eager_is_an_error(compilations: list[dict[str, Any]]) -> None:
    import torch._dynamo.config

    peers.compiled(vector_add.reference)
    assert torch._dynamo.config.fail_on_recompile_limit_hit
    assert torch._dynamo.config.recompile_limit >= max(len(card.cases) for card in CARDS.values())


@pytest.mark.parametrize("peer", [peers.rmsnorm_functional, peers.rmsnorm_compiled, peers.rmsnorm_liger])
def test_the_yardstick_is_the_formulas_own(
    peer: Any, compilations: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "rms_norm", None)
    x, weight = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    assert torch.equal(peer(x, weight, 1e-5), rmsnorm.reference(x, weight, 1e-5))
    assert compilations == []


def test_a_peer_is_charged_by_the_input_factorys_cost_model() -> None:
    oracle = Oracle()
    card = CARDS["rmsnorm_vs_functional"]
    loaded, _ = oracle.answer(
        p.LoadReference(reference=card.reference, input_factory=card.input_factory, tolerances={}), ()
    )
    assert isinstance(loaded, p.ReferenceLoaded) and loaded.has_cost_model
    params = card.case("bench_1024x4096_f16").params
    assert oracle._cost(params) == rmsnorm.cost_model(params) != Cost(bytes_moved=0, flops=0)


@pytest.mark.parametrize(("size_bytes", "sets"), [(64, 3), (65, 1)])
def test_a_large_argument_set_is_timed_alone(
    size_bytes: int, sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "LARGE_SET_BYTES", 64)
    made = p.CaseMade(
        arguments=(), expected=(), bytes_moved=None, flops=None, reference_within_tolerance=True
    )
    asked: list[p.Request] = []

    class Makes(OracleClient):
        def ask(self, message: p.Request, *_: Any, **__: Any) -> Answer:
            asked.append(message)
            return Answer(reply=made, payloads=[bytearray(size_bytes)])

    case = Case(id="case", kind=CaseKind.BENCHMARK, params={})
    subject = SimpleNamespace(oracle=Makes(), secret_seeds={"case": "0" * 16}, chooser=random.Random(1))
    found, payloads = samples.make_sets(cast(samples.TimedSubject, subject), case)
    assert len(found.made) == len(found.keys) == len(found.storages) == len(payloads) == len(asked) == sets
