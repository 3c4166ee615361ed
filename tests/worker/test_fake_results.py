"""What a Meta function promises is held against what the operator returns, for every form of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from mini_kv.core.rules.registration import NO_FAKE
from mini_kv.worker.contract_checks import fake_results, opcheck

Meta = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS = [torch.ones(3, 5), torch.ones(7, 4), torch.ones(5, 3).t(), torch.ones(1, 4), torch.ones(0, 4)]


@pytest.fixture
def define() -> Iterator[Callable[[Meta], torch._ops.OpOverload]]:
    """Make an operator that doubles its input into dense memory, with the given Meta function."""
    library = torch.library.Library("mini_kv_promises", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: (x * 2).contiguous(), "CPU")

    def make(meta: Meta) -> torch._ops.OpOverload:
        torch.library.register_fake("mini_kv_promises::double", meta, lib=library)
        return torch.ops.mini_kv_promises.double.default

    yield make
    library._destroy()


def _dense(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _asked(operator: torch._ops.OpOverload) -> str | None:
    return fake_results(operator, [[x] for x in LAYOUTS], False)["fake_results"]


def test_a_true_promise_passes_for_every_layout(
    define: Callable[[Meta], torch._ops.OpOverload],
) -> None:
    assert _asked(define(_dense)) is None


def test_strides_of_the_input_are_no_promise_of_dense_memory(
    define: Callable[[Meta], torch._ops.OpOverload],
) -> None:
    operator = define(torch.empty_like)
    found = _asked(operator)
    assert found is not None and "strides (1, 3), not (5, 1)" in found
    # torch 2.11's opcheck looks at them on CUDA alone, later ones on the CPU as well.
    told = set(opcheck(operator, [[LAYOUTS[2]]], False).values()) - {None}
    assert all("Stride mismatch" in str(one) for one in told)


def test_a_promise_that_is_true_for_numbers_only_is_found(
    define: Callable[[Meta], torch._ops.OpOverload],
) -> None:
    def meta(x: torch.Tensor) -> torch.Tensor:
        wrong = isinstance(x.shape[0], torch.SymInt)
        return torch.empty_like(_dense(x), dtype=torch.float64 if wrong else x.dtype)

    found = _asked(define(meta))
    assert found is not None and "with sizes as symbols" in found and "dtype torch.float64" in found


def test_a_promise_that_is_true_for_some_sizes_only_is_found(
    define: Callable[[Meta], torch._ops.OpOverload],
) -> None:
    found = _asked(define(lambda x: _dense(x) if x.shape[1] != 4 else x.new_empty(x.shape[0])))
    assert found is not None and "shape (7,), not (7, 4)" in found and "(inputs [7, 4])" in found


def test_an_operator_that_promises_nothing_is_no_pass(
    define: Callable[[Meta], torch._ops.OpOverload],
) -> None:
    library = torch.library.Library("mini_kv_promises_nothing", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    found = _asked(torch.ops.mini_kv_promises_nothing.double.default)
    library._destroy()
    assert found is not None and found.startswith(NO_FAKE)
    assert "mini_kv_promises_nothing" in found
