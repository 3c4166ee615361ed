"""Run the target under Nsight Compute, read the report back in, keep every word that was said."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.records.archived_files import REPORT_FILE
from mini_kv.core.records.profile import EXTRA_METRICS, SECTIONS, ProfilerRun, TargetPlan
from mini_kv.core.records.results import Finding
from mini_kv.core.time_limits import NCU_IMPORT_TIMEOUT_S
from mini_kv.profiling.ncu.tool import (
    Ncu,
    environment,
    explain,
    import_command,
    profile_command,
)
from mini_kv.system.archive_folder import reason
from mini_kv.system.commands import Command, Finished, run_all
from mini_kv.system.files import open_regular, read_regular

MAX_REPORT_BYTES = 512 << 20
MAX_OUTPUT_BYTES = 4 << 30
MAX_TOOL_LOG_BYTES = 4 << 20

_BOOT = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from mini_kv.worker.profile_target import main; main(a['plan'])"
)


@dataclass(frozen=True, kw_only=True)
class CaptureRequest:
    """One capture. ``scratch`` is an empty folder, ``places`` maps this machine's folders to words."""

    ncu: Ncu
    plan: TargetPlan
    kernel_name_regex: str
    flush_caches: bool
    import_path: Sequence[str]
    scratch: Path
    places: Mapping[str, str]
    environ: Mapping[str, str]
    timeout_s: float


@dataclass(kw_only=True)
class Capture:
    """What a capture left. With ``failure`` the rest may be missing; the logs are there in any case.

    ``outputs`` are the bytes of the profiled call's results, in order.
    """

    run: ProfilerRun
    failure: Finding | None = None
    report: bytes | None = None
    raw_csv: bytes | None = None
    outputs: tuple[bytes, ...] = ()
    logs: dict[str, bytes] = field(default_factory=dict)


def capture(request: CaptureRequest) -> Capture:
    """Capture one launch. A failure is in the value; raises ``OSError`` for a scratch folder that fails."""
    metrics = EXTRA_METRICS
    result = _attempt(request, metrics)
    if result.failure is not None and result.failure.code == Code.METRIC_MISSING:
        # The sections alone hold all that is required; the rest is dropped for a GPU that lacks some of it.
        refused = result
        result = _attempt(request, ())
        result.logs |= {f"refused_{name}": text for name, text in refused.logs.items()}
    if result.failure is None:
        _read_back(request, result)
    return result


# --------------------------------------------------------------------------- capturing


def _attempt(request: CaptureRequest, metrics: Sequence[str]) -> Capture:
    outputs = Path(request.plan.output_folder)
    outputs.mkdir(parents=True, exist_ok=True)
    report, log = request.scratch / REPORT_FILE.name, request.scratch / "ncu.log"
    for stale in (report, log, outputs / "done.json"):
        stale.unlink(missing_ok=True)
    command = profile_command(
        request.ncu.path,
        _target_command(request),
        scratch=request.scratch,
        kernel_name_regex=request.kernel_name_regex,
        warmup_calls=request.plan.warmup_calls,
        extra_metrics=metrics,
        flush_caches=request.flush_caches,
    )
    ended = _run(request, command, request.timeout_s)
    said = _tool_output(log, ended)
    result = Capture(run=_run_record(request, command, metrics, ended))
    result.logs = {
        "ncu.log": _log(request, command, said),
        "target_stdout.log": _log(request, command, _text(ended.stdout)),
        "target_stderr.log": _log(request, command, _text(ended.stderr)),
    }
    result.failure = explain(
        _symbolic(said, request.places),
        returncode=ended.returncode,
        timed_out=ended.timed_out,
        timeout_s=request.timeout_s,
        target_done=(outputs / "done.json").is_file(),
        has_report=report.is_file(),
    )
    if result.failure is not None and result.failure.code == Code.TARGET_FAILED:
        last = _symbolic(_text(ended.stderr), request.places).strip()[-2000:]
        result.failure = msgspec.structs.replace(
            result.failure, evidence=(*result.failure.evidence, *((last,) if last else ()))
        )
    return result


def _target_command(request: CaptureRequest) -> tuple[str, ...]:
    options = {"path": list(request.import_path), "plan": msgspec.json.encode(request.plan).decode()}
    return (sys.executable, "-I", "-X", "faulthandler", "-c", _BOOT, json.dumps(options))


def _run(request: CaptureRequest, argv: Sequence[str], timeout_s: float) -> Finished:
    command = Command(
        argv=tuple(argv),
        cwd=str(request.scratch),
        environ=environment(request.scratch, request.environ),
    )
    started = time.monotonic()
    try:
        return run_all([command], timeout_s=timeout_s)[0]
    except OSError as error:  # the program went away or may not be run after it answered --version
        return Finished(
            returncode=127,
            elapsed_s=time.monotonic() - started,
            stdout=b"",
            stderr=f"==ERROR== {os.path.basename(argv[0])} cannot be started: {error.strerror}\n".encode(),
            timed_out=False,
        )


def _tool_output(log: Path, ended: Finished) -> str:
    """Return what the profiler itself said: its log, or its marked lines when it never came to write one."""
    with contextlib.suppress(OSError), open_regular(log) as stream:
        if said := stream.read(MAX_TOOL_LOG_BYTES):
            return _text(said)
    lines = (_text(ended.stderr) + "\n" + _text(ended.stdout)).splitlines()
    return "\n".join(line for line in lines if line.startswith("=="))


def _run_record(
    request: CaptureRequest, command: Sequence[str], metrics: Sequence[str], ended: Finished
) -> ProfilerRun:
    return ProfilerRun(
        version=request.ncu.version,
        command=_shown(request, command),
        sections=SECTIONS,
        extra_metrics=tuple(metrics),
        clock_control="none",
        cache_control="all" if request.flush_caches else "none",
        kernel_name_regex=request.kernel_name_regex,
        warmup_calls=request.plan.warmup_calls,
        returncode=ended.returncode,
        elapsed_s=round(ended.elapsed_s, 3),
    )


# --------------------------------------------------------------------------- reading back


def _read_back(request: CaptureRequest, result: Capture) -> None:
    report = request.scratch / REPORT_FILE.name
    try:
        result.report = read_regular(report, MAX_REPORT_BYTES)
    except (OSError, ValueError) as error:
        message = f"The report cannot be read: {reason(error)}."
        result.failure = Finding(code=Code.REPORT_DOES_NOT_IMPORT, message=message)
        return
    command = import_command(request.ncu.path, report)
    ended = _run(request, command, NCU_IMPORT_TIMEOUT_S)
    result.logs["import_stderr.log"] = _log(request, command, _text(ended.stderr))
    if ended.returncode != 0 or ended.timed_out:
        said = _symbolic(_text(ended.stderr) + _text(ended.stdout), request.places).strip()
        result.failure = Finding(
            code=Code.REPORT_DOES_NOT_IMPORT,
            message="Nsight Compute cannot read the report that it wrote.",
            evidence=(said[-2000:],) if said else (),
        )
        result.logs["import_stdout.log"] = _log(request, command, _text(ended.stdout))
        return
    result.raw_csv = ended.stdout
    result.outputs = _outputs(Path(request.plan.output_folder))


def _outputs(folder: Path) -> tuple[bytes, ...]:
    # Named by the number that the target gave them; what else lies there is not looked at.
    found: list[bytes] = []
    with contextlib.suppress(OSError, ValueError):
        while True:
            found.append(read_regular(folder / f"output_{len(found)}.bin", MAX_OUTPUT_BYTES))
    return tuple(found)


# --------------------------------------------------------------------------- text


def _log(request: CaptureRequest, command: Sequence[str], text: str) -> bytes:
    head = "$ " + " ".join(_shown(request, command))
    return f"{head}\n{_symbolic(text, request.places)}".encode()


def _shown(request: CaptureRequest, command: Sequence[str]) -> tuple[str, ...]:
    return tuple(_symbolic(word, request.places) for word in command)


def _symbolic(text: str, places: Mapping[str, str]) -> str:
    for path in sorted(places, key=len, reverse=True):
        text = text.replace(path, places[path])
    return text


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
