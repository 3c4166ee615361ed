"""Guard zones: stray writes and reads next to the inputs are found; honest calls are left alone."""

from __future__ import annotations

import ctypes

import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.core.progress import silent
from mini_kv.core.records.card import Case, CaseKind, Contract
from mini_kv.core.records.correctness import CaseResult
from mini_kv.core.records.results import Status
from mini_kv.core.rules.verdict import axes_of
from mini_kv.core.tensors import GUARD_BYTES
from mini_kv.correctness import overall
from mini_kv.correctness.cases import run_cases
from mini_kv.correctness.grading import grade_guards
from mini_kv.correctness.rounds import plan_rounds
from mini_kv.worker.candidate import Candidate
from mini_kv.worker.guards import _interior, guard, import_guarded
from mini_kv.worker.poison import perturbed, poison
from mini_kv.worker.storage import export_arguments, storage_bytes
from probe import probe_card, probe_case, probe_subject


def run(*cases: Case) -> dict[str, CaseResult]:
    found = run_cases(probe_subject(probe_card(*cases)), silent)
    return {result.case_id: result for result in found}


def codes(result: CaseResult) -> set[str]:
    return {finding.code for one in result.rounds for finding in one.findings}


def test_an_honest_call_passes_at_any_offset() -> None:
    found = run(
        probe_case("dense", 0),
        probe_case("offset", 0, layout="offset"),
        probe_case("empty", 0, shape=(0, 33)),
        probe_case("one", 0, shape=(1,)),
    )
    assert {name: (one.status, one.proves) for name, one in found.items()} == {
        "dense": (Status.PASS, "values"),
        "offset": (Status.PASS, "values"),
        "empty": (Status.PASS, "form"),
        "one": (Status.PASS, "values"),
    }


@pytest.mark.parametrize(("mode", "where"), [(1, "at byte 404; it has 396"), (2, "4 bytes before its start")])
def test_a_write_next_to_an_input_is_found_and_placed(mode: int, where: str) -> None:
    result = run(probe_case("stray", mode))["stray"]
    assert (result.status, result.code) == (Status.FAIL, "OUT_OF_BOUNDS_WRITE")
    assert codes(result) == {"OUT_OF_BOUNDS_WRITE"}
    assert where in (result.message or "")


def test_a_write_into_the_gap_of_an_offset_input_is_a_mutation() -> None:
    result = run(probe_case("gap", 2, layout="offset"))["gap"]
    assert codes(result) == {"INPUT_MUTATED"}


def test_a_read_behind_an_input_that_hides_within_the_tolerance_does_not_repeat() -> None:
    result = run(probe_case("peeks", 3))["peeks"]
    assert (result.status, codes(result)) == (Status.FAIL, {"NOT_DETERMINISTIC"})


def test_the_memory_axis_speaks_for_itself() -> None:
    from mini_kv.core.records.correctness import Correctness

    cases = tuple(run(probe_case("honest", 0), probe_case("stray", 1), probe_case("writes", 4)).values())
    record = Correctness(
        schema_version="1.0.0", status=overall(cases, ()), device="cpu", planned_cases=3, passed_cases=1,
        cases=cases, contract=(), workers_started=1, workers_lost=0, elapsed_s=0.1,
    )  # fmt: skip
    axes = {
        axis.name: axis for axis in axes_of(None, None, record, None, regression=None, benchmark_skipped=True)
    }
    assert (axes["memory"].status, axes["memory"].code) == (Status.FAIL, "OUT_OF_BOUNDS_WRITE")
    assert axes["numerics"].status is Status.PASS
    assert "2 of them failed on memory alone" in (axes["numerics"].message or "")


def test_guarded_arguments_are_what_was_sent() -> None:
    base = torch.arange(64.0)
    sent = (base[1:33].view(4, 8), base[::2], torch.ones(3, 3).t(), torch.empty(0, 5), 7, None)
    described, payloads = export_arguments(sent)
    made = import_guarded(described, payloads, 0xFF)
    for got, want in zip(made.values, sent, strict=True):
        if not isinstance(want, torch.Tensor):
            assert got == want
            continue
        assert isinstance(got, torch.Tensor)
        assert torch.equal(got, want)
        assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())
        assert got.untyped_storage().nbytes() == want.untyped_storage().nbytes()
        assert storage_bytes(got) == storage_bytes(want)
        if want.numel():
            assert got.untyped_storage().data_ptr() % 512 == 0
            assert got.data_ptr() % 512 == want.storage_offset() * 4
    # Two views of one storage stay two views of one storage.
    one, two = made.values[:2]
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()  # type: ignore[attr-defined]
    zones = made.zones(len(payloads))
    assert [len(zone) for zone in zones] == [2 * GUARD_BYTES, 2 * GUARD_BYTES, 0]
    assert grade_guards(payloads, zones, 0xFF, 0) == ()


def test_memory_outlives_the_arguments_where_an_operator_keeps_a_tensor() -> None:
    described, payloads = export_arguments((torch.arange(1000.0),))
    kept = import_guarded(described, payloads, 0x5A).values[0]
    filler = [torch.full((9000,), 3.0) for _ in range(50)]
    assert isinstance(kept, torch.Tensor)
    assert torch.equal(kept, torch.arange(1000.0)) and len(filler) == 50


def test_refilled_arguments_are_the_same_tensors_with_new_values_and_versions() -> None:
    base = torch.arange(64.0)
    first = (base[1:33].view(4, 8), base[::2], torch.ones(3, 3).t(), torch.empty(0, 5), 7, None)
    other = -base
    second = (other[1:33].view(4, 8), other[::2], torch.full((3, 3), 5.0).t(), torch.empty(0, 5), 8, None)
    (forms, payloads), (new_forms, new_payloads) = export_arguments(first), export_arguments(second)
    made = import_guarded(forms, payloads, 0xFF)
    before = [(id(one), one.data_ptr(), one._version) for one in made.values if isinstance(one, torch.Tensor)]
    again = import_guarded(new_forms, new_payloads, 0x5A, made)
    tensors = [one for one in again.values if isinstance(one, torch.Tensor)]
    assert [(id(one), one.data_ptr()) for one in tensors] == [known[:2] for known in before]
    assert all(one._version > known[2] for one, known in zip(tensors, before, strict=True))
    assert all(
        torch.equal(got, want)
        for got, want in zip(tensors, [one for one in second if isinstance(one, torch.Tensor)], strict=True)
    )
    assert again.values[4:] == [8, None]
    assert grade_guards(new_payloads, again.zones(len(payloads)), 0x5A, 0) == ()


def test_arguments_of_another_form_are_not_put_where_the_earlier_ones_were() -> None:
    forms, payloads = export_arguments((torch.ones(4, 8),))
    made = import_guarded(forms, payloads, 0xFF)
    for other in (torch.zeros(8, 4), torch.zeros(8, 4).t(), torch.zeros(4, 8, dtype=torch.int32)):
        described, new_payloads = export_arguments((other,))
        (got,) = import_guarded(described, new_payloads, 0xFF, made).values
        assert isinstance(got, torch.Tensor) and torch.equal(got, other)
        assert got.data_ptr() != made.values[0].data_ptr()  # type: ignore[attr-defined]
    assert torch.equal(made.values[0], torch.ones(4, 8))  # type: ignore[arg-type]


def test_secret_values_come_at_the_addresses_of_the_fixed_ones_only_where_inputs_are_not_results() -> None:
    case = probe_case("core", 0)
    for functional in (True, False):
        card = probe_card(case, contract=Contract(functional=functional))
        plans = plan_rounds(card, probe_subject(card).manifest, case, "f" * 16)
        assert [one.name for one in plans if one.refill] == (["secret"] if functional else [])
    timed = probe_case("timed", 0, CaseKind.BENCHMARK)
    (only,) = plan_rounds(probe_card(case), probe_subject(probe_card(case)).manifest, timed, "f" * 16)
    assert not only.refill


def test_a_result_remembered_by_address_is_stale_at_the_next_call_with_other_values() -> None:
    def by_address(x: torch.Tensor, mode: int) -> torch.Tensor:
        return known.setdefault(x.data_ptr(), x * 2).clone()

    def by_version(x: torch.Tensor, mode: int) -> torch.Tensor:
        if versions.get(id(x)) != (x.data_ptr(), x._version):
            versions[id(x)] = (x.data_ptr(), x._version)
            results[id(x)] = x * 2
        return results[id(x)].clone()

    for operator, wanted in ((by_address, False), (by_version, True)):
        known: dict[int, torch.Tensor] = {}
        versions: dict[int, tuple[int, int]] = {}
        results: dict[int, torch.Tensor] = {}
        worker = Candidate()
        worker._operator = operator
        for step, value in enumerate((1.0, 2.0)):
            x = torch.full((5,), value)
            described, payloads = export_arguments((x, 0))
            request = p.RunCase(
                key="case", arguments=described, poison=0xFF, poison_bytes=(20,), refill=step > 0
            )
            reply, blobs = worker.answer(request, [bytearray(one) for one in payloads])
            assert isinstance(reply, p.Ran)
        assert (bytes(blobs[0]) == storage_bytes(x * 2)) is wanted


def test_a_storage_inside_an_allocation_works_as_it_must_on_a_gpu() -> None:
    # The CUDA way of making the inner storage, tried with the memory that every machine has.
    payload = bytearray(range(200))
    made = guard(payload, "cpu", 0x5A)
    inner = _interior(made.whole, made.first, made.size_bytes)
    assert storage_bytes(inner) == bytes(payload)
    assert inner.untyped_storage().nbytes() == 200
    inner[3] = 77
    assert made.storage[3] == 77


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda_here)])
def test_guarded_arguments_on_each_device(device: str) -> None:
    base = torch.arange(64.0, device=device)
    sent = (base[1:33].view(4, 8), base[::2])
    described, payloads = export_arguments(sent)
    assert len(payloads) == 1
    made = import_guarded(described, payloads, 0xFF)
    for got, want in zip(made.values, sent, strict=True):
        assert isinstance(got, torch.Tensor)
        assert got.device == want.device
        assert torch.equal(got, want) and got.data_ptr() % 512 == want.storage_offset() * 4
        assert got.untyped_storage().nbytes() == 256
    assert grade_guards(payloads, made.zones(1), 0xFF, 0) == ()
    # Equal forms over two storages are other arguments.
    apart = import_guarded(*export_arguments((base[1:33].view(4, 8) + 1, base[::2])), 0x5A, made)
    assert apart.values[0] is not made.values[0]
    other = base + 1
    described, payloads = export_arguments((other[1:33].view(4, 8), other[::2]))
    again = import_guarded(described, payloads, 0x5A, made)
    for got, kept, want in zip(again.values, made.values, (other[1:33].view(4, 8), other[::2]), strict=True):
        assert got is kept
        assert isinstance(got, torch.Tensor) and torch.equal(got, want)
    assert grade_guards(payloads, again.zones(1), 0x5A, 0) == ()
    flat = made.guarded[0].whole
    flat[made.guarded[0].first + 256] = 1
    assert grade_guards(payloads, made.zones(1), 0x5A, 0)[0].code == "OUT_OF_BOUNDS_WRITE"


def test_a_block_next_to_the_outputs_that_was_written_to_counts() -> None:
    neighbours = poison(400, 0x5A, torch.device("cpu"))
    assert neighbours.stray_writes() == 0
    neighbours.blocks[1][399] = 0
    assert neighbours.stray_writes() == 1
    assert grade_guards((), (), 0x5A, 1)[0].code == "OUT_OF_BOUNDS_WRITE"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
@pytest.mark.parametrize("pattern", [0xFF, 0x5A])
def test_all_memory_that_a_call_allocates_holds_the_pattern(pattern: int) -> None:
    """What lay in reused memory was a matter of luck: half of all processes missed a stale read."""
    cpu = torch.device("cpu")
    with perturbed(pattern, cpu):
        made = [torch.empty(size, dtype=torch.uint8) for size in (5000, 20_500, 300_000, 40 << 20)]
    assert all(bool((block == pattern).all()) for block in made)
    assert not bool((torch.zeros(20_500, dtype=torch.uint8) == pattern).any())


def test_zones_that_do_not_come_back_are_no_proof() -> None:
    assert grade_guards([b"x"], [], 0xFF, 0)[0].code == "GUARDS_NOT_RETURNED"
    assert grade_guards([b"x"], [b""], 0xFF, 0)[0].code == "OUT_OF_BOUNDS_WRITE"
    assert grade_guards([b""], [b"\xff"], 0xFF, 0)[0].code == "OUT_OF_BOUNDS_WRITE"
