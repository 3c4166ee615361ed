"""A call leaves its inputs, its results and autograd as they were, apart from the bytes that it was given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.core.tensors import TensorSpec
from mini_kv.correctness.grading import grade_altered, grade_raised
from mini_kv.correctness.rounds import plan_rounds
from mini_kv.worker.candidate import Candidate
from probe import probe_card, probe_case, probe_subject

ARGUMENT = TensorSpec(
    shape=(2, 3), strides=(3, 1), storage_offset=0, dtype="float32", device="cpu", storage_bytes=24, blob=0
)


class Worker:
    """A candidate worker whose operator is a function of one tensor, float32 [2, 3]."""

    def __init__(self, operator: Callable[[torch.Tensor], object]) -> None:
        self.candidate = Candidate()
        self.candidate.answer(p.Hello(device="cpu", threads=1), ())
        self.candidate._operator = operator

    def run(self, *, mode: p.CallMode = "no_grad", version: int = 0, first: float = 1.0) -> p.Ran | p.Raised:
        values = torch.arange(first, first + 6.0)
        payload = bytearray(values.view(torch.uint8).tolist())
        request = p.RunCase(
            key="case",
            arguments=(ARGUMENT,),
            poison=0xFF,
            poison_bytes=(24,),
            keep="round",
            mode=mode,
            version=version,
        )
        reply, self.payloads = self.candidate.answer(request, [payload])
        assert isinstance(reply, p.Ran | p.Raised)
        return reply

    def recall(self) -> list[bytes]:
        reply, payloads = self.candidate.answer(p.Recall(key="case", kept=("round",)), [])
        assert isinstance(reply, p.Recalled)
        return [bytes(payload) for payload in payloads]


def _after(action: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], torch.Tensor]:
    def operator(x: torch.Tensor) -> torch.Tensor:
        result = (x * 2.0).detach()
        action(x)
        return result

    return operator


def _replace_storage(x: torch.Tensor) -> None:
    x.set_(x.untyped_storage().clone(), 0, x.shape, x.stride())


def _set_gradient(x: torch.Tensor) -> None:
    x.grad = torch.ones_like(x)


@pytest.mark.parametrize(
    ("action", "trait"),
    [
        (lambda x: x.t_(), "shape"),
        (lambda x: x.unsqueeze_(0), "shape"),
        (lambda x: x.as_strided_((2, 3), (0, 1)), "strides"),
        (_replace_storage, "storage"),
        (lambda x: x.requires_grad_(True), "requires_grad"),
        (_set_gradient, "grad"),
        (lambda x: x.mul_(2.0).mul_(0.5), "version"),
    ],
)
def test_an_input_that_is_another_tensor_afterwards_is_mutated_though_its_bytes_are_the_same(
    action: Callable[[torch.Tensor], object], trait: str
) -> None:
    reply = Worker(_after(action)).run()
    assert isinstance(reply, p.Ran)
    (altered,) = reply.altered
    assert altered.argument == 0 and trait in altered.traits
    (finding,) = grade_altered(reply.altered)
    assert finding.code == "INPUT_MUTATED" and trait in finding.message


def test_a_hook_that_is_left_on_an_input_is_found() -> None:
    operator = _after(lambda x: x.register_hook(lambda grad: grad * 2.0))
    reply = Worker(operator).run(mode="requires_grad")
    assert isinstance(reply, p.Ran) and reply.altered[0].traits == ("hooks",)


def test_reading_an_input_in_every_way_alters_nothing() -> None:
    def operator(x: torch.Tensor) -> torch.Tensor:
        views = (x.t(), x.view(-1), x[1:], x.detach(), x.expand(4, 2, 3), x.contiguous())
        assert all(view.numel() for view in views)
        return x.clone()

    for mode in ("no_grad", "grad"):
        reply = Worker(operator).run(mode=mode)  # type: ignore[arg-type]
        assert isinstance(reply, p.Ran) and reply.altered == ()


@pytest.mark.parametrize("mode", ["no_grad", "grad"])
def test_a_result_that_wants_gradients_where_no_input_does_is_refused(mode: p.CallMode) -> None:
    reply = Worker(lambda x: (x * 2.0).requires_grad_(True)).run(mode=mode)
    assert isinstance(reply, p.Raised) and "requires gradients, though no input does" in reply.message


def test_a_result_that_carries_gradients_of_an_input_is_none_of_those() -> None:
    worker = Worker(lambda x: x * 2.0)
    reply = worker.run(mode="requires_grad")
    assert isinstance(reply, p.Ran) and reply.altered == ()
    (output,) = reply.outputs
    assert (output.shape, output.dtype, output.aliases_input) == ((2, 3), "float32", None)
    doubled = torch.arange(2.0, 14.0, 2.0).view(torch.uint8).tolist()
    assert list(bytes(worker.payloads[0])) == doubled


def test_a_result_of_the_inference_mode_is_refused() -> None:
    def operator(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return x * 2.0

    reply = Worker(operator).run()
    assert isinstance(reply, p.Raised) and "inference mode" in reply.message


def test_a_result_that_reaches_beyond_its_memory_is_refused_and_not_read() -> None:
    """Its bytes were read, which killed the worker: a crash that was none of the call's."""

    def operator(x: torch.Tensor) -> torch.Tensor:
        result = x * 2.0
        result.untyped_storage().resize_(4)
        return result

    reply = Worker(operator).run()
    assert isinstance(reply, p.Raised) and "beyond its memory" in reply.message


def test_a_result_whose_form_a_later_call_changes_is_another_result() -> None:
    kept: list[torch.Tensor] = []

    def operator(x: torch.Tensor) -> torch.Tensor:
        kept.append(x * 2.0)
        return kept[-1]

    worker = Worker(operator)
    worker.run()
    before = worker.recall()
    kept[-1].unsqueeze_(0)
    assert before != worker.recall() == [b""]


def test_a_result_remembered_by_version_and_form_is_stale() -> None:
    """The fixed round's tensors count as written to once; so do the secret round's, with other values."""
    card = probe_card(probe_case("core", 0))
    plans = plan_rounds(card, probe_subject(card).manifest, card.cases[0], "f" * 16)
    assert [(one.name, one.version, one.refill) for one in plans] == [
        ("fixed", 1, False),
        ("repeat", 0, False),
        ("secret", 0, True),
    ]
    cache: dict[object, torch.Tensor] = {}

    def operator(x: torch.Tensor) -> torch.Tensor:
        return cache.setdefault((x._version, x.shape), x * 2.0).clone()

    worker = Worker(operator)
    worker.run(version=1)
    fixed = bytes(worker.payloads[0])
    worker.run(version=0)
    worker.run(version=1, first=7.0)
    assert bytes(worker.payloads[0]) == fixed


def test_a_fault_in_a_formula_for_gradients_is_told_as_one() -> None:
    raised = p.Raised(types=("GradientFault", "Exception"), message="it wrote", device_lost=False)
    assert grade_raised("gradients", raised).code == "WRONG_GRADIENTS"
    assert grade_raised("no_grad", raised).code == "RAISED"
