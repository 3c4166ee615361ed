"""The union of device activities: overlapping work counts once, gaps not at all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from mini_kv.worker.cupti import _Activity, _summarise, union_us


@pytest.mark.parametrize(
    ("intervals", "expected_us"),
    [
        ([], 0.0),
        ([(0, 1000)], 1.0),
        ([(0, 1000), (2000, 3000)], 2.0),
        ([(0, 3000), (1000, 2000)], 3.0),
        ([(1000, 3000), (0, 2000)], 3.0),
        ([(0, 1000), (1000, 2000)], 2.0),
    ],
)
def test_union_of_intervals(intervals: list[tuple[int, int]], expected_us: float) -> None:
    assert union_us(intervals) == pytest.approx(expected_us)


def activity(start_us: float, length_us: float, name: str, stream: int = 7) -> _Activity:
    return _Activity(
        start_ns=int(start_us * 1e3), end_ns=int((start_us + length_us) * 1e3), name=name, stream=stream
    )


def test_the_cache_flush_before_a_call_is_not_its_work() -> None:
    trace = [
        activity(0, 30, "fill"),
        activity(31, 0.6, "at::spin_kernel"),
        activity(32, 5, "mine"),
        activity(38, 0.6, "at::spin_kernel"),
        activity(39, 30, "fill"),
        activity(70, 0.6, "at::spin_kernel"),
        activity(71, 7, "mine"),
        activity(79, 0.6, "at::spin_kernel"),
    ]
    seen = _summarise(trace, 2)
    assert seen.samples_us == (5.0, 7.0)
    assert seen.kernel_us == pytest.approx(6.0)
    assert seen.marker_us == pytest.approx(0.6)
    assert [(kernel.name, kernel.launches_per_call) for kernel in seen.kernels] == [("mine", 1.0)]


def test_a_trace_with_missing_markers_is_refused() -> None:
    with pytest.raises(RuntimeError, match="1 markers; 2 were launched"):
        _summarise([activity(0, 1, "at::cuda::spin_kernel")], 1)


def test_a_candidates_kernel_called_like_the_marker_is_its_work() -> None:
    trace = [
        activity(0, 0.6, "at::cuda::spin_kernel(long)"),
        activity(1, 5, "spin_kernel(long*, long, long)"),
        activity(7, 0.6, "at::cuda::spin_kernel(long)"),
    ]
    assert _summarise(trace, 1).kernel_us == pytest.approx(5.0)


def test_an_unjoined_stream_that_starts_during_the_flush_is_the_calls_work() -> None:
    """It began before the opening marker, behind the flush of its own stream, and was not counted at all."""
    trace = [
        activity(0, 30, "fill"),
        activity(5, 20, "aside", stream=13),
        activity(31, 0.6, "at::spin_kernel"),
        activity(33, 0.6, "at::spin_kernel"),
        activity(34, 30, "fill"),
        activity(40, 22, "aside", stream=13),
        activity(65, 0.6, "at::spin_kernel"),
        activity(67, 0.6, "at::spin_kernel"),
    ]
    seen = _summarise(trace, 2)
    assert seen.samples_us == (20.0, 22.0)
    assert [(kernel.name, kernel.launches_per_call) for kernel in seen.kernels] == [("aside", 1.0)]


def test_an_unjoined_stream_that_starts_after_the_last_marker_is_the_calls_work() -> None:
    trace = [
        activity(0, 0.6, "at::spin_kernel"),
        activity(2, 0.6, "at::spin_kernel"),
        activity(3, 9, "aside", stream=13),
    ]
    assert _summarise(trace, 1).samples_us == (9.0,)


def test_work_on_another_stream_counts_as_outside_where_no_pair_around_the_call_sees_it() -> None:
    trace = [
        activity(0, 30, "fill"),
        activity(31, 0.6, "at::spin_kernel"),
        activity(33, 5, "mine"),
        activity(34, 10, "aside", stream=13),
        activity(39, 0.6, "at::spin_kernel"),
        activity(50, 30, "fill"),
        activity(60, 25, "aside", stream=13),
        activity(81, 0.6, "at::spin_kernel"),
        activity(82, 5, "mine"),
        activity(88, 0.6, "at::spin_kernel"),
    ]
    # The first call's work runs on for 4.4 us, the second's begins 21 us early.
    assert _summarise(trace, 2).outside_us == pytest.approx((4.4 + 21.0) / 2)


def test_work_on_another_stream_that_the_call_waits_for_is_not_outside() -> None:
    trace = [
        activity(31, 0.6, "at::spin_kernel"),
        activity(32, 5, "mine"),
        activity(32.5, 9, "aside", stream=13),
        activity(42, 0.6, "at::spin_kernel"),
    ]
    seen = _summarise(trace, 1)
    assert seen.outside_us == 0.0
    assert seen.kernel_us == pytest.approx(9.5)


def test_work_left_outside_in_every_third_call_is_not_lost_in_a_median() -> None:
    trace = []
    for call in range(9):
        start = 100.0 * call
        trace += [activity(start, 0.6, "at::spin_kernel"), activity(start + 3, 0.6, "at::spin_kernel")]
        if call % 3 == 0:
            trace.append(activity(start + 1, 42.6, "aside", stream=13))
    assert _summarise(sorted(trace, key=lambda one: one.start_ns), 9).outside_us == pytest.approx(40.0 / 3)
