"""Runs unit tests in forked children of one warm process, with one module replaced by a mutant of itself.

The parent has imported what tests need from elsewhere (pytest, hypothesis, torch), and nothing of mini_kv:
each child imports mini_kv anew, the mutant among it. Only tests that run the mutated line are run, the
quickest first.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from mutants.operators import Mutant, mutated_tree

ALL_LINES = 0
# How many times its processor time a child may take by the clock on the wall: it shares the machine.
_WALL_FACTOR = 5


@dataclass(kw_only=True)
class Coverage:
    """What each unit test runs: ``tests[module][line]`` are node ids, of any line at :data:`ALL_LINES`."""

    tests: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run a mutant's lines, the quickest first; all for code run at import."""
        if mutant.at_import:
            return self.of_module(mutant.module)
        # A constant that the compiler folds has no line of its own: then its statement's count.
        found = self._of_lines(mutant.module, mutant.first_line, mutant.last_line)
        return self._sorted(found or self._of_lines(mutant.module, *mutant.statement))

    def of_module(self, module: str) -> list[str]:
        """Return the tests that are to notice a change of a module, the quickest first."""
        return self._sorted(self.tests.get(module, {}).get(ALL_LINES, ()))

    def _of_lines(self, module: str, first: int, last: int) -> set[str]:
        lines = self.tests.get(module, {})
        return {test for line in range(first, last + 1) for test in lines.get(line, ())}

    def _sorted(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))


def preload() -> None:
    """Import what is not ours, so that children need not: slow, and the same for all."""
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    for name in (
        "pytest",
        "hypothesis",
        "msgspec",
        "yaml",
        "jsonschema",
        "jsonschema_rs",
        "rich.console",
        "torch",
    ):
        importlib.import_module(name)


def _answered(work: Callable[[], object]) -> object:
    try:
        return work()
    except Exception:  # noqa: BLE001
        # A fault of this harness must not look like a mutant that killed its process.
        return {"fault": traceback.format_exc()}


def in_child(work: Callable[[], object], *, limit_s: int) -> Generator[None, None, Any]:
    """Start ``work`` in a forked child; each ``next`` looks; the value is its answer, ``None`` if it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            left = json.dumps(_answered(work)).encode()
            while left:
                left = left[os.write(writing, left) :]
        finally:
            os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + _WALL_FACTOR * limit_s
    os.set_blocking(reading, False)
    said = b""
    while True:
        try:
            part = os.read(reading, 1 << 16)
            said += part
            if not part:
                break
        except BlockingIOError:
            if time.monotonic() > deadline:
                break
            yield
    os.close(reading)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    answer = json.loads(said) if said else None
    if isinstance(answer, dict) and "fault" in answer:
        raise SystemExit(f"mutants: a fault of the harness itself:\n{answer['fault']}")
    return answer


def together(works: Sequence[tuple[Callable[[], object], int]], jobs: int) -> Iterator[tuple[int, Any]]:
    """Run each in a child, ``jobs`` at once; yield its number and answer as they come."""
    waiting = list(enumerate(works))[::-1]
    running: dict[int, Generator[None, None, Any]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            number, (work, limit_s) = waiting.pop()
            running[number] = in_child(work, limit_s=limit_s)
        for number, child in list(running.items()):
            try:
                next(child)
            except StopIteration as end:
                del running[number]
                yield number, end.value
        time.sleep(0.005)


# --------------------------------------------------------------------------- in the child


def run_tests(node_ids: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Run unit tests in this process; return pytest's exit code."""
    import pytest

    sys.path[:0] = ["src", "tests"]
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:randomly",
        "--no-header",
        "--tb=no",
    ]
    return int(pytest.main([*options, *node_ids], plugins=list(plugins)))


def run_mutant(mutant: Mutant, source: Path, node_ids: Sequence[str]) -> dict[str, str | None]:
    """Return ``{"test": name}`` of the test that notices a mutant, or of ``None``."""
    code, noticed = _run_replaced(
        mutant.module, source, node_ids, mutated_tree(source.read_text("utf-8"), mutant.number)
    )
    return {"test": None if code == 0 else noticed.test or f"pytest ended with {code}"}


def run_unchanged(module: str, source: Path, node_ids: Sequence[str]) -> dict[str, Any]:
    """Run tests as :func:`run_mutant` does, on the module as it is: what fails here would notice anything."""
    code, noticed = _run_replaced(module, source, node_ids, ast.parse(source.read_text("utf-8")))
    return {"code": code, "test": noticed.test}


def _run_replaced(
    module: str, source: Path, node_ids: Sequence[str], tree: ast.Module
) -> tuple[int, _Noticed]:
    finder = _Finder(module, compile(tree, str(source), "exec", dont_inherit=True), source)
    sys.meta_path.insert(0, finder)
    noticed = _Noticed()
    code = run_tests(node_ids, [noticed])
    if code == 0 and not finder.used:
        raise RuntimeError(f"the tests of {module} passed without importing it")
    return code, noticed


class _Noticed:
    test: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the first test that fails."""
        if report.failed and self.test is None:
            self.test = report.nodeid


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, code: CodeType, source: Path) -> None:
        self._module, self._code, self._source = module, code, source
        self.used = False

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Answer for the one module."""
        if fullname != self._module:
            return None
        self.used = True
        loader = _Loader(fullname, str(self._source), self._code)
        is_package = self._source.name == "__init__.py"
        return importlib.util.spec_from_file_location(
            fullname,
            self._source,
            loader=loader,
            submodule_search_locations=[str(self._source.parent)] if is_package else None,
        )


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, code: CodeType) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        """Return the mutant, compiled."""
        return self._code


# --------------------------------------------------------------------------- coverage


def trace_tests(places: Sequence[str], sources: Mapping[str, str]) -> dict[str, Any]:
    """Run unit tests once; return which lines of which modules each runs, its time, and what failed."""
    tracer = _Tracer(sources)
    code = run_tests(places, [tracer])
    return {"lines": tracer.lines, "seconds": tracer.seconds, "failed": tracer.failed, "code": code}


class _Tracer:
    """A pytest plugin: the lines of the deciding modules that run in each test."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._now: dict[str, set[int]] = {}
        self.lines: dict[str, dict[str, list[int]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        module = self._sources.get(frame.f_code.co_filename)
        if module is None:
            return None
        self._now.setdefault(module, set()).add(frame.f_lineno)
        return self._trace

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> None:
        """Trace from here to the test's end."""
        import threading

        self._now = {}
        self._started = time.process_time()
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep what the test ran, once it is torn down."""
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when != "teardown":
            return
        sys.settrace(None)
        self.seconds[report.nodeid] = time.process_time() - self._started
        self.lines[report.nodeid] = {module: sorted(lines) for module, lines in self._now.items()}
