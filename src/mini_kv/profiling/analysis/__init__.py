"""Pure: Nsight Compute's raw page -> checked facts of one kernel; two profiles -> a structured A/B."""

from __future__ import annotations

from mini_kv.profiling.analysis.differences import compare_profiles, timed_sides
from mini_kv.profiling.analysis.facts import analyse
from mini_kv.profiling.analysis.raw_page import KernelRow, MalformedPage, parse_raw_page

__all__ = [
    "KernelRow",
    "MalformedPage",
    "analyse",
    "compare_profiles",
    "parse_raw_page",
    "timed_sides",
]
