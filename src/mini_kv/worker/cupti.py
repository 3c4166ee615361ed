"""The second witness: device-side kernel times from CUPTI, through torch's profiler, in a pass of its own.

It runs after all event-pair samples of a process were taken, since CUPTI, once attached, stays. Each
call stands between two marker kernels, so that its kernels can be told from the cache flush. Nothing but
the call uses another stream than theirs: what runs there is the call's, also where it begins while the
flush before the first marker still runs, or after the second.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.autograd.profiler import profile

from mini_kv.core.records.benchmark import KernelSeen, KernelWitness

# torch.cuda._sleep's kernel: nothing else in PyTorch launches it, and for 0 cycles it does nothing.
MARKER = "spin_kernel"
MARKER_NAMESPACE = "at::"
_NAME_LIMIT = 400


@dataclass(frozen=True, kw_only=True)
class _Activity:
    start_ns: int
    end_ns: int
    name: str
    stream: int = 0


def witness(
    call: Callable[..., object],
    sets: Sequence[Sequence[object]],
    calls: int,
    before_call: Callable[[int], None],
) -> KernelWitness:
    """Trace ``calls`` calls and return what the device did in each; raises ``RuntimeError`` without CUPTI.

    ``before_call`` clears the cache (or does nothing). Times are microseconds.
    """
    call(*sets[0])
    torch.cuda.synchronize()
    # Not torch.profiler's class of that name, which imports all of torch.compile before it starts.
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as trace:
        for position in range(calls):
            before_call(position)
            torch.cuda._sleep(0)
            call(*sets[position % len(sets)])
            torch.cuda._sleep(0)
        torch.cuda.synchronize()
    return _summarise(_activities(trace), calls)


def _activities(trace: profile) -> list[_Activity]:
    results = trace.kineto_results
    if results is None:
        raise RuntimeError("torch's profiler returned no device trace")
    found = [
        _Activity(
            start_ns=event.start_ns(),
            end_ns=event.start_ns() + event.duration_ns(),
            name=event.name(),
            stream=event.device_resource_id(),
        )
        for event in results.events()
        if str(event.device_type()).endswith("CUDA") and event.duration_ns() > 0
    ]
    return sorted(found, key=lambda activity: activity.start_ns)


def _is_marker(activity: _Activity) -> bool:
    # A candidate may well call a kernel of its own by that name, but not in torch's namespace.
    return MARKER in activity.name and MARKER_NAMESPACE in activity.name


def _summarise(activities: Sequence[_Activity], calls: int) -> KernelWitness:
    markers = [activity for activity in activities if _is_marker(activity)]
    if len(markers) != 2 * calls:
        raise RuntimeError(f"the trace holds {len(markers)} markers; {2 * calls} were launched")
    busy_us: list[float] = []
    outside_us: list[float] = []
    seen: dict[str, list[float]] = defaultdict(list)
    for number, inside in enumerate(_by_call(activities, markers)):
        busy_us.append(union_us([(activity.start_ns, activity.end_ns) for activity in inside]))
        outside_us.append(_outside_us(inside, markers[2 * number], markers[2 * number + 1]))
        for activity in inside:
            seen[activity.name].append((activity.end_ns - activity.start_ns) / 1e3)
    return KernelWitness(
        kernel_us=statistics.median(busy_us),
        samples_us=tuple(busy_us),
        marker_us=statistics.median((mark.end_ns - mark.start_ns) / 1e3 for mark in markers),
        kernels=tuple(
            KernelSeen(
                name=name[:_NAME_LIMIT],
                launches_per_call=len(times) / calls,
                median_us=statistics.median(times),
            )
            for name, times in sorted(seen.items(), key=lambda item: -sum(item[1]))
        ),
        # The mean: work that is left outside in every third call only has a median of nothing.
        outside_us=statistics.mean(outside_us),
    )


def _outside_us(call: Sequence[_Activity], opening: _Activity, closing: _Activity) -> float:
    aside = [one for one in call if one.stream != opening.stream]
    before = [(one.start_ns, min(one.end_ns, opening.start_ns)) for one in aside]
    after = [(max(one.start_ns, closing.end_ns), one.end_ns) for one in aside]
    return union_us([(start, end) for start, end in (*before, *after) if start < end])


def _by_call(activities: Sequence[_Activity], markers: Sequence[_Activity]) -> list[list[_Activity]]:
    """Return each call's activities: those between its markers, and on other streams those up to the next."""
    stream = markers[0].stream
    calls: list[list[_Activity]] = [[] for _ in markers[::2]]
    position = 0
    for activity in activities:
        while position + 1 < len(calls) and activity.start_ns >= markers[2 * position + 1].end_ns:
            position += 1
        if _is_marker(activity):
            continue
        opening, closing = markers[2 * position], markers[2 * position + 1]
        between = opening.start_ns <= activity.start_ns < closing.end_ns
        if between or activity.stream != stream:
            calls[position].append(activity)
    return calls


def union_us(intervals: Sequence[tuple[int, int]]) -> float:
    """Return the length of the union of intervals (nanoseconds in, microseconds out)."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total / 1e3
