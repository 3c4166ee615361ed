"""Null candidates: the cases they pass are named, an empty case is not blamed, chance is not believed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_kv.auditing import audit_card, audit_seeds
from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.card import Tolerance
from mini_kv.core.records.card_audit import CardAudit
from mini_kv.core.records.results import Status
from mini_kv.core.rules.null_candidates import common_nulls, judge_audits
from mini_kv.system.oracle_client import OracleClient
from mini_kv.system.workers import Answer
from mini_kv.task_card import load_task_card
from mini_kv.worker.nulls import audit_nulls
from mini_kv.worker.numerics import expect
from mini_kv.worker.oracle import Oracle

FIXTURE = Path(__file__).resolve().parent / "fixtures" / "degenerate"
ROOT = FIXTURE.parents[2]
LOOSE = {"float32": Tolerance(rtol=1e-3, atol=0.0), "int32": Tolerance(rtol=0.0, atol=0.0)}


class SeatHere(OracleClient):
    """An oracle whose worker is in this process."""

    def __init__(self) -> None:
        self._oracle = Oracle()
        self._oracle.answer(p.Hello(device="cpu", threads=1), ())

    def ask(self, message: p.Request, payloads: Any = (), **_: Any) -> Answer:
        reply, out = self._oracle.answer(message, ())
        return Answer(reply=reply, payloads=[bytearray(payload) for payload in out])


def audit(path: Path, root: Path) -> CardAudit:
    return audit_card(load_task_card(path, root).card, "cpu", SeatHere(), silent)


def by_id(made: CardAudit) -> dict[str, tuple[str | None, tuple[str, ...]]]:
    return {case.case_id: (case.proves, case.passed) for case in made.cases}


@pytest.fixture
def _degenerate_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FIXTURE))
    importlib.invalidate_caches()


@pytest.mark.parametrize("name", ["vector_add", "fused_bias_relu", "rmsnorm"])
def test_the_shipped_cards_audit_clean(name: str) -> None:
    made = audit(ROOT / "tasks" / f"{name}.yaml", ROOT)
    assert made.status is Status.PASS, [case for case in made.cases if case.findings]
    assert sum(case.proves == "form" for case in made.cases) == 2
    assert all(case.proves == "values" for case in made.cases if "empty" not in case.case_id)


@pytest.mark.usefixtures("_degenerate_path")
def test_zeros_pass_a_wide_softmax_under_a_loose_tolerance() -> None:
    made = audit(FIXTURE / "softmax.yaml", FIXTURE)
    found = by_id(made)
    assert made.status is Status.INVALID
    assert found["core_narrow"] == ("values", ())
    assert found["core_wide"][0] == "nothing" and "zeros" in found["core_wide"][1]
    assert "zeros" in found["bench_wide"][1]
    assert found["boundary_empty"][0] == "form"
    wide = next(case for case in made.cases if case.case_id == "core_wide")
    assert wide.findings[0].code == "NULL_PASSES" and "zeros" in wide.findings[0].message
    assert wide.lower_precision == ("float16",)


@pytest.mark.usefixtures("_degenerate_path")
def test_the_input_itself_passes_a_relu_that_never_sees_a_negative_number() -> None:
    found = by_id(audit(FIXTURE / "relu.yaml", FIXTURE))
    assert found["core_signed"] == ("values", ())
    assert found["core_positive"] == ("nothing", ("input 0",))
    assert "zeros" in found["value_negative"][1]
    assert "memory filled with 0xFF" in found["value_nan"][1]


@pytest.mark.usefixtures("_degenerate_path")
def test_one_element_that_chance_lets_a_null_pass_is_not_blamed() -> None:
    # relu of one number is zero for half of all seeds and the number itself for the others.
    audits = [
        audit_nulls((x,), [expect(torch.relu(x), torch.relu(x.double()), LOOSE)])
        for x in (torch.tensor([-1.0]), torch.tensor([2.0]))
    ]
    assert audits[0].passed == ("zeros", "half the work") and audits[1].passed == ("input 0",)
    assert common_nulls(audits) == ()
    assert judge_audits(audits) == ("values", None)


def test_a_null_must_pass_for_every_output() -> None:
    x = torch.arange(1.0, 9.0)
    two = [expect(out, out.double(), LOOSE) for out in (torch.zeros(8), x * x)]
    assert audit_nulls((x,), two).passed == ()
    assert audit_nulls((x,), two[:1]).passed == ("zeros", "the mean", "half the work")


def test_half_the_work_is_seen_in_a_large_result_with_a_wrong_tail_only() -> None:
    x = torch.ones(1 << 18)
    x[: 1 << 17] = torch.rand(1 << 17) + 1.0
    x[1 << 17 :] = 0.0  # a degenerate tail: half the work is the whole
    assert audit_nulls((), [expect(x, x.double(), LOOSE)]).passed == ("half the work",)
    x[-1] = 1.0
    assert audit_nulls((), [expect(x, x.double(), LOOSE)]).passed == ()


def test_integers_are_audited_exactly_and_inputs_broadcast() -> None:
    row = torch.tensor([1, 2, 3], dtype=torch.int32)
    out = row.expand(4, 3).contiguous()
    assert audit_nulls((torch.ones(7), row), [expect(out, out, LOOSE)]).passed == ("input 1",)
    ones = torch.ones(5, dtype=torch.int32)
    assert "a constant" in audit_nulls((), [expect(ones, ones, LOOSE)]).passed


def test_audit_seeds_are_the_fixed_one_and_others() -> None:
    card = load_task_card(ROOT / "tasks" / "rmsnorm.yaml", ROOT).card
    seeds = audit_seeds(card.task_id, card.cases[0])
    assert len(set(seeds)) == 3 and seeds == audit_seeds(card.task_id, card.cases[0])
    assert len(audit_seeds(card.task_id, card.case("bench_256x4096_f32"))) == 1


def test_the_command_names_the_cases_and_exits_with_2(mini_kv: Any) -> None:
    code, out, _ = mini_kv("audit-task", "--task", str(FIXTURE / "relu.yaml"))
    assert code == 2
    assert "INVALID  core_positive: input 0 would pass too" in out
    assert "3 of 6 legal cases" in out
    code, out, _ = mini_kv("audit-task", "--task", str(FIXTURE / "relu.yaml"), "--json")
    assert code == 2 and json.loads(out)["status"] == "INVALID"
