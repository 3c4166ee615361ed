"""Which contract checks a card makes us ask, and on which cases. Pure: nothing is run."""

from __future__ import annotations

from typing import Any

from mini_kv.core import protocol as p
from mini_kv.core.records.card import BenchmarkPlan, Case, CaseKind, Contract, TaskCard, Tolerance
from mini_kv.core.records.correctness import ContractCheck
from mini_kv.core.records.results import Status
from mini_kv.core.rules.registration import no_fake
from mini_kv.core.tensors import Argument, ScalarArg, TensorSpec, contiguous_strides, element_count
from mini_kv.correctness.contract_plan import (
    Question,
    Sample,
    _grade,
    dynamic_samples,
    joined,
    judged_apart,
    plan_questions,
    told_once,
)
from mini_kv.system.workers import Answer


def tensor(
    *shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None, blob: int = 0
) -> TensorSpec:
    return TensorSpec(
        shape=shape,
        strides=strides or contiguous_strides(shape),
        storage_offset=0,
        dtype=dtype,
        device="cpu",
        storage_bytes=4 * element_count(shape),
        blob=blob,
    )


def sample(name: str, *arguments: Argument, kind: CaseKind = CaseKind.CORE) -> Sample:
    payloads = [bytearray(a.storage_bytes) for a in arguments if isinstance(a, TensorSpec)]
    return Sample(case=Case(id=name, kind=kind, params={}), arguments=arguments, payloads=payloads)


def card(**contract: bool) -> TaskCard:
    return TaskCard(
        schema_version="1.0.0",
        task_id="t",
        operator="t",
        operator_version="1.0.0",
        reference="a:b",
        input_factory="a:c",
        candidate="candidates/t",
        device="auto",
        cases=(Case(id="a", kind=CaseKind.CORE, params={}),),
        tolerances={"float32": Tolerance(rtol=0.0, atol=0.0)},
        contract=Contract(**contract),
        benchmark=BenchmarkPlan(case_ids=("a",), primary_case_id="a"),
    )


def asked(questions: tuple[Question, ...]) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for question in questions:
        found.setdefault(question.check, []).append([sample.case.id for sample in question.samples])
    return found


def test_only_a_card_with_imports_or_policies_has_anything_judged_in_a_second_worker() -> None:
    plain = {"opcheck": False, "gradcheck": False}
    assert not judged_apart(Contract(**plain))
    for demand in ({"opcheck": True}, {"gradcheck": True}):
        assert judged_apart(Contract(**{**plain, **demand}))
    for policy in ("allow_library_calls", "allow_workspace"):
        assert judged_apart(Contract(**plain, **{policy: False}))


SAMPLES = (
    sample("large_f32", tensor(64, 128)),
    sample("small_f32", tensor(2, 3)),
    sample("middle_f32", tensor(5, 7)),
    sample("small_f16", tensor(2, 3, dtype="float16")),
    sample("turned", tensor(3, 2, strides=(1, 3)), kind=CaseKind.LAYOUT),
    sample("zeros", tensor(4, 5), kind=CaseKind.VALUE),
)


def test_the_smallest_core_case_of_each_dtype_and_every_layout_is_opchecked() -> None:
    found = asked(plan_questions(card(), SAMPLES, "cpu", 1))
    assert found["opcheck"] == [["small_f16"], ["small_f32"]]
    assert found["opcheck_layout"] == [["turned"]]


def test_what_is_promised_of_results_is_held_against_every_case_but_the_timed_ones() -> None:
    timed = sample("timed", tensor(64, 128), kind=CaseKind.BENCHMARK)
    found = asked(plan_questions(card(), (*SAMPLES, timed), "cpu", 1))
    assert found["fake_results"] == [[one.case.id for one in SAMPLES]]


def test_gradcheck_gets_the_largest_case_that_is_still_cheap() -> None:
    assert asked(plan_questions(card(), SAMPLES, "cpu", 1))["gradcheck"] == [["middle_f32"]]
    only_large = (SAMPLES[0],)
    assert asked(plan_questions(card(), only_large, "cpu", 1))["gradcheck"] == [["large_f32"]]


def test_only_what_the_card_demands_is_asked() -> None:
    nothing = card(opcheck=False, gradcheck=False, streams=False)
    assert plan_questions(nothing, SAMPLES, "cuda", 2) == ()
    assert set(asked(plan_questions(card(gradcheck=False), SAMPLES, "cpu", 1))) == {
        "opcheck",
        "opcheck_layout",
        "dynamic_shapes",
        "fake_results",
    }
    assert set(asked(plan_questions(card(opcheck=False), SAMPLES, "cpu", 1))) == {"gradcheck"}


def test_streams_graphs_and_the_second_gpu_are_asked_on_cuda_only() -> None:
    on_cpu = asked(plan_questions(card(), SAMPLES, "cpu", 2))
    one = asked(plan_questions(card(), SAMPLES, "cuda", 1))
    two = asked(plan_questions(card(), SAMPLES, "cuda", 2))
    assert not {"current_stream", "graph_capture", "second_device"} & set(on_cpu)
    assert one["current_stream"] == one["graph_capture"] == [["large_f32"]]
    assert "second_device" not in one
    assert two["second_device"] == [["large_f32"]]


def test_without_a_core_case_nothing_can_be_asked() -> None:
    assert plan_questions(card(), SAMPLES[4:], "cuda", 2) == ()


# ---------------------------------------------------------------------------- dynamic shapes


def names(samples: tuple[Sample, ...]) -> list[str]:
    return [sample.case.id for sample in samples]


def test_dynamic_shapes_compares_sizes_of_one_rank_and_dtype() -> None:
    core = [
        sample("a", tensor(2, 3)),
        sample("b", tensor(4, 5)),
        sample("other_rank", tensor(7)),
        sample("other_dtype", tensor(8, 9, dtype="float16")),
        sample("c", tensor(6, 7)),
        sample("d", tensor(10, 11)),
    ]
    assert names(dynamic_samples(core)) == ["a", "b", "c"]


def test_extents_that_specialise_by_design_are_left_out() -> None:
    core = [
        sample("one", tensor(1, 5)),
        sample("none", tensor(0, 5)),
        sample("square", tensor(4, 4)),
        sample("turned", tensor(5, 7, strides=(1, 5))),
        sample("good", tensor(2, 3)),
        sample("good_too", tensor(3, 4)),
    ]
    assert names(dynamic_samples(core)) == ["good", "good_too"]


def test_equal_shapes_count_once() -> None:
    core = [sample("a", tensor(2, 3)), sample("again", tensor(2, 3)), sample("b", tensor(3, 4))]
    assert names(dynamic_samples(core)) == ["a", "b"]


def test_where_no_sizes_differ_one_case_remains_and_is_later_skipped() -> None:
    assert names(dynamic_samples([sample("square", tensor(4, 4))])) == ["square"]
    assert names(dynamic_samples([sample("scalars", ScalarArg(value=1))])) == ["scalars"]


# ---------------------------------------------------------------------------- on the wire


def test_joined_sets_share_one_list_of_payloads() -> None:
    first = sample("a", tensor(2), ScalarArg(value=0.5), tensor(3, blob=1))
    second = sample("b", tensor(4), tensor(4, blob=0))
    sets, payloads = joined((first, second))
    blobs = [[a.blob for a in arguments if isinstance(a, TensorSpec)] for arguments in sets]
    assert blobs == [[0, 1], [2, 2]]
    assert len(payloads) == 4
    assert sets[0][1] == ScalarArg(value=0.5)


def graded(reply: Any, check: str = "opcheck") -> dict[str, tuple[Status, str | None]]:
    checks = _grade(check, "a", Answer(reply=reply, payloads=[]))
    return {check.name: (check.status, check.code) for check in checks}


PARTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def test_each_part_of_opcheck_is_a_check_of_its_own() -> None:
    answers: dict[str, str | None] = {f"opcheck.{part}": None for part in PARTS}
    answers["opcheck.test_faketensor"] = "wrong strides"
    found = graded(p.ContractAnswer(results=answers))
    assert found.pop("opcheck.test_faketensor") == (Status.FAIL, "OPCHECK_TEST_FAKETENSOR")
    assert set(found.values()) == {(Status.PASS, None)}
    assert len(found) == 3


def test_a_short_answer_fails_where_it_is_short() -> None:
    found = graded(p.ContractAnswer(results={"opcheck.test_schema": None, "made_up": None}))
    assert found["opcheck.test_schema"] == (Status.PASS, None)
    assert [code for _, code in found.values()].count("UNANSWERED") == 3
    assert "made_up" not in found


def test_an_answer_of_another_kind_is_no_pass() -> None:
    assert graded(p.Done(), "gradcheck") == {"gradcheck": (Status.FAIL, "CHECK_FAILED_TO_RUN")}
    failed = p.Failed(code="KeyError", message="gradcheck")
    assert graded(failed, "gradcheck") == {"gradcheck": (Status.FAIL, "CHECK_FAILED_TO_RUN")}


def test_one_missing_fake_kernel_failed_six_checks() -> None:
    cause = no_fake("ns::op")

    def check(name: str, message: str | None) -> ContractCheck:
        status = Status.PASS if message is None else Status.FAIL
        code = None if message is None else name.upper()
        return ContractCheck(name=name, case_id="a", status=status, code=code, message=message, elapsed_s=0.0)

    texts = (("schema", None), ("faketensor", cause), ("gradcheck", "another"), ("fake_results", cause))
    given = [check(name, message) for name, message in texts]
    told = told_once(given)
    assert told[:3] == given[:3]
    assert (told[3].status, told[3].code) == (Status.SKIPPED, "NO_FAKE_KERNEL")
    assert told[3].message == "not asked: no fake (Meta) kernel is registered, as faketensor on a says"
    # Whoever names the cause has failed at least once.
    assert [one.status for one in told_once(given[3:])] == [Status.FAIL]
