"""From a raw page to the checked facts of the one kernel that was wanted, or the reason why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.records.profile import KernelFacts, StallReason
from mini_kv.core.records.results import Finding
from mini_kv.profiling.analysis.raw_page import KernelRow, MalformedPage, parse_raw_page
from mini_kv.profiling.analysis.units import Dimension, number

_STALL = re.compile(r"smsp__average_warps_issue_stalled_(?P<name>\w+?)_per_issue_active\.ratio")
# "selected" is the warp that issues: no reason to wait. The not_issued twins count the same waits again.
_NO_STALLS = re.compile(r"selected|\w+_not_issued")
_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class _Metric:
    field: str
    names: tuple[str, ...]
    dimension: Dimension
    required: bool = True
    whole: bool = False


_METRICS = (
    _Metric(field="waves_per_multiprocessor", names=("launch__waves_per_multiprocessor",), dimension="count"),
    _Metric(
        field="registers_per_thread", names=("launch__registers_per_thread",), dimension="count", whole=True
    ),
    _Metric(
        field="static_shared_bytes",
        names=("launch__shared_mem_per_block_static",),
        dimension="bytes",
        whole=True,
    ),
    _Metric(
        field="dynamic_shared_bytes",
        names=("launch__shared_mem_per_block_dynamic",),
        dimension="bytes",
        whole=True,
    ),
    _Metric(
        field="theoretical_occupancy_percent",
        names=("sm__maximum_warps_per_active_cycle_pct",),
        dimension="percent",
    ),
    _Metric(
        field="achieved_occupancy_percent",
        names=("sm__warps_active.avg.pct_of_peak_sustained_active",),
        dimension="percent",
    ),
    _Metric(field="replay_duration_us", names=("gpu__time_duration.sum",), dimension="time_us"),
    _Metric(
        field="sm_throughput_percent",
        names=("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
        dimension="percent",
    ),
    _Metric(
        field="dram_throughput_percent",
        names=(
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        ),
        dimension="percent",
    ),
    _Metric(field="replay_dram_gb_per_s", names=("dram__bytes.sum.per_second",), dimension="gb_per_s"),
    _Metric(
        field="l1_hit_percent", names=("l1tex__t_sector_hit_rate.pct",), dimension="percent", required=False
    ),
    _Metric(field="l2_hit_percent", names=("lts__t_sector_hit_rate.pct",), dimension="percent"),
    _Metric(
        field="dram_read_bytes",
        names=("dram__bytes_read.sum",),
        dimension="bytes",
        required=False,
        whole=True,
    ),
    _Metric(
        field="dram_write_bytes",
        names=("dram__bytes_write.sum",),
        dimension="bytes",
        required=False,
        whole=True,
    ),
    _Metric(
        field="local_load_sectors",
        names=("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",),
        dimension="count",
        required=False,
        whole=True,
    ),
    _Metric(
        field="local_store_sectors",
        names=("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",),
        dimension="count",
        required=False,
        whole=True,
    ),
)


def analyse(text: str, kernel_name_regex: str) -> KernelFacts | Finding:
    """Return the facts of the page's one row whose kernel fits the expression.

    What is wrong with the page is a finding: ``CSV_MALFORMED``, ``KERNEL_NOT_FOUND``, ``SEVERAL_KERNELS``
    or ``METRIC_MISSING``, each with its evidence.
    """
    try:
        rows = parse_raw_page(text)
    except MalformedPage as error:
        return Finding(code=Code.CSV_MALFORMED, message=f"Nsight Compute's raw page cannot be read: {error}")
    wanted = [row for row in rows if is_wanted(row.kernel, kernel_name_regex)]
    if len(wanted) == 1:
        return _facts(wanted[0])
    found = tuple(row.kernel for row in rows[:_SHOWN])
    if not wanted:
        return Finding(
            code=Code.KERNEL_NOT_FOUND,
            message=f"No profiled kernel fits '{kernel_name_regex}', the manifest's kernel_name_regex.",
            evidence=found,
        )
    return Finding(
        code=Code.SEVERAL_KERNELS,
        message=f"One call launches several kernels that fit '{kernel_name_regex}'; a profile is of one: "
        "make the manifest's kernel_name_regex narrower.",
        evidence=found,
    )


def is_wanted(kernel: str, kernel_name_regex: str) -> bool:
    """Say whether the expression fits a printed kernel name: its bare function's, or else the whole."""
    expression = re.compile(kernel_name_regex)
    return bool(expression.search(bare_function(kernel)) or expression.search(kernel))


def bare_function(kernel: str) -> str:
    """Return ``add`` for ``void space::(anonymous namespace)::add<float>(const T1 *, int)``."""
    head = _before_parameters(kernel.replace("(anonymous namespace)", "").replace("<unnamed>", ""))
    found = re.search(r"[\w~]+$", _without_template(head))
    return found[0] if found is not None else kernel


def _before_parameters(text: str) -> str:
    """Return what stands before the parameters: before the first parenthesis outside angle brackets."""
    depth = 0
    for position, letter in enumerate(text):
        if letter == "(" and depth == 0:
            return text[:position].rstrip()
        # Nsight Compute may print half of a bracket pair: a lone one must not count.
        depth = max(0, depth + (letter == "<") - (letter == ">"))
    return text.rstrip()


def _without_template(head: str) -> str:
    """Return a function's name without the template arguments at its end."""
    depth = 0
    for position in range(len(head) - 1, -1, -1):
        depth += (head[position] == ">") - (head[position] == "<")
        if depth == 0:
            return head[:position] if head[position] == "<" else head
    return head


def _facts(row: KernelRow) -> KernelFacts | Finding:
    grid = row.extents("Grid Size", "launch__grid_dim_")
    block = row.extents("Block Size", "launch__block_dim_")
    values: dict[str, Any] = {}
    missing = [name for name, extents in (("Grid Size", grid), ("Block Size", block)) if extents is None]
    for metric in _METRICS:
        value = row.quantity(metric.names, metric.dimension)
        if metric.required and (value is None or value < 0.0):
            missing.append(metric.names[0])
        values[metric.field] = round(value) if value is not None and metric.whole else value
    stalls = _stalls(row)
    if not stalls:
        missing.append("smsp__average_warps_issue_stalled_*_per_issue_active.ratio")
    if missing:
        return Finding(
            code=Code.METRIC_MISSING,
            message=f"{len(missing)} of the metrics that a profile needs are missing or unreadable; "
            f"the first is {missing[0]}.",
            evidence=tuple(_shown(row, name) for name in missing),
        )
    return msgspec.convert(
        {
            **values,
            "kernel": row.kernel,
            "function": bare_function(row.kernel),
            "compute_capability": row.cells.get("CC", ""),
            "grid": grid,
            "block": block,
            "load_sectors_per_request": _sectors_per_request(row, "ld"),
            "store_sectors_per_request": _sectors_per_request(row, "st"),
            "stalls": stalls,
        },
        KernelFacts,
    )


def _shown(row: KernelRow, name: str) -> str:
    if name not in row.cells:
        return f"{name}: not in the page"
    return f"{name}: '{row.cells[name]}' with unit '{row.units.get(name, '')}'"


def _sectors_per_request(row: KernelRow, operation: str) -> float | None:
    stem = "l1tex__t_{}_pipe_lsu_mem_global_op_" + operation + ".sum"
    sectors = row.quantity((stem.format("sectors"),), "count")
    requests = row.quantity((stem.format("requests"),), "count")
    return sectors / requests if sectors is not None and requests is not None and requests > 0.0 else None


def _stalls(row: KernelRow) -> tuple[StallReason, ...]:
    found: list[StallReason] = []
    for name, text in row.cells.items():
        match, value = _STALL.fullmatch(name), number(text)
        if match is not None and value is not None and not _NO_STALLS.fullmatch(match["name"]):
            found.append(StallReason(name=match["name"], cycles_per_issue=value))
    return tuple(sorted(found, key=lambda stall: (-stall.cycles_per_issue, stall.name)))
