"""One small project for all end-to-end tests, the command line as a process, and what must stay behind.

The project is made once (shared by xdist's workers), so that every candidate is compiled once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_kv.core.record import from_json
from mini_kv.core.records.attempt import Attempt

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "candidates"

GRADIENT = """\
import torch


def backward(ctx, grad):
    return {factor} * grad


torch.library.register_autograd("{namespace}::twice", backward)
"""

# Candidates from one source: flags for the compiler, changes to the manifest, a Python file.
FLAGS = {
    "by_size": "",
    "exits_when_opened": "-DEXITS_WHEN_OPENED",
    "throws_when_opened": "-DTHROWS_WHEN_OPENED",
    "tls_too_large": "-DTLS_TOO_LARGE",
    "no_cpu": "-DNO_CPU",
    "no_operator": "-DNO_OPERATOR",
    "no_meta": "-DNO_META",
    "no_fake": "-DNO_META",
    "meta_reads_sizes": "-DMETA_READS_SIZES",
}
MANIFEST_CHANGES = {
    "no_meta": {"backends": "[cpu]"},
    "other_schema": {"schema": '"twice(Tensor x, int n=1) -> Tensor"'},
    "no_autograd": {"autograd": "false"},
    "names_that_are_torchs": {"dispatcher": "aten::twice"},
}
PYTHON = {
    "by_size": GRADIENT.format(factor="2.0", namespace="fixture_by_size"),
    "no_fake": GRADIENT.format(factor="2.0", namespace="fixture_no_fake"),
    "no_meta": GRADIENT.format(factor="2.0", namespace="fixture_no_meta"),
    "meta_reads_sizes": GRADIENT.format(factor="2.0", namespace="fixture_meta_reads_sizes"),
    "wrong_gradient": GRADIENT.format(factor="3.0", namespace="fixture_wrong_gradient"),
    "python_raises": "raise LookupError('not today')\n",
    "python_leaves": "import sys\nsys.exit(0)\n",
    "python_is_none": "def broken(:\n",
}
NAMES = (*FLAGS, *MANIFEST_CHANGES, *PYTHON, "does_not_compile", "does_not_link", "claims_autograd")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished command: where it archived, what it printed, and that nothing was left running."""

    code: int
    stdout: str
    stderr: str
    artifacts: Path

    @property
    def folder(self) -> Path:
        """The one attempt's folder."""
        (folder,) = [path.parent for path in self.artifacts.glob("*/*/attempt.json")]
        return folder

    @property
    def attempt(self) -> Attempt:
        return from_json((self.folder / "attempt.json").read_bytes(), Attempt)

    def record(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text("utf-8"))

    def axis(self, name: str) -> tuple[str, str | None]:
        axis = next(axis for axis in self.attempt.axes if axis.name == name)
        return axis.status.value, axis.code


def rehash(run: Run) -> Attempt:
    """Compare every file of the attempt with its promise, by nothing but hashlib; return the attempt."""
    attempt = json.loads((run.folder / "attempt.json").read_text("utf-8"))
    promised = {file["path"]: (file["sha256"], file["size_bytes"]) for file in attempt["files"]}
    found = {
        path.relative_to(run.folder).as_posix(): path.read_bytes()
        for path in run.folder.rglob("*")
        if path.is_file()
    }
    del found["attempt.json"]
    assert promised == {name: (hashlib.sha256(raw).hexdigest(), len(raw)) for name, raw in found.items()}
    assert not list(run.artifacts.rglob("*.partial"))
    assert not list(run.artifacts.rglob("*.tmp"))
    return run.attempt


def processes_with(marker: str) -> list[str]:
    """Return the command lines of living processes that have ``marker`` in their environment."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = Path(entry.path, "environ").read_bytes()
            line = Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in environ:
            found.append(line.replace(b"\0", b" ").decode("utf-8", "replace")[:200])
    return found


def assert_gone(marker: str, within_s: float = 3.0) -> None:
    deadline = time.monotonic() + within_s
    while (left := processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == [], left


@dataclass(frozen=True, kw_only=True)
class Started:
    """A command under way; ``marker`` stands in the environment of all its processes."""

    process: subprocess.Popen[str]
    marker: str
    artifacts: Path

    def finish(self, timeout_s: float = 240.0) -> Run:
        """Wait for the end and make sure that no process stays."""
        stdout, stderr = self.process.communicate(timeout=timeout_s)
        assert_gone(self.marker)
        return Run(code=self.process.returncode, stdout=stdout, stderr=stderr, artifacts=self.artifacts)

    def wait_for(self, line: str, timeout_s: float = 120.0) -> None:
        """Read progress until a line begins with ``line``."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            text = self.process.stderr.readline()
            if text.startswith(line):
                return
            assert text, f"the command ended before it said '{line}'"
        raise AssertionError(f"the command did not say '{line}' in {timeout_s} s")


@dataclass(frozen=True, kw_only=True)
class Project:
    """The fixtures' project; every run archives in a folder of its own unless told otherwise."""

    root: Path
    scratch: Path

    def card(self, name: str) -> str:
        return str(self.root / "tasks" / f"{name}.yaml")

    def start(
        self, *argv: str, artifacts: Path | None = None, environ: dict[str, str] | None = None
    ) -> Started:
        """Start ``mini-kv verify`` with these options, an archive and a marker of its own."""
        marker = f"/nowhere/{uuid.uuid4().hex}"
        archive = artifacts or self.scratch / f"artifacts-{uuid.uuid4().hex[:8]}"
        # Workers inherit PATH and little else, so that is what can mark them all.
        env = os.environ | {"PATH": f"{os.environ['PATH']}:{marker}"} | (environ or {})
        command = [sys.executable, "-m", "mini_kv", "verify", "--artifacts", str(archive), *argv]
        process = subprocess.Popen(
            command, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return Started(process=process, marker=marker, artifacts=archive)

    def verify(self, card: str, *argv: str, candidate: str | None = None, **options: Any) -> Run:
        """Run ``mini-kv verify`` on a card of the fixtures to its end."""
        chosen = ("--candidate", str(self.root / "candidates" / candidate)) if candidate else ()
        return self.start("--task", self.card(card), *chosen, *argv, **options).finish()


def make_project(root: Path) -> None:
    shutil.copytree(FIXTURES / "tasks", root / "tasks")
    shutil.copy(FIXTURES / "fixture_reference.py", root)
    (root / "mini_kv.toml").touch()
    source = (FIXTURES / "op.cpp").read_text("utf-8")
    broken = source.replace("const Tensor dense =", "const Tensr dense =")
    unlinked = source.replace("namespace {", "void defined_nowhere();\nnamespace {", 1)
    unlinked = unlinked.replace("if (spoiled)", "if (spoiled) defined_nowhere();\n  if (spoiled)", 1)
    sources = {"does_not_compile": broken, "does_not_link": unlinked}
    for name in dict.fromkeys(NAMES):
        make_candidate(root / "candidates" / name, sources.get(name, source))


def make_candidate(folder: Path, source: str) -> None:
    name = folder.name
    folder.mkdir(parents=True)
    (folder / "op.cpp").write_text(source, "utf-8")
    flags = [f"-DNAMESPACE=fixture_{name}", "-O1", *filter(None, [FLAGS.get(name)])]
    entries = {
        "schema_version": '"1.0.0"',
        "candidate_id": name,
        "operator": "twice",
        "version": "0.1.0",
        "dispatcher": f"fixture_{name}::twice",
        "schema": '"twice(Tensor x) -> Tensor"',
        "sources": "[op.cpp]",
        "cxx_flags": json.dumps(flags),
        "backends": "[cpu, meta]",
        "autograd": "true",
        "kernel_name_regex": "twice",
        "dtypes": "[float32, float64]",
    }
    if name in PYTHON:
        (folder / "registration.py").write_text(PYTHON[name], "utf-8")
        entries["python"] = "registration.py"
    entries |= MANIFEST_CHANGES.get(name, {})
    text = "".join(f"{key}: {value}\n" for key, value in entries.items())
    (folder / "candidate.yaml").write_text(text, "utf-8")
