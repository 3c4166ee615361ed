"""Rotating argument sets: enough bytes that no cache keeps them, each in memory of its own."""

from __future__ import annotations

import pytest
import torch

from mini_kv.core import protocol as p
from mini_kv.worker.rotation import MAX_COPIES, copied, rotation, storage_bytes
from mini_kv.worker.timed_cases import TimedCases


def sets(elements: int = 256) -> list[list[object]]:
    return [[torch.full((elements,), float(n)), 0.5] for n in range(3)]


def test_copies_are_made_until_they_exceed_the_room() -> None:
    made = rotation(sets(), 10_000)
    assert len(made) % 3 == 0
    assert sum(map(storage_bytes, made)) >= 10_000 > sum(map(storage_bytes, made[:-3]))


def test_position_i_holds_the_values_of_set_i_modulo_the_sets() -> None:
    made = rotation(sets(), 20_000)
    assert [float(one[0][0]) for one in made] == [float(i % 3) for i in range(len(made))]  # type: ignore[index]
    assert len({one[0].data_ptr() for one in made}) == len(made)  # type: ignore[attr-defined]


@pytest.mark.parametrize("room", [0, 1, 3 * 1024])
def test_sets_that_fill_the_room_by_themselves_are_not_copied(room: int) -> None:
    assert len(rotation(sets(), room)) == 3


def test_sets_of_no_bytes_or_few_are_copied_a_bounded_number_of_times() -> None:
    assert len(rotation([[torch.empty(0)], [torch.empty(0)]], 1 << 30)) == 2
    assert len(rotation(sets(1), 1 << 30)) == 3 * MAX_COPIES


def test_a_copy_keeps_gaps_strides_offsets_and_shared_storages() -> None:
    base = torch.arange(24.0)
    arguments = [base.as_strided((3, 2), (6, 2), 1), base, None, 1.0, torch.empty(2, device="meta")]
    made = copied(arguments)
    view, whole = made[0], made[1]
    assert isinstance(view, torch.Tensor) and isinstance(whole, torch.Tensor)
    assert (view.stride(), view.storage_offset()) == ((6, 2), 1)
    assert torch.equal(view, arguments[0])  # type: ignore[arg-type]
    assert view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() != base.data_ptr()
    assert made[2:] == arguments[2:]


def test_a_written_copy_is_found_by_the_place_that_drew_it() -> None:
    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    cases._room_bytes = 6 * 1024 * 3
    seen: list[torch.Tensor] = []

    def call(tensor: torch.Tensor, factor: float) -> torch.Tensor:
        if not any(tensor is one for one in seen):
            seen.append(tensor)
        if len(seen) == 8 and tensor is seen[7]:
            tensor[5] = -1.0
        return tensor * factor

    cases.prepare("a", call, sets())
    cases.answer(
        p.TimeBatch(case_id="a", warmup=0, iterations=40, calls_per_sample=1, cache="cold", kept_at=1.0)
    )
    assert len(seen) == 18
    changed = []
    for argument_set in range(3):
        for copy in range(6):
            request = p.FetchTimedInputs(case_id="a", argument_set=argument_set, place=(copy + 0.5) / 6)
            _, payloads = cases.answer(request)
            values = torch.frombuffer(bytearray(payloads[0]), dtype=torch.float32)
            changed += [(argument_set, copy)] * int((values != argument_set).any())
    assert changed == [(7 % 3, 7 // 3)]


def test_a_hot_cache_keeps_to_the_sets_themselves() -> None:
    cases = TimedCases(torch.device("cpu"), keeps_outputs=True)
    cases._room_bytes = 1 << 20
    seen: set[int] = set()

    def call(tensor: torch.Tensor, factor: float) -> torch.Tensor:
        seen.add(tensor.data_ptr())
        return tensor * factor

    cases.prepare("a", call, sets())
    cases.answer(
        p.TimeBatch(case_id="a", warmup=0, iterations=40, calls_per_sample=1, cache="hot", kept_at=1.0)
    )
    assert len(seen) == 3
