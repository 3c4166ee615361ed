"""The blocks of docs/optimization-rmsnorm.md in Markdown, each a pure function of what the evidence holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_kv.core.text_table import NO_FIGURE, figure
from research.markdown import table
from research.pages import evidence
from research.pages.evidence import STEPS, Kernels

RMSNORM_PEERS = {
    "rmsnorm_vs_functional": "`F.rms_norm`",
    "rmsnorm_vs_compile": "`torch.compile`",
    "rmsnorm_vs_liger": "Liger (Triton)",
    "rmsnorm_vs_triton": "plain Triton",
}
OTHER_PEERS = {
    "fused_bias_relu": ("fused_bias_relu", "eager"),
    "bias_relu_vs_eager": ("fused_bias_relu", "eager"),
    "bias_relu_vs_compile": ("fused_bias_relu", "`torch.compile`"),
    "vector_add": ("vector_add", "`torch.add`"),
    "vector_add_large": ("vector_add", "`torch.add`"),
    "vector_add_vs_compile": ("vector_add", "`torch.compile`"),
}
BEST = {"fused_bias_relu": "fused_bias_relu_v1_vectorized", "vector_add": "vector_add_v1_vectorized"}
SWEEP_EXPONENTS = (10, 14, 18, 20, 22, 24, 26, 28)
CHANGES = (("v0_naive", "v1_block_reduce"), ("v1_block_reduce", "v2_vectorized"))


def blocks(root: Path) -> dict[str, str]:
    """Return every block of the page by name."""
    cases, facts = evidence.timed_cases(root), evidence.profiles(root)
    return {
        "limit": limit_sentence(cases, evidence.fastest_copy(root)),
        "times": times_table(cases),
        "peers": peers_table({task: evidence.peer_cases(root, task) for task in RMSNORM_PEERS}),
        "others": others_table(root),
        "sweep": sweep_table(evidence.only_document(root, "sweep.json"), root),
        "profile": profile_table(facts),
        "changes": changes_table(root),
    }


def _kernel_us(case: dict[str, Any] | None, side: str) -> float | None:
    seen = case[f"{side}_kernel"] if case else None
    return seen["kernel_us"] if seen else None


def limit_sentence(cases: dict[str, dict[str, Any]], copy: evidence.Copy | None) -> str:
    """Return how long the bytes of the case take at the copy bandwidth, and by the fastest copy of them."""
    case = cases.get(STEPS[-1])
    if case is None or not case.get("copy_gb_per_s"):
        return "How fast this GPU copies has not been measured yet."
    moved, rate = case["bytes_moved"], case["copy_gb_per_s"]
    at_that_rate = (
        f"In the run of the table below the GPU copied {rate:.0f} GB/s, read and written bytes counted: the "
        f"{moved / 1e6:.1f} MB of this case take {moved / rate / 1e3:.2f} us at that rate."
    )
    eager_us = _kernel_us(case, "reference")
    if copy is None or eager_us is None:
        return at_that_rate
    return (
        f"{at_that_rate} The fastest plain copy of x that tuning found took {copy.kernel_us:.2f} us "
        f"(`{copy.file}`), and eager PyTorch {eager_us:.2f} us: a kernel as fast as that copy is "
        f"{eager_us / copy.kernel_us:.1f} times as fast as eager PyTorch, and more would take a faster copy."
    )


def times_table(cases: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table of times, one row a step."""
    rows, before = [], None
    for step in STEPS:
        case = cases.get(step)
        kernel = _kernel_us(case, "candidate")
        rows.append(
            [
                f"`{step.removeprefix('rmsnorm_')}`",
                figure(case["candidate"]["p50_us"] if case else None, 2),
                figure(kernel, 2),
                figure(before / kernel if before and kernel else None, 1),
                figure(case["kernel_speedup"] if case else None, 2),
                figure(case["bytes_moved"] / kernel / 1e3 if case and kernel else None, 0),
            ]
        )
        before = kernel
    header = [
        "step",
        "P50, us",
        "kernel, us",
        "times the step before",
        "times eager (kernel)",
        "GB/s (kernel)",
    ]
    return table(header, rows)


def _cell(kernels: Kernels | None) -> str:
    if kernels is None:
        return NO_FIGURE
    return f"{kernels.ratio:.2f}x ({kernels.reference_us:.2f} : {kernels.candidate_us:.2f})"


def peers_table(peers: dict[str, dict[str, Kernels]]) -> str:
    """Return how `v2_vectorized` compares with each peer, one row a case."""
    known = {task: cases for task, cases in peers.items() if cases}
    if not known:
        return "No peer's card (`tasks/peers`) has been measured on a GPU yet."
    case_ids = list(dict.fromkeys(case_id for cases in known.values() for case_id in cases))
    rows = []
    for case_id in case_ids:
        shares = [c[case_id].percent_of_copy for c in known.values() if case_id in c]
        least = min((share for share in shares if share is not None), default=None)
        cells = [_cell(known[task].get(case_id)) for task in known]
        rows.append([shape_text(case_id), *cells, figure(least, 1)])
    return table(["rows x hidden", *(RMSNORM_PEERS[task] for task in known), "% of copy"], rows)


def others_table(root: Path) -> str:
    """Return the two pointwise operators and their peers."""
    benchmarks = evidence.last_benchmarks(root)
    rows = []
    for task, (operator, peer) in OTHER_PEERS.items():
        benchmark = benchmarks.get((task, BEST[operator]))
        for case in benchmark["cases"] if benchmark else ():
            kernels = evidence.kernels_of(case, benchmark.get("copy_gb_per_s")) if benchmark else None
            if kernels is not None:
                rows.append(
                    [
                        f"`{operator}` {shape_text(case['case_id'])}",
                        peer,
                        figure(kernels.candidate_us, 2),
                        figure(kernels.reference_us, 2),
                        f"{kernels.ratio:.3f}x ({kernels.ratio_low:.3f} to {kernels.ratio_high:.3f})",
                        figure(kernels.percent_of_copy, 1),
                    ]
                )
    if not rows:
        return "Neither operator has been measured on a GPU yet."
    return table(["case", "peer", "kernel, us", "peer's, us", "ratio", "% of copy"], rows)


def shape_text(case_id: str) -> str:
    """Return ``1024 x 4096 f16`` for ``bench_1024x4096_f16``."""
    return case_id.removeprefix("bench_").replace("x", " x ").replace("_", " ")


def sweep_table(found: tuple[Path, dict[str, Any]] | None, root: Path) -> str:
    """Return the sweep at a few sizes: time and share of the copy bandwidth, an operator a column."""
    if found is None:
        return "No sweep over sizes (`research/sweep`) has been measured on a GPU yet."
    path, data = found
    points = {(point["operator"], point["elements"]): point for point in data["points"]}
    operators = list(dict.fromkeys(point["operator"] for point in data["points"]))
    rows = []
    for exponent in SWEEP_EXPONENTS:
        cells = []
        for operator in operators:
            point = points.get((operator, 1 << exponent))
            cells.append(NO_FIGURE if point is None else _sweep_cell(point, data["copy_gb_per_s"]))
        rows.append([f"2^{exponent}", *cells])
    picture = path.with_suffix(".svg").relative_to(root).as_posix()
    return "\n\n".join(
        [
            f"![Kernel time against bytes moved](../{picture})",
            table(["elements", *(f"`{operator}`" for operator in operators)], rows),
        ]
    )


def _sweep_cell(point: dict[str, Any], copy_gb_per_s: float) -> str:
    share = 100.0 * point["bytes_moved"] / point["candidate_us"] / 1e3 / copy_gb_per_s
    faster = point["reference_us"] / point["candidate_us"]
    return f"{point['candidate_us']:.2f} us, {share:.0f} % of copy, {faster:.2f}x eager"


def _profile_cells(facts: dict[str, Any]) -> dict[str, str]:
    x, y, z = facts["block"]
    shared = facts.get("static_shared_bytes"), facts.get("dynamic_shared_bytes")
    local = facts.get("local_load_sectors"), facts.get("local_store_sectors")
    return {
        "blocks": str(facts["grid"][0]),
        "threads a block": str(x * y * z),
        "registers a thread": str(facts["registers_per_thread"]),
        "shared memory a block, bytes": _whole(shared),
        "local memory sectors (spills)": _whole(local),
        "waves an SM": figure(facts["waves_per_multiprocessor"], 2),
        "achieved occupancy, %": figure(facts["achieved_occupancy_percent"], 1),
        "DRAM throughput, %": figure(facts["dram_throughput_percent"], 1),
        "DRAM bandwidth in replay, GB/s": figure(facts.get("replay_dram_gb_per_s"), 0),
        "L2 hit rate, %": figure(facts.get("l2_hit_percent"), 1),
        "sectors a load request": figure(facts["load_sectors_per_request"], 2),
        "stall reasons, cycles an instruction": _stalls(facts["stalls"]),
    }


PROFILE_ROWS = (
    "blocks",
    "threads a block",
    "registers a thread",
    "shared memory a block, bytes",
    "local memory sectors (spills)",
    "waves an SM",
    "achieved occupancy, %",
    "DRAM throughput, %",
    "DRAM bandwidth in replay, GB/s",
    "L2 hit rate, %",
    "sectors a load request",
    "stall reasons, cycles an instruction",
)


def _whole(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return str(round(sum(known))) if known else NO_FIGURE


def _stalls(stalls: Sequence[dict[str, Any]]) -> str:
    shown = [f"{stall['name']} {figure(stall.get('cycles_per_issue'), 1)}" for stall in stalls[:3]]
    return ", ".join(shown) or NO_FIGURE


def profile_table(facts: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table of what Nsight Compute counted, one column a step."""
    cells = {step: _profile_cells(facts[step]) for step in STEPS if step in facts}
    rows = [[name, *(cells.get(step, {}).get(name, NO_FIGURE) for step in STEPS)] for name in PROFILE_ROWS]
    return table(["", *(f"`{step.removeprefix('rmsnorm_')}`" for step in STEPS)], rows)


def changes_table(root: Path) -> str:
    """Return what `mini-kv compare-profiles` says between neighbouring steps, and their timed P50s."""
    documents = {
        pair: evidence.only_document(root, f"profile_comparison_{pair[0]}_to_{pair[1]}.json")
        for pair in CHANGES
    }
    known = {pair: found[1] for pair, found in documents.items() if found is not None}
    if not known:
        return "No comparison of profiles (`research/profiles`) stands in the evidence yet."
    names = list(
        dict.fromkeys(metric["name"] for document in known.values() for metric in document["metrics"])
    )
    rows = [["timed P50, us", *(_timed(known.get(pair)) for pair in CHANGES)]]
    for name in names:
        changes = [_metric(known.get(pair), name) for pair in CHANGES]
        if any(change != NO_FIGURE for change in changes):
            rows.append([name, *changes])
    return table(["", *(f"`{before}` to `{after}`" for before, after in CHANGES)], rows)


def _timed(document: dict[str, Any] | None) -> str:
    timed = document.get("timed") if document else None
    if not timed:
        return NO_FIGURE
    return f"{figure(timed['before']['p50_us'], 2)} to {figure(timed['after']['p50_us'], 2)}"


def _metric(document: dict[str, Any] | None, name: str) -> str:
    for metric in document["metrics"] if document else ():
        if metric["name"] == name and metric["before"] is not None and metric["after"] is not None:
            unit = f" {metric['unit']}" if metric["unit"] else ""
            return f"{_short(metric['before'])} to {_short(metric['after'])}{unit}"
    return NO_FIGURE


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.2f}"
