"""What a card may forbid: library calls and kept memory, held against what a traced run saw."""

from __future__ import annotations

from typing import Any

import pytest

from mini_kv.core import protocol as p
from mini_kv.core.records.benchmark import KernelSeen, KernelWitness
from mini_kv.core.records.card import CaseKind, Contract
from mini_kv.core.records.correctness import CallTrace, ContractCheck
from mini_kv.core.records.results import Finding, Status
from mini_kv.core.rules.policies import (
    judge_timed_kernels,
    judge_trace,
    judges_trace,
    library_kernels,
    library_operators,
)
from mini_kv.core.rules.suite import suite_hash
from mini_kv.correctness.contract_plan import collect_samples
from mini_kv.correctness.tracing import run_trace
from probe import candidate_seat, probe_card, probe_case, probe_subject

STRICT = Contract(allow_library_calls=False, allow_workspace=False)
HONEST, CALLS_LIBRARY, KEEPS_WORKSPACE = 0, 5, 6


def trace(
    mode: int, contract: Contract = STRICT, seat: Any = None, load: Any = lambda: None
) -> tuple[CallTrace | None, tuple[ContractCheck, ...]]:
    core = probe_case("small", HONEST)
    timed = probe_case("timed", mode, kind=CaseKind.BENCHMARK, shape=(64, 65))
    subject = probe_subject(probe_card(core, timed, contract=contract))
    samples = collect_samples(subject.card, subject.oracle)
    seated: Any = seat or candidate_seat()
    return run_trace(subject.card, subject.manifest, samples, seated, load=load)


def test_an_honest_candidate_allocates_and_computes_itself() -> None:
    found, checks = trace(HONEST)
    assert [(check.name, check.status) for check in checks] == [("policies", Status.PASS)]
    assert found is not None and found.kept_bytes == 0
    assert "mini_kv_probe::probe" in found.operators and "aten::empty" in found.operators
    assert library_operators(found.operators, "mini_kv_probe") == ()


def test_a_library_call_at_the_timed_size_only_is_found_by_name() -> None:
    found, checks = trace(CALLS_LIBRARY)
    assert [(check.status, check.code) for check in checks] == [(Status.FAIL, "LIBRARY_CALL")]
    assert "aten::mul" in (checks[0].message or "")
    assert found is not None and "aten::mul" in found.operators


def test_a_workspace_is_memory_that_outlives_the_results() -> None:
    found, checks = trace(KEEPS_WORKSPACE)
    assert found is not None and found.kept_bytes == 4000
    assert [(check.status, check.code) for check in checks] == [(Status.FAIL, "WORKSPACE_KEPT")]


def test_what_a_card_allows_is_archived_and_not_judged() -> None:
    found, checks = trace(CALLS_LIBRARY, Contract())
    # Without the policy the timed shapes are not traced.
    assert checks == () and found is not None and "aten::mul" not in found.operators


class Gone:
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def ask(self, *_: Any, **__: Any) -> Any:
        return self.outcome


def test_a_policy_without_a_trace_fails() -> None:
    from mini_kv.system.workers import Answer, Lost

    lost = Lost(code="CRASHED", message="the process died", output="")
    assert trace(HONEST, STRICT, Gone(lost))[1][0].code == "CRASHED"
    assert trace(HONEST, Contract(), Gone(lost)) == (None, ())
    failed = Answer(reply=p.Failed(code="RuntimeError", message="no"), payloads=[])
    assert trace(HONEST, STRICT, Gone(failed))[1][0].code == "NOT_TRACED"
    assert trace(HONEST, STRICT, Gone(Answer(reply=p.Done(), payloads=[])))[1][0].code == "NOT_TRACED"
    fault = Finding(code="LOAD_FAILED", message="no library")
    assert trace(HONEST, STRICT, None, lambda: fault)[1][0].code == "LOAD_FAILED"


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("void (anonymous namespace)::rmsnorm_kernel<float, 256>(float const*, float*, long)", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", True),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", False),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("ampere_sgemm_128x64_nn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>", True),
        ("void cutlass::device_kernel<my_own::RowNorm>(my_own::Params)", False),
        ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>", True),
        ("my_gemm_kernel(float*)", False),
        ("Memcpy DtoD (Device -> Device)", False),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, library: bool) -> None:
    assert bool(library_kernels([name])) is library
    witness = KernelWitness(
        kernel_us=1.0,
        samples_us=(1.0,),
        marker_us=1.0,
        kernels=(KernelSeen(name=name, launches_per_call=1.0, median_us=1.0),),
    )
    assert bool(judge_timed_kernels(witness, STRICT)) is library
    assert judge_timed_kernels(witness, Contract()) == ()


def test_kernels_of_a_trace_count_as_calls() -> None:
    seen = CallTrace(operators=("probe::probe",), kernels=("ampere_sgemm_128x64_nn",), kept_bytes=0)
    assert [finding.code for finding in judge_trace(seen, STRICT, "probe")] == ["LIBRARY_CALL"]
    other = CallTrace(operators=("probe::probe", "torchvision::nms"), kernels=(), kept_bytes=0)
    assert judge_trace(other, STRICT, "probe")[0].evidence == ("torchvision::nms",)


def test_policies_at_their_defaults_leave_the_suite_hash_as_it_was() -> None:
    card = probe_card(probe_case("a", 0))
    strict = probe_card(probe_case("a", 0), contract=Contract(allow_library_calls=False))
    assert suite_hash(card) != suite_hash(strict)
    # The hash of this card before there were policies.
    assert suite_hash(card) == SUITE_BEFORE


SUITE_BEFORE = "7accca83635e8ecaca5b99e75f1730f9921797a4febe374c0fcaad6ae4f58996"


def test_library_calls_and_workspaces_are_judged_each_by_its_own_policy() -> None:
    seen = CallTrace(operators=("aten::mul",), kernels=(), kept_bytes=1)

    def codes(**policies: bool) -> list[str]:
        return [finding.code for finding in judge_trace(seen, Contract(**policies), "probe")]

    assert codes() == []
    assert codes(allow_library_calls=False) == ["LIBRARY_CALL"]
    assert codes(allow_workspace=False) == ["WORKSPACE_KEPT"]
    clean = CallTrace(operators=("probe::a", "aten::empty"), kernels=("mine",), kept_bytes=0)
    assert judge_trace(clean, STRICT, "probe") == ()
    assert [
        judges_trace(Contract(allow_library_calls=one, allow_workspace=other))
        for one, other in ((True, True), (True, False), (False, True), (False, False))
    ] == [False, True, True, True]


@pytest.mark.parametrize(("count", "more"), [(6, ""), (7, " and 1 more"), (9, " and 3 more")])
def test_six_library_calls_are_shown_and_the_others_counted(count: int, more: str) -> None:
    names = tuple(f"aten::op{number}" for number in range(count))
    (finding,) = judge_trace(CallTrace(operators=names, kernels=(), kept_bytes=0), STRICT, "probe")
    assert finding.message.startswith(f"the candidate called {', '.join(names[:6])}{more}; the card wants")
    assert finding.evidence == names


def test_a_case_without_a_witness_has_no_kernels_to_judge() -> None:
    assert judge_timed_kernels(None, STRICT) == ()
