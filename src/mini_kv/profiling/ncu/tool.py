"""Nsight Compute's command line: where it is, how it is called, what its words mean."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mini_kv.core.codes import Code
from mini_kv.core.record import Record
from mini_kv.core.records.profile import SECTIONS
from mini_kv.core.records.results import Finding
from mini_kv.core.time_limits import NCU_VERSION_TIMEOUT_S
from mini_kv.system.commands import probe
from mini_kv.system.toolchain import Compiler, find_cuda_tool, tool_environ

# What the profiled process may inherit, as a worker may.
_INHERITED = (
    "PATH",
    "LANG",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
)
_NO_PERMISSION = re.compile(r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters")
_TARGET_RAN = re.compile(r"Connected to process|The application ")
_NO_METRIC = re.compile(r"Failed to find metric")
_EVIDENCE_LINES = 12


class Ncu(Record, frozen=True, kw_only=True):
    """A profiler that answered. ``version`` is like ``2025.3.1.0``."""

    path: str
    version: str


def find_ncu(path: str | None, nvcc: Compiler | None, environ: Mapping[str, str]) -> Ncu | Finding:
    """Return the profiler at ``path``, or else this machine's own; ``NCU_MISSING`` when none answers."""
    found = path if path is not None else find_cuda_tool("ncu", nvcc, environ)
    if found is None:
        return _missing("it is neither next to nvcc, nor on PATH, nor in its usual folder")
    answer = probe([found, "--version"], tool_environ(), timeout_s=NCU_VERSION_TIMEOUT_S)
    if answer is None:
        return _missing(f"{os.path.basename(found)} cannot be started")
    told = answer.stdout.decode("utf-8", "replace")
    version = re.search(r"Version (\d+(?:\.\d+)+)", told)
    if answer.returncode != 0 or version is None:
        return _missing(f"{os.path.basename(found)} does not tell its version", told[-500:])
    return Ncu(path=found, version=version[1])


def _missing(why: str, *evidence: str) -> Finding:
    return Finding(
        code=Code.NCU_MISSING,
        message=f"Nsight Compute (ncu) was not found: {why}. Install it, or name it with --ncu.",
        evidence=tuple(text for text in evidence if text),
    )


def environment(scratch: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of profiler and target: nothing of the caller's that could steer either.

    Home and temporary folder lie in the scratch folder, which keeps the profiler's own lock and settings
    apart from other users'.
    """
    home = str(scratch)
    kept = {name: environ[name] for name in _INHERITED if name in environ}
    return kept | {
        "LC_ALL": "C",  # numbers are printed with points and without groups
        "HOME": home,
        "TMPDIR": home,
        "XDG_CACHE_HOME": home,
        "CUDA_CACHE_PATH": f"{home}/nv",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def profile_command(
    ncu: str,
    target: Sequence[str],
    *,
    scratch: Path,
    kernel_name_regex: str,
    warmup_calls: int,
    extra_metrics: Sequence[str],
    flush_caches: bool,
) -> tuple[str, ...]:
    """Return the capturing command line.

    A call that launches the wanted kernel once gives one result: ``warmup_calls`` launches are skipped and
    one is left. Two are allowed, so that a kernel launched several times a call is seen and refused rather
    than taken for one. The expression is made to fit anywhere in the bare function's name.
    """
    return (
        ncu,
        *("--export", str(scratch / "report"), "--force-overwrite"),
        *("--log-file", str(scratch / "ncu.log")),
        *(word for section in SECTIONS for word in ("--section", section)),
        *(("--metrics", ",".join(extra_metrics)) if extra_metrics else ()),
        *("--clock-control", "none", "--cache-control", "all" if flush_caches else "none"),
        *("--kernel-name-base", "function", "--kernel-name", f"regex:^.*({kernel_name_regex}).*$"),
        *("--launch-skip", str(warmup_calls), "--launch-count", "2"),
        *("--replay-mode", "kernel", "--target-processes", "all"),
        *target,
    )


def import_command(ncu: str, report: Path) -> tuple[str, ...]:
    """Return the command line that prints a report's raw page; base units keep every digit."""
    return (ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base")


def metric_is_unknown(said: str) -> bool:
    """Say whether the profiler refused a metric's name, as it does for those another GPU lacks."""
    return bool(_NO_METRIC.search(said))


def explain(
    said: str, *, returncode: int, timed_out: bool, timeout_s: float, target_done: bool, has_report: bool
) -> Finding | None:
    """Return why a capture failed, ``None`` when there is a report to look at.

    ``said`` is the profiler's own output; what the target printed does not decide anything.
    """
    evidence = _last_lines(said)
    if timed_out:
        message = f"The capture took longer than {timeout_s:g} s and was ended."
        return Finding(code=Code.TIMEOUT, message=message, evidence=evidence)
    if _NO_PERMISSION.search(said):
        message = (
            "The driver lets only an administrator read the GPU's performance counters (ERR_NVGPUCTRPERM): "
            "run as root, or let it load with NVreg_RestrictProfilingToAdminUsers=0."
        )
        return Finding(code=Code.NCU_NO_PERMISSION, message=message, evidence=evidence)
    if metric_is_unknown(said):
        message = "Nsight Compute does not know a metric that was asked for on this GPU."
        return Finding(code=Code.METRIC_MISSING, message=message, evidence=evidence)
    if not target_done and _TARGET_RAN.search(said):
        message = f"The profiled process did not finish its calls (exit code {returncode})."
        return Finding(code=Code.TARGET_FAILED, message=message, evidence=evidence)
    if target_done and not has_report and "No kernels were profiled" in said:
        message = "No launched kernel fits the manifest's kernel_name_regex."
        return Finding(code=Code.KERNEL_NOT_FOUND, message=message, evidence=evidence)
    if returncode != 0 or not has_report or not target_done:
        what = f"failed with exit code {returncode}" if returncode != 0 else "left no report"
        return Finding(code=Code.NCU_FAILED, message=f"Nsight Compute {what}.", evidence=evidence)
    return None


def _last_lines(text: str) -> tuple[str, ...]:
    return tuple(line[:400] for line in text.splitlines() if line.strip())[-_EVIDENCE_LINES:]
