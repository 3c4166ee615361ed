"""A project whose workers are fakes: the whole pipeline in a second, with a fault wherever one is wanted."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_worker import SCHEMA, use_cast
from mini_kv import compiler, pipeline
from mini_kv.compiler import BuildRequest
from mini_kv.core.canonical import sha256_bytes
from mini_kv.core.progress import Event
from mini_kv.core.records.build import Build
from mini_kv.core.records.results import Status
from mini_kv.pipeline import Verdict, VerifyRequest
from mini_kv.run import run_inputs
from mini_kv.system.toolchain import Toolchain, find_toolchain

CARD = """\
schema_version: "1.0.0"
task_id: double
operator: double
operator_version: 1.0.0
reference: fixture_reference:reference
input_factory: fixture_reference:make_inputs
candidate: candidates/double/v0
device: cpu
tolerances: {float32: {rtol: 1.0e-6, atol: 0.0}}
contract: {functional: true, opcheck: true, gradcheck: false, deterministic: true, streams: true}
benchmark: {case_ids: [timed_a, timed_b], primary_case_id: timed_a, warmup: 1, iterations: 5, repeats: 2}
cases:
  - {id: core_3, kind: core, params: {n: 3}}
  - {id: core_4, kind: core, params: {n: 4}}
  - {id: core_5, kind: core, params: {n: 5}}
  - id: illegal_odd
    kind: illegal
    params: {n: 101}
    raises: {exception: RuntimeError, message: must be even}
  - {id: timed_a, kind: benchmark, params: {n: 40}}
  - {id: timed_b, kind: benchmark, params: {n: 60}}
"""
MANIFEST = f"""\
schema_version: "1.0.0"
candidate_id: double_v0
operator: double
version: 0.1.0
dispatcher: fixture_double::double
schema: "{SCHEMA.partition("::")[2]}"
sources: [op.cpp]
backends: [cpu, meta]
autograd: false
kernel_name_regex: double
dtypes: [float32]
"""


@dataclass(kw_only=True)
class FakeProject:
    """``faults`` as in ``fake_worker``; ``build_changes`` are fields of the build that is pretended."""

    root: Path
    monkeypatch: pytest.MonkeyPatch
    events: list[Event] = field(default_factory=list)
    build_changes: dict[str, Any] = field(default_factory=dict)

    def verify(self, faults: dict[str, str] | None = None, **changes: Any) -> Verdict:
        use_cast(self.monkeypatch, faults or {})
        request = VerifyRequest(
            task=self.root / "tasks" / "double.yaml",
            candidate=None,
            device="cpu",
            skip_benchmark=False,
            baseline=None,
            artifacts_root=None,
            timeout_s=5.0,
        )
        for name, value in changes.items():
            object.__setattr__(request, name, value)
        return pipeline.verify(request, self.events.append)

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.root / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))


@functools.cache
def toolchain() -> Toolchain:
    """Return this machine's, asked once a process."""
    return find_toolchain(None, os.environ)


def pretend_build(request: BuildRequest, changes: dict[str, Any]) -> Build:
    # A baseline is rebuilt from a folder outside the project: its library can be told by its name.
    name = "rebuilt.so" if Path(request.candidate_folder).is_absolute() else "fake.so"
    library = Path(request.project_root) / ".build" / name
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(b"no library at all")
    made = Build(
        schema_version="1.0.0",
        status=Status.PASS,
        code=None,
        message=None,
        key="b" * 64,
        cached=False,
        elapsed_s=0.01,
        device=request.device,
        library=f".build/{name}",
        library_sha256=sha256_bytes(b"no library at all"),
        library_bytes=17,
        torch="2.11.0",
        cxx="g++",
        cuda_compiler=None,
        arch_list=(),
        units=(),
        source_sha256={},
    )
    made = msgspec.structs.replace(made, **changes)
    sources = compiler.logs_folder(Path(request.project_root), made) / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    (sources / "op.cpp").write_text("// nothing to compile\n")
    return made


@pytest.fixture
def fake_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProject:
    """A marked project with one card and one candidate; compiler and device lock are its own."""
    root = tmp_path / "project"
    folder = root / "candidates" / "double" / "v0"
    folder.mkdir(parents=True)
    (root / "tasks").mkdir()
    (root / "mini_kv.toml").touch()
    (root / "tasks" / "double.yaml").write_text(CARD)
    (folder / "candidate.yaml").write_text(MANIFEST)
    (folder / "op.cpp").write_text("// nothing to compile\n")
    project = FakeProject(root=root, monkeypatch=monkeypatch)

    def build(request: BuildRequest, *_: Any, **__: Any) -> Build:
        return pretend_build(request, project.build_changes)

    monkeypatch.setattr(compiler, "build", build)
    monkeypatch.setattr(run_inputs, "find_toolchain", lambda *_: toolchain())
    monkeypatch.setattr(run_inputs, "device_lock", lambda *_: tmp_path / "device.lock")
    return project


def press_ctrl_c_when(project: FakeProject, wanted: Callable[[Event], bool]) -> None:
    """Have SIGINT sent to this process, once, a moment after the first event that is ``wanted``."""
    pressed = threading.Event()
    # A shell's background job is started with SIGINT ignored, and Python leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def watch(event: Event) -> None:
        if wanted(event) and not pressed.is_set():
            pressed.set()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    class Watched(list[Event]):
        def append(self, event: Event) -> None:
            super().append(event)
            watch(event)

    project.events = Watched()
