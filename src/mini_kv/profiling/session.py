"""The steps of a profiling run that ask its processes: load, gate, capture, and the profiled call judged."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

import mini_kv
from mini_kv import compiler
from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.errors import InternalError
from mini_kv.core.progress import Event, Progress
from mini_kv.core.records.archived_files import SOURCES_FOLDER
from mini_kv.core.records.build import Build
from mini_kv.core.records.correctness import CaseResult, Numerics
from mini_kv.core.records.profile import TargetPlan
from mini_kv.core.records.results import Finding
from mini_kv.core.tensors import OutputSpec, contiguous_strides
from mini_kv.core.time_limits import CAPTURE_LOCK_TIMEOUT_S, CASE_TIMEOUT_S
from mini_kv.correctness.cases import run_cases
from mini_kv.profiling.evidence import Inputs, Stop
from mini_kv.profiling.ncu import Capture, CaptureRequest, Ncu, capture
from mini_kv.run import Crew
from mini_kv.run.run_inputs import device_lock
from mini_kv.system.files import exclusive_lock
from mini_kv.system.modules import import_path
from mini_kv.system.oracle_client import OracleClient

WARMUP_CALLS = 5


def load(crew: Crew, inputs: Inputs, build: Build, progress: Progress) -> str:
    """Import the reference, open the library; return the hash of the reference's sources."""
    progress(Event(stage="load", done=0, total=1, detail="workers start"))
    reference_sha256, _ = crew.load_oracle()
    fault = crew.load(build)
    if fault is not None:
        raise Stop(fault)
    progress(Event(stage="load", done=1, total=1, detail="loaded"))
    return reference_sha256


def gate(crew: Crew, inputs: Inputs, progress: Progress) -> CaseResult:
    """Run the correctness gate on the one case, every round of it; then the candidate's process ends."""
    card = msgspec.structs.replace(inputs.run.card.card, cases=(inputs.case,))
    subject = replace(crew.subject(inputs.timeout_s), card=card)
    result = run_cases(subject, progress)[0]
    crew.candidate.close()  # nothing else of ours is to run on the GPU while it is measured
    return result


def capture_case(crew: Crew, inputs: Inputs, build: Build, ncu: Ncu, *, progress: Progress) -> Capture:
    """Take the device's lock and capture."""
    progress(Event(stage="profile", done=0, total=3, detail="waiting for the device"))
    with exclusive_lock(device_lock(inputs.run.device, inputs.run.gpus), CAPTURE_LOCK_TIMEOUT_S) as held:
        if not held:
            message = f"Another measurement held the device for more than {CAPTURE_LOCK_TIMEOUT_S:g} s."
            raise Stop(Finding(code=Code.DEVICE_BUSY, message=message))
        progress(Event(stage="profile", done=1, total=3, detail=f"Nsight Compute {ncu.version}"))
        return capture(capture_request(inputs, build, ncu, crew.scratch / "capture"))


def check_profiled_call(oracle: OracleClient, inputs: Inputs, outputs: Sequence[bytes]) -> Numerics:
    """Have the oracle compare what the profiled call itself returned."""
    made = oracle.make_case("profiled", inputs.case, inputs.seed, timeout_s=CASE_TIMEOUT_S, lenient=True)
    if isinstance(made, p.Failed):
        raise InternalError(Code.ORACLE, f"the oracle cannot make case '{inputs.case.id}' again: {made}")
    wanted = made.reply.expected
    if len(outputs) != len(wanted):
        raise Stop(_wrong_output(f"left {len(outputs)} outputs where {len(wanted)} are expected"))
    specs = tuple(_spec(number, expected) for number, expected in enumerate(wanted))
    numerics = oracle.compare("profiled", specs, list(outputs), timeout_s=CASE_TIMEOUT_S, lenient=True)
    if isinstance(numerics, p.Failed):
        raise Stop(_wrong_output("left bytes that do not fit the case's shape and dtype"))
    if numerics.mismatch_count != 0:
        wrong, all_of = numerics.mismatch_count, numerics.element_count
        raise Stop(_wrong_output(f"returned {wrong} wrong elements of {all_of}"))
    return numerics


def _spec(number: int, expected: p.ExpectedOutput) -> OutputSpec:
    return OutputSpec(
        shape=expected.shape,
        strides=contiguous_strides(expected.shape),
        storage_offset=0,
        dtype=expected.dtype,
        device=expected.device,
        aliases_input=None,
        blob=number,
    )


def _wrong_output(what: str) -> Finding:
    return Finding(code=Code.PROFILED_OUTPUT_WRONG, message=f"The profiled call {what}.")


def capture_request(inputs: Inputs, build: Build, ncu: Ncu, scratch: Path) -> CaptureRequest:
    """Return the capture of the case's fixed round, in ``scratch``, which is made."""
    scratch.mkdir()
    root, manifest = inputs.run.root, inputs.run.manifest.manifest
    if build.library is None or build.library_sha256 is None:
        raise InternalError(Code.BUILD, "a build that passed names no library")
    sources = compiler.logs_folder(root, build) / SOURCES_FOLDER
    return CaptureRequest(
        ncu=ncu,
        plan=TargetPlan(
            device=inputs.run.device,
            library=str(root / build.library),
            library_sha256=build.library_sha256,
            python=str(sources / manifest.python) if manifest.python else None,
            dispatcher=manifest.dispatcher,
            schema=manifest.schema,
            input_factory=inputs.run.card.card.input_factory,
            params=inputs.case.params,
            seed=inputs.seed,
            warmup_calls=WARMUP_CALLS,
            output_folder=str(scratch / "target"),
        ),
        kernel_name_regex=manifest.kernel_name_regex,
        flush_caches=inputs.run.card.card.benchmark.cache == "cold",
        import_path=import_path(root),
        scratch=scratch,
        places=_places(root, scratch, ncu),
        environ=os.environ,
        timeout_s=inputs.timeout_s,
    )


def _places(root: Path, scratch: Path, ncu: Ncu) -> dict[str, str]:
    """Return words for this machine's folders: what is archived is read on other machines."""
    elsewhere = {entry: f"{{import {n}}}" for n, entry in enumerate(import_path(root), start=1)}
    return elsewhere | {
        str(scratch): "{scratch}",
        str(root): "{project}",
        str(Path(mini_kv.__file__).resolve().parent.parent): "{mini_kv}",
        sys.prefix: "{python}",
        sysconfig.get_path("stdlib"): "{stdlib}",
        os.path.dirname(ncu.path) + os.sep: "",
    }
