"""From a request to a :class:`Build`: out of the store when it is there, else through the compilers."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mini_kv.compiler import diagnosis
from mini_kv.compiler.device_facts import describe
from mini_kv.compiler.recipe import BuildRequest, Plan, make_plan, symbolic, symbolic_text
from mini_kv.compiler.snapshot import Snapshot, read_candidate
from mini_kv.compiler.store import SOURCES_NAME, STDERR_NAME, STDOUT_NAME, BuildStore, wall_clock
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.build import Build, BuildUnit
from mini_kv.core.records.card import SCHEMA_VERSION
from mini_kv.core.records.device_code import DeviceCode
from mini_kv.core.records.results import Status
from mini_kv.system.commands import Command, Finished, Limits, run_all
from mini_kv.system.files import read_regular, remove_tree, sha256_file
from mini_kv.system.host import usable_cpus
from mini_kv.system.toolchain import Toolchain, tool_environ

MEMORY_BYTES = 16 << 30
FILE_BYTES = 2 << 30
LEAST_AT_ONCE = 4
"""Units compiled together even on a small machine; many more would only fill its memory."""
LINK = "(link)"

Progress = Callable[[str], None]


def build(
    request: BuildRequest,
    toolchain: Toolchain,
    *,
    progress: Progress | None = None,
    launcher: Sequence[str] = (),
) -> Build:
    """Return the build of a candidate, made now or found in ``.build/``.

    What the candidate did wrong is in the value: ``COMPILE_ERROR``, ``LINK_ERROR``,
    ``FOREIGN_INCLUDE``, ``COMPILE_TIMEOUT``, ``NO_SOURCES`` (FAIL) or ``COMPILER_KILLED`` (ERROR).
    Raises :class:`ConfigurationError` when this machine or the manifest cannot give any build.
    ``progress`` gets one line per finished step; ``launcher`` is put before every compiler's command
    line (a sandbox). Failures are never cached.
    """
    started = time.monotonic()
    project_root = Path(request.project_root).resolve()
    snapshot = read_candidate(project_root / request.candidate_folder)
    plan = make_plan(request, toolchain, snapshot)
    job = _Job(
        request=request,
        toolchain=toolchain,
        snapshot=snapshot,
        plan=plan,
        started=started,
        progress=progress or _silent,
        launcher=tuple(launcher),
    )
    store = BuildStore(project_root)
    found = store.find(plan.key)
    if found is not None:
        return job.reused(found)
    if not plan.units:
        return job.failed(Status.FAIL, Code.NO_SOURCES, f"No source is for device {request.device}.")
    try:
        return _build_in(store, job)
    except OSError as error:
        raise ConfigurationError(
            Code.BUILD_FOLDER, f"The build in {store.folder} cannot go on: {error.strerror or error}."
        ) from error


def _build_in(store: BuildStore, job: _Job) -> Build:
    key = job.plan.key
    with store.lock(key, job.request.timeout_s):
        # A process that waited finds the other's build here. One that waited in vain builds a second one:
        # both work in folders of their own, and the first to publish wins.
        found = store.find(key)
        if found is not None:
            return job.reused(found)
        store.sweep(wall_clock())
        with store.partial(key) as partial:
            fresh = job.compile(partial, store)
            if store.publish(partial, fresh):
                return fresh
    found = store.find(key)
    return job.reused(found) if found is not None else fresh


def logs_folder(project_root: Path, result: Build) -> Path:
    """Return the folder with ``compile_stdout.log``, ``compile_stderr.log`` and ``sources/`` of a build.

    After ``NO_SOURCES`` there is none: nothing was run.
    """
    store = BuildStore(project_root)
    passed = result.status is Status.PASS
    return store.build_folder(result.key) if passed else store.failed_folder(result.key)


def _silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One build under way: the request with everything that was found out about it."""

    request: BuildRequest
    toolchain: Toolchain
    snapshot: Snapshot
    plan: Plan
    started: float
    progress: Progress
    launcher: tuple[str, ...]

    # ------------------------------------------------------------------ results

    def reused(self, found: Build) -> Build:
        self.progress("build: found in the cache")
        return msgspec.structs.replace(found, cached=True, elapsed_s=time.monotonic() - self.started)

    def failed(
        self,
        status: Status,
        code: Code,
        message: str,
        *,
        units: tuple[BuildUnit, ...] = (),
        first_error: str | None = None,
    ) -> Build:
        return self._result(status, units, code=code, message=message, first_error=first_error)

    def _result(
        self,
        status: Status,
        units: tuple[BuildUnit, ...],
        *,
        code: Code | None = None,
        message: str | None = None,
        first_error: str | None = None,
        library: Path | None = None,
        device_code: DeviceCode | None = None,
    ) -> Build:
        cxx, nvcc, torch = self.toolchain.cxx, self.toolchain.nvcc, self.toolchain.torch
        on_cuda = self.request.device == "cuda"
        return Build(
            schema_version=SCHEMA_VERSION,
            status=status,
            code=code,
            message=message,
            key=self.plan.key,
            cached=False,
            elapsed_s=time.monotonic() - self.started,
            device=self.request.device,
            library=f".build/{self.plan.key}/{self.plan.library}" if library else None,
            library_sha256=sha256_file(library) if library else None,
            library_bytes=library.stat().st_size if library else None,
            torch=torch.version if torch else "",
            cxx=cxx.version if cxx else None,
            cuda_compiler=f"nvcc {nvcc.version}" if nvcc and on_cuda else None,
            arch_list=self.request.arch_list if on_cuda else (),
            units=units,
            source_sha256=self.snapshot.sha256,
            first_error=first_error,
            device_code=device_code,
        )

    # ------------------------------------------------------------------ work

    def compile(self, partial: Path, store: BuildStore) -> Build:
        """Compile and link in ``partial``; leave sources, logs and the library there, nothing else."""
        sources = partial / SOURCES_NAME
        self.snapshot.write(sources)
        for name in ("objects", "tmp"):
            (partial / name).mkdir()
        log = _Log(partial, self.plan)
        try:
            return self._compile(partial, sources, log)
        finally:
            log.write()
            for name in ("objects", "tmp"):
                remove_tree(partial / name, store.folder)

    def _compile(self, partial: Path, sources: Path, log: _Log) -> Build:
        deadline = time.monotonic() + self.request.timeout_s  # waiting for the lock is not compiling
        units = self.plan.units
        ended = self._run(partial, [unit.argv for unit in units], [unit.source for unit in units], deadline)
        records = tuple(log.add(unit.source, unit.argv, one) for unit, one in zip(units, ended, strict=True))
        broken = [(unit, one) for unit, one in zip(units, ended, strict=True) if one.returncode != 0]
        for unit, one in sorted(broken, key=lambda pair: pair[1].timed_out):  # an error says more
            return self._explain(unit.source, one, records, code=Code.COMPILE_ERROR, fault="does not compile")
        foreign = self._foreign(sources)
        if foreign:
            message = (
                f"'{foreign[0]}' is included from outside the candidate's folder: only its own files and the "
                "headers of the compiler, torch, CUDA and Python may reach a build."
            )
            return self.failed(
                Status.FAIL, Code.FOREIGN_INCLUDE, message, units=records, first_error="\n".join(foreign[:5])
            )
        linked = self._run(partial, [self.plan.link], [LINK], deadline)[0]
        records = (*records, log.add(LINK, self.plan.link, linked))
        if linked.returncode != 0:
            return self._explain(LINK, linked, records, code=Code.LINK_ERROR, fault="does not link")
        unresolved = diagnosis.unresolved_symbols(_text(linked.stderr))
        if unresolved:
            message = f"The library does not link: '{unresolved[0]}' is used but defined nowhere."
            return self.failed(
                Status.FAIL, Code.LINK_ERROR, message, units=records, first_error="\n".join(unresolved[:5])
            )
        library = partial / self.plan.library
        code = self._look_into(library, ended)
        return self._result(Status.PASS, records, library=library, device_code=code)

    def _look_into(self, library: Path, ended: Sequence[Finished]) -> DeviceCode | None:
        if self.request.device != "cuda":
            return None
        told = "\n".join(_text(one.stderr) + "\n" + _text(one.stdout) for one in ended)
        return describe(told, library, self.toolchain.cuobjdump)

    def _run(
        self, partial: Path, commands: Sequence[tuple[str, ...]], names: Sequence[str], deadline: float
    ) -> tuple[Finished, ...]:
        environ = {**tool_environ(), "TMPDIR": str(partial / "tmp"), "HOME": str(partial / "tmp")}
        # A fixed epoch and seed: __DATE__ and friends must not make two builds of one key differ.
        environ["SOURCE_DATE_EPOCH"] = "0"
        limits = Limits(
            memory_bytes=MEMORY_BYTES, file_bytes=FILE_BYTES, cpu_s=math.ceil(self.request.timeout_s) + 5
        )
        return run_all(
            [
                Command(argv=(*self.launcher, *argv), cwd=str(partial / SOURCES_NAME), environ=environ)
                for argv in commands
            ],
            timeout_s=max(0.0, deadline - time.monotonic()),
            at_once=max(LEAST_AT_ONCE, usable_cpus()),
            limits=limits,
            on_finish=lambda number, one: self.progress(f"build: {names[number]} ({one.elapsed_s:.1f} s)"),
        )

    def _explain(
        self, source: str, one: Finished, records: tuple[BuildUnit, ...], *, code: Code, fault: str
    ) -> Build:
        what = "The library" if source == LINK else f"'{source}'"
        stdout = symbolic_text(_text(one.stdout), self.plan.places)
        stderr = symbolic_text(_text(one.stderr), self.plan.places)
        error = diagnosis.first_error(stderr, stdout)
        if one.timed_out:
            message = f"{what} was not built within the limit of {self.request.timeout_s:g} s."
            return self.failed(Status.FAIL, Code.COMPILE_TIMEOUT, message, units=records, first_error=error)
        if diagnosis.was_killed(one.returncode, stderr):
            message = f"Something killed the compiler while {what} was built; memory may have run out."
            return self.failed(Status.ERROR, Code.COMPILER_KILLED, message, units=records, first_error=error)
        said = error or f"the compiler said nothing and returned {one.returncode}"
        message = f"{what} {fault}: {said.splitlines()[0]}"
        return self.failed(Status.FAIL, code, message, units=records, first_error=said)

    def _foreign(self, sources: Path) -> tuple[str, ...]:
        allowed: list[str] = [path for path in self.plan.places if path.startswith("/")]
        for folders in (
            self.toolchain.torch.include_folders if self.toolchain.torch else (),
            self.toolchain.cuda.include_folders if self.toolchain.cuda else (),
            self.toolchain.cxx.include_folders if self.toolchain.cxx else (),
        ):
            allowed += folders
        names: list[str] = []
        for unit in self.plan.units:
            path = sources / unit.dependencies
            with contextlib.suppress(FileNotFoundError):
                rule = read_regular(path, FILE_BYTES).decode("utf-8", "replace")
                names += diagnosis.dependencies(rule)
        return diagnosis.foreign_dependencies(names, str(sources), allowed)


class _Log:
    """The two logs of a build: every command with all that it said."""

    def __init__(self, partial: Path, plan: Plan) -> None:
        self._partial = partial
        self._plan = plan
        self._stdout: list[str] = []
        self._stderr: list[str] = []

    def add(self, source: str, argv: tuple[str, ...], one: Finished) -> BuildUnit:
        command = symbolic(argv, self._plan.places)
        head = f"$ {' '.join(command)}\n"
        self._stdout.append(head + symbolic_text(_text(one.stdout), self._plan.places))
        self._stderr.append(head + symbolic_text(_text(one.stderr), self._plan.places))
        return BuildUnit(source=source, command=command, returncode=one.returncode, elapsed_s=one.elapsed_s)

    def write(self) -> None:
        for name, parts in ((STDOUT_NAME, self._stdout), (STDERR_NAME, self._stderr)):
            (self._partial / name).write_text("\n".join(parts), encoding="utf-8", errors="replace")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
