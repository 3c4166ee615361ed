"""Programs that are run for their output: many at once, bounded in time, output and memory.

For compilers and version probes. Workers, which are talked to, live elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mini_kv.core.record import Record
from mini_kv.core.time_limits import TOOL_OUTPUT_TIMEOUT_S, TOOL_TIMEOUT_S

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

HEAD_BYTES = 512 << 10
TAIL_BYTES = 64 << 10
READ_BYTES = 64 << 10
_POLL_S = 0.02


class Command(Record, frozen=True, kw_only=True):
    """One program to run. ``environ`` is the whole environment, nothing is inherited."""

    argv: tuple[str, ...]
    cwd: str
    environ: dict[str, str]


class Limits(Record, frozen=True, kw_only=True):
    """Per-process limits; ``None`` leaves the inherited one."""

    memory_bytes: int | None = None
    file_bytes: int | None = None
    cpu_s: int | None = None


class Finished(Record, frozen=True, kw_only=True):
    """How a program ended. ``returncode`` is negative for a signal, as in ``subprocess``.

    Output beyond the bound is cut out of the middle; the place says how many bytes went.
    """

    returncode: int
    elapsed_s: float
    stdout: bytes
    stderr: bytes
    timed_out: bool


class _Bounded:
    """Keeps the head and the tail of a stream, counts the rest."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.dropped_bytes = 0

    def add(self, chunk: bytes) -> None:
        room = HEAD_BYTES - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:] if room < len(chunk) else b""
        if len(self.tail) > 2 * TAIL_BYTES:
            excess = len(self.tail) - TAIL_BYTES
            self.dropped_bytes += excess
            del self.tail[:excess]

    def value(self) -> bytes:
        if not self.dropped_bytes:
            return bytes(self.head + self.tail)
        note = f"\n[... {self.dropped_bytes} bytes left out ...]\n".encode()
        return bytes(self.head) + note + bytes(self.tail)


class _Running:
    """One live program with its two pipes."""

    def __init__(self, command: Command, limits: Limits) -> None:
        self.started = time.monotonic()
        self.ended: float | None = None
        self.timed_out = False
        self.stdout, self.stderr = _Bounded(), _Bounded()
        self.process = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env=dict(command.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        _limit(self.process.pid, limits)

    def streams(self) -> tuple[tuple[IO[bytes], _Bounded], ...]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return (self.process.stdout, self.stdout), (self.process.stderr, self.stderr)

    def kill(self) -> None:
        """Kill the whole process group, also after its leader has gone, and reap the leader."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> Finished:
        self.kill()
        for stream, _ in self.streams():
            stream.close()
        ended = self.ended if self.ended is not None else time.monotonic()
        return Finished(
            returncode=self.process.returncode,
            elapsed_s=ended - self.started,
            stdout=self.stdout.value(),
            stderr=self.stderr.value(),
            timed_out=self.timed_out,
        )


def _limit(pid: int, limits: Limits) -> None:
    """Set limits from outside, after exec: a ``preexec_fn`` is not safe while threads run."""
    wanted = (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
    )
    for kind, value in wanted:
        if value is None:
            continue
        with contextlib.suppress(OSError, ValueError):  # gone already, or the hard limit is lower
            _, hard = resource.prlimit(pid, kind)
            ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(pid, kind, (ceiling, hard))


def run_all(
    commands: Sequence[Command],
    *,
    timeout_s: float,
    at_once: int | None = None,
    limits: Limits | None = None,
    on_finish: Callable[[int, Finished], None] | None = None,
) -> tuple[Finished, ...]:
    """Run every command, ``at_once`` of them together (all by default); return how each ended, in order.

    ``timeout_s`` bounds them all together; those still running or waiting then are killed with their
    process groups and marked ``timed_out``. Whatever is raised meanwhile (Ctrl-C too), no process is left.
    Raises ``OSError`` when a program cannot be started.
    """
    deadline = time.monotonic() + timeout_s
    waiting = list(enumerate(commands))[::-1]
    running: dict[int, _Running] = {}
    done: dict[int, Finished] = {}
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or running:
                while waiting and len(running) < (at_once or len(commands)):
                    number, command = waiting.pop()
                    running[number] = _Running(command, limits or Limits())
                    for stream, sink in running[number].streams():
                        os.set_blocking(stream.fileno(), False)
                        selector.register(stream, selectors.EVENT_READ, sink)
                _read_ready(selector)
                for number in [n for n, one in running.items() if _is_over(one, selector, deadline)]:
                    for stream, _ in running[number].streams():
                        _forget(selector, stream)
                    done[number] = running.pop(number).finish()
                    if on_finish is not None:
                        on_finish(number, done[number])
    finally:
        for one in running.values():
            one.finish()
    return tuple(done[number] for number in range(len(commands)))


def _read_ready(selector: selectors.BaseSelector) -> None:
    if not selector.get_map():
        time.sleep(0.002)
        return
    for key, _ in selector.select(timeout=_POLL_S):
        try:
            chunk = os.read(key.fd, READ_BYTES)
        except BlockingIOError:
            continue
        if chunk:
            key.data.add(chunk)
        else:
            _forget(selector, key.fileobj)


def _forget(selector: selectors.BaseSelector, stream: FileDescriptorLike) -> None:
    with contextlib.suppress(KeyError):
        selector.unregister(stream)


def _is_over(one: _Running, selector: selectors.BaseSelector, deadline: float) -> bool:
    now = time.monotonic()
    if one.process.poll() is None:
        one.timed_out = now >= deadline
        return one.timed_out
    if one.ended is None:
        one.ended = now
    registered = selector.get_map()
    drained = not any(stream in registered for stream, _ in one.streams())
    return drained or now >= one.ended + TOOL_OUTPUT_TIMEOUT_S


def probe(
    argv: Sequence[str], environ: Mapping[str, str], *, timeout_s: float = TOOL_TIMEOUT_S
) -> Finished | None:
    """Run one program for its answer; ``None`` when it cannot be started at all."""
    command = Command(argv=tuple(argv), cwd=str(Path("/")), environ=dict(environ))
    try:
        return run_all([command], timeout_s=timeout_s)[0]
    except OSError:
        return None
