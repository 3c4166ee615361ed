"""The judge's end of a worker: start it, ask it, and know for certain how it ended.

Nothing a candidate's process does is an exception here: a crash, a hang, a flood or a forged frame
comes back as :class:`Lost`, with a code and the evidence.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mini_kv.core import protocol
from mini_kv.core.codes import Code
from mini_kv.core.protocol import LoadCandidate, ProtocolError, Reply, Request
from mini_kv.core.time_limits import NO_TIMEOUT_S, WORKER_EXIT_TIMEOUT_S, WORKER_OUTPUT_TIMEOUT_S
from mini_kv.system.processes import (
    Family,
    continue_processes,
    kill_descendants,
    stop_tree,
    sweep_orphans,
)
from mini_kv.system.sandbox.cage import Cage
from mini_kv.system.sandbox.worker_folders import hand_over

Payload = bytes | bytearray | memoryview

OUTPUT_LIMIT_BYTES = 8 << 20
OUTPUT_KEPT_BYTES = 32 << 10
# These never load a candidate.
TRUSTED_ROLES = frozenset({"oracle", "importer"})

_BOOT = "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
# A candidate's worker enters its cage before torch is imported: while it still has a single thread.
_CAGE = (
    "from mini_kv.system.sandbox.entry import enter; "
    "a['parent'] = enter(a['cage'], a['parent'], (a['fd'],)); "
)
_SERVE = "from mini_kv.worker.main import main; main(a['role'], a['fd'], a['parent'])"
# What a worker may inherit. Everything else (LD_PRELOAD, PYTHONPATH, credentials) stays outside.
_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A well-formed reply."""

    reply: Reply
    payloads: list[bytearray]


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The worker is gone (or was killed) and gave no answer."""

    code: str
    message: str
    output: str


class _Drain(threading.Thread):
    """Reads a worker's stdout and stderr for ever: keeps the ends, counts all, stops a flood."""

    def __init__(self, descriptor: int, on_flood: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._descriptor = descriptor
        self._on_flood = on_flood
        self._head = bytearray()
        self._tail = bytearray()
        self.flooded = False

    def run(self) -> None:
        total = 0
        while chunk := os.read(self._descriptor, 1 << 16):
            total += len(chunk)
            room = OUTPUT_KEPT_BYTES - len(self._head)
            self._head += chunk[: max(room, 0)]
            self._tail = (self._tail + chunk[max(room, 0) :])[-OUTPUT_KEPT_BYTES:]
            if total > OUTPUT_LIMIT_BYTES and not self.flooded:
                self.flooded = True
                self._on_flood()
        os.close(self._descriptor)

    def text(self) -> str:
        """Return what was kept, oldest first."""
        gap = b"\n[...]\n" if len(self._tail) >= OUTPUT_KEPT_BYTES else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")


class Worker:
    """One running worker process."""

    def __init__(
        self,
        role: str,
        folder: Path,
        import_path: Sequence[str],
        *,
        cage: Cage | None = None,
        number: int = 0,
        family: Family | None = None,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reader, writer = os.pipe()
        options = {"path": list(import_path), "role": role, "fd": theirs.fileno(), "parent": os.getpid()}
        scratch, self._inbox = folder, None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if cage is not None:
            scratch, self._inbox, policy = cage.rooms(folder, number)
            options |= {"path": list(cage.import_path), "cage": policy}
        boot = _BOOT + (_CAGE if cage is not None else "") + _SERVE
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-X", "faulthandler", "-c", boot, json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            cwd=scratch,
            env=_environment(scratch),
        )
        os.close(writer)
        theirs.close()
        self.pid = self._process.pid
        self._family = family
        self._socket = ours
        self._pidfd = os.pidfd_open(self.pid)
        self._drain = _Drain(reader, self.kill)
        self._drain.start()
        self._lost: Lost | None = None

    @property
    def alive(self) -> bool:
        """Whether requests still make sense."""
        return self._lost is None

    def request(
        self,
        message: Request,
        payloads: Sequence[Payload] = (),
        *,
        timeout_s: float,
        max_reply_bytes: int = protocol.DEFAULT_MAX_FRAME_BYTES,
    ) -> Answer | Lost:
        """Ask and wait; whatever goes wrong ends the worker and comes back as :class:`Lost`."""
        if self._lost is not None:
            return self._lost
        deadline = time.monotonic() + timeout_s
        try:
            self._refuse_unasked()
            self._send(message, payloads, deadline)
            return self._receive(deadline, max_reply_bytes)
        except TimeoutError:
            return self._lose(Code.TIMEOUT, f"no answer within {timeout_s:g} s; the process was killed")
        except ProtocolError as error:
            return self._lose(Code.PROTOCOL_VIOLATION, f"the process sent something malformed: {error}")
        except (EOFError, ConnectionError, BrokenPipeError):
            return self._lose_to_death()

    def ended(self, timeout_s: float) -> bool:
        """Wait for a process that ends by itself; say whether it has."""
        return self._pidfd < 0 or _readable(self._pidfd, timeout_s)

    def kill(self) -> None:
        """Kill the process; safe from any thread: a request under way there comes back as lost."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the process and all that it started from running in the block."""
        # A number may be another's once the process was reaped, which only closing it does.
        stopped = stop_tree(self.pid) if self._pidfd >= 0 else ()
        try:
            yield
        finally:
            if self._pidfd >= 0:
                continue_processes(stopped)

    def bring(self, request: LoadCandidate) -> LoadCandidate:
        """Copy what is to be loaded to where a caged worker can read it; the answer names the copies.

        The build folder stays out of its sight. The worker checks the copy's hash before it opens it.
        """
        if self._inbox is None:
            return request
        with contextlib.suppress(OSError):  # what cannot be copied the worker misses, and says so
            library, python = hand_over(Path(request.library), request.python, self._inbox)
            return msgspec.structs.replace(request, library=library, python=python)
        return request

    def close(self) -> None:
        """End the process and everything it started.

        It holds nothing worth an orderly exit, and tearing CUDA down in order takes a second.
        """
        self._end()

    def output(self) -> str:
        """Return what the process printed so far (its ends)."""
        return self._drain.text()

    def _refuse_unasked(self) -> None:
        # Between requests an honest worker is silent: what lies here would pass for the next answer.
        if _readable(self._socket.fileno(), NO_TIMEOUT_S) and self._socket.recv(1, socket.MSG_PEEK):
            raise ProtocolError("a message that nothing asked for")

    def _send(self, message: Request, payloads: Sequence[Payload], deadline: float) -> None:
        header = protocol.encode_message(message)
        sizes = tuple(memoryview(payload).nbytes for payload in payloads)
        for part in (protocol.encode_prefix(header, sizes) + header, *payloads):
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._socket.sendall(part)

    def _receive(self, deadline: float, limit: int) -> Answer:
        prefix = bytes(self._exactly(protocol.PREFIX.size, deadline))
        header_bytes, count = protocol.parse_prefix(prefix)
        sizes = struct.unpack(f"<{count}Q", self._exactly(8 * count, deadline))
        if sum(sizes) > limit:
            raise ProtocolError(f"payloads of {sum(sizes)} bytes where at most {limit} are expected")
        reply = protocol.decode_reply(bytes(self._exactly(header_bytes, deadline)))
        return Answer(reply=reply, payloads=[self._exactly(size, deadline) for size in sizes])

    def _exactly(self, size: int, deadline: float) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        while view:
            ready = dict(poll.poll(max((deadline - time.monotonic()) * 1000.0, 0.0)))
            if self._socket.fileno() in ready:
                received = self._socket.recv_into(view)
                if received == 0:
                    raise EOFError
                view = view[received:]
            elif ready:
                # The process is gone, though a child of it may still hold the socket open.
                raise EOFError
            else:
                raise TimeoutError
        return buffer

    def _lose_to_death(self) -> Lost:
        if not _readable(self._pidfd, WORKER_EXIT_TIMEOUT_S):
            return self._lose(Code.CHANNEL_CLOSED, "the process closed its channel to the judge but lives on")
        self._end()
        code = self._process.returncode
        if self._drain.flooded:
            return self._lose(
                Code.OUTPUT_FLOOD,
                f"the process printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB and was killed",
            )
        if code < 0:
            return self._lose(Code.CRASHED, f"the process died from signal {_signal_name(-code)}")
        return self._lose(Code.EXITED, f"the process left with exit code {code} before it answered")

    def _lose(self, code: Code, message: str) -> Lost:
        self._end()
        self._drain.join(WORKER_OUTPUT_TIMEOUT_S)
        self._lost = Lost(code=code, message=message, output=self._drain.text())
        return self._lost

    def _end(self) -> None:
        if self._pidfd < 0:
            return
        if self._family is not None:
            self._family.members()  # who ends now was one of us
        # Before the process is reaped: from then on its number may be another's.
        kill_descendants(self.pid)
        self._process.wait()
        self._socket.close()
        os.close(self._pidfd)
        self._pidfd = -1
        if self._lost is None:
            self._lost = Lost(code=Code.CLOSED, message="the worker was closed", output="")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return str(number)


def _readable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000.0))


def _environment(scratch: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    home = str(scratch)
    return kept | {
        "HOME": home,
        # A caged worker's user id is in no password file, where torch would look for a name.
        "USER": "candidate",
        "LOGNAME": "candidate",
        "TMPDIR": home,
        "XDG_CACHE_HOME": home,
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor",
        "TRITON_CACHE_DIR": f"{home}/triton",
        "CUDA_CACHE_PATH": f"{home}/nv",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Threads that spin at a barrier while another process has the core that they wait for: with four
        # processes on two cores, parallel loops were 4 to 8 times slower. A timed call on the CPU has one.
        "OMP_WAIT_POLICY": "PASSIVE",
    }


class Nursery:
    """Starts workers and, at the end, makes sure that none of them and none of theirs is left.

    ``elder`` is another nursery of this process that lives on: its workers are spared.
    """

    def __init__(
        self,
        scratch: Path,
        import_path: Sequence[str],
        cage: Cage | None = None,
        elder: Nursery | None = None,
    ) -> None:
        self._scratch = scratch
        self._import_path = tuple(import_path)
        self._cage = cage
        self._elder = elder
        if cage is not None:
            scratch.chmod(0o711)  # another user passes through, and sees nothing of its neighbours
        self._workers: list[Worker] = []
        self._family = Family()
        self._lock = threading.Lock()

    @property
    def started(self) -> int:
        """How many workers were started so far."""
        return len(self._workers)

    def start(self, role: str) -> Worker:
        """Start a worker in a folder of its own, in the cage (where there is one) unless it is trusted."""
        with self._lock:
            number = len(self._workers)
            cage = self._cage if role not in TRUSTED_ROLES else None
            folder = self._scratch / f"{number:03d}-{role}"
            worker = Worker(role, folder, self._import_path, cage=cage, number=number, family=self._family)
            self._workers.append(worker)
        return worker

    def own_processes(self) -> frozenset[int]:
        """Return the ids of this process and of all it started, those that have just ended among them."""
        return self._family.members()

    def close(self) -> int:
        """End every worker and sweep what they left; return how many strays there were."""
        with self._lock:
            for worker in self._workers:
                worker.close()
            return sweep_orphans(self._living())

    def sweep(self) -> int:
        """Kill what lost workers left behind; only while no other child of the judge runs."""
        with self._lock:
            return sweep_orphans(self._living())

    def _living(self) -> frozenset[int]:
        own = frozenset(worker.pid for worker in self._workers if worker.alive)
        return own if self._elder is None else own | self._elder._living()
