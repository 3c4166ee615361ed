"""The judge's end of a worker: whatever the other side does is one :class:`Lost` with its cause."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mini_kv
from fake_worker import use_script
from mini_kv.core import protocol as p
from mini_kv.core.tensors import contiguous_strides
from mini_kv.system import workers
from mini_kv.system.processes import adopt_orphans
from mini_kv.system.workers import Answer, Lost, Nursery, Worker

SOURCE = str(Path(mini_kv.__file__).parent.parent)
HELLO = p.Hello(device="cpu", threads=1)
READY = "wire.receive(); wire.say(p.Ready(torch='2', torch_cuda=None, device='cpu', device_count=1))\n"

NO_TYPES = """h = b'{"type":"raised","types":[],"message":"","device_lost":false}'\n"""

Start = Callable[[str], Worker]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    adopt_orphans()
    made = Nursery(tmp_path, [SOURCE, *filter(None, sys.path)])
    yield made
    made.close()


@pytest.fixture
def start(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> Start:
    def begin(source: str) -> Worker:
        use_script(monkeypatch, source)
        return nursery.start("candidate")

    return begin


def lost(worker: Worker, *, timeout_s: float = 20.0, limit: int = 1 << 20) -> Lost:
    outcome = worker.request(HELLO, timeout_s=timeout_s, max_reply_bytes=limit)
    assert isinstance(outcome, Lost), outcome
    assert not worker.alive
    assert gone(worker.pid)
    return outcome


def gone(pid: int) -> bool:
    return not Path("/proc", str(pid)).exists()


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 5.0
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return gone(pid)


def test_a_well_formed_answer_arrives_with_its_payloads(start: Start) -> None:
    worker = start("wire.receive(); wire.say(p.Done(), [b'abc', b'', bytes(70000)])\ntime.sleep(60)")
    answer = worker.request(HELLO, timeout_s=20.0)
    assert isinstance(answer, Answer)
    assert answer.reply == p.Done()
    assert [bytes(payload) for payload in answer.payloads] == [b"abc", b"", bytes(70000)]
    assert worker.alive


# ---------------------------------------------------------------------------- frames that are none


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("wire.raw(b'HTTP/1.1 200 OK' + bytes(64))", "magic"),
        ("wire.raw(p.PREFIX.pack(p.MAGIC, 0xFFFFFFFF, 0))", "header of 4294967295 bytes"),
        ("wire.raw(p.PREFIX.pack(p.MAGIC, 2, 0xFFFFFFFF))", "4294967295 payloads"),
        ("wire.raw(p.PREFIX.pack(p.MAGIC, 2, 1) + struct.pack('<Q', 1 << 62) + b'{}')", str(1 << 62)),
        (
            "wire.raw(p.PREFIX.pack(p.MAGIC, 2, 4096) + struct.pack('<Q', (1 << 64) - 1) * 4096)",
            "at most 1048576",
        ),
        ("wire.raw(p.PREFIX.pack(p.MAGIC, 4, 0) + b'null')", "not a reply"),
        ("wire.raw(p.PREFIX.pack(p.MAGIC, 4, 0) + b'\\xff\\xfe{}')", "not a reply"),
        ("wire.raw(p.PREFIX.pack(p.MAGIC, 60000, 0) + b'[' * 60000)", "not a reply"),
        ("wire.raw(p.encode_prefix(h := p.encode_message(p.Rouse()), ()) + h)", "not a reply"),
        ("wire.raw(p.encode_prefix(h := b'{\"type\":\"done\",\"more\":1}', ()) + h)", "not a reply"),
        (
            NO_TYPES + "wire.raw(p.encode_prefix(h, ()) + h)",
            "not a reply",
        ),
    ],
    ids=[
        "another-protocol", "huge-header", "many-payloads", "huge-payload", "huge-sum", "null", "not-utf-8",
        "deep-nesting", "a-request", "an-unknown-field", "an-exception-without-a-type",
    ],
)  # fmt: skip
def test_a_forged_frame_is_a_protocol_violation(start: Start, source: str, part: str) -> None:
    found = lost(start(f"wire.receive()\n{source}\ntime.sleep(60)"))
    assert found.code == "PROTOCOL_VIOLATION"
    assert part in found.message


def test_payloads_over_the_plans_limit_are_refused_before_they_are_read(start: Start) -> None:
    found = lost(start("wire.receive()\nwire.say(p.Done(), [bytes(2000)])\ntime.sleep(60)"), limit=1999)
    assert found.code == "PROTOCOL_VIOLATION"
    assert "2000 bytes where at most 1999" in found.message


@pytest.mark.parametrize("cut", [1, 11, 15])
def test_a_frame_that_stops_short_is_a_timeout(start: Start, cut: int) -> None:
    source = f"wire.receive()\nh = p.encode_message(p.Done())\nwire.raw((p.encode_prefix(h, ()) + h)[:{cut}])"
    found = lost(start(f"{source}\ntime.sleep(60)"), timeout_s=1.5)
    assert found.code == "TIMEOUT"
    assert "1.5 s" in found.message


def test_a_frame_cut_by_death_names_the_death(start: Start) -> None:
    found = lost(start("wire.receive()\nwire.raw(p.MAGIC)\nos.kill(os.getpid(), signal.SIGSEGV)"))
    assert (found.code, "SIGSEGV" in found.message) == ("CRASHED", True)


def test_an_answer_that_nobody_asked_for_does_not_become_the_next_answer(start: Start) -> None:
    worker = start(
        READY
        + "wire.say(p.Done())\nwire.receive()\nwire.say(p.Failed(code='X', message='real'))\ntime.sleep(60)"
    )
    assert isinstance(worker.request(HELLO, timeout_s=20.0), Answer)
    time.sleep(0.2)
    found = lost(worker)
    assert found.code == "PROTOCOL_VIOLATION"
    assert "nothing asked for" in found.message


# ---------------------------------------------------------------------------- ways to go


@pytest.mark.parametrize(
    ("source", "code", "part"),
    [
        ("os.abort()", "CRASHED", "SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "CRASHED", "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", "CRASHED", "signal"),
        ("os._exit(0)", "EXITED", "exit code 0"),
        ("raise SystemExit(7)", "EXITED", "exit code 7"),
        ("raise ValueError('boom')", "EXITED", "exit code 1"),
        ("wire.socket.close(); time.sleep(60)", "CHANNEL_CLOSED", "lives on"),
        (
            "import socket as s; wire.socket.shutdown(s.SHUT_RDWR); time.sleep(60)",
            "CHANNEL_CLOSED",
            "lives on",
        ),
    ],
    ids=["abort", "killed", "realtime-signal", "exit-0", "exit-7", "exception", "closed", "shut-down"],
)
def test_the_way_a_worker_ends_is_told(
    start: Start, monkeypatch: pytest.MonkeyPatch, source: str, code: str, part: str
) -> None:
    monkeypatch.setattr(workers, "WORKER_EXIT_TIMEOUT_S", 0.3 if code == "CHANNEL_CLOSED" else 5.0)
    found = lost(start(f"wire.receive()\n{source}"))
    assert found.code == code
    assert part in found.message


def test_what_a_dying_worker_printed_is_kept(start: Start) -> None:
    found = lost(start("wire.receive()\nprint('last words', flush=True)\nraise ValueError('boom')"))
    assert "last words" in found.output
    assert "ValueError: boom" in found.output


def test_a_hang_ends_at_the_deadline(start: Start) -> None:
    begun = time.monotonic()
    found = lost(
        start("wire.receive()\nsignal.pthread_sigmask(0, range(1, 65))\nwhile True: pass"), timeout_s=1.0
    )
    assert found.code == "TIMEOUT"
    assert time.monotonic() - begun < 5.0


def test_a_stopped_process_ends_at_the_deadline(start: Start) -> None:
    assert (
        lost(start("wire.receive()\nos.kill(os.getpid(), signal.SIGSTOP)"), timeout_s=1.0).code == "TIMEOUT"
    )


def test_a_worker_that_never_reads_a_large_request_is_a_timeout(start: Start) -> None:
    worker = start("time.sleep(60)")
    outcome = worker.request(HELLO, [bytes(8 << 20)], timeout_s=1.0)
    assert isinstance(outcome, Lost)
    assert outcome.code == "TIMEOUT"


def test_a_flood_of_output_is_stopped_and_its_ends_are_kept(start: Start) -> None:
    source = "wire.receive()\nos.write(1, b'BEGIN')\nwhile True: os.write(1, b'y' * 65536)"
    found = lost(start(source))
    assert found.code == "OUTPUT_FLOOD"
    assert found.output.startswith("BEGIN")
    assert len(found.output) < 1 << 17


def test_output_that_is_not_utf_8_is_kept_readable(start: Start) -> None:
    assert "\ufffd" in lost(start("wire.receive()\nos.write(2, b'\\xff\\xfe')\nos._exit(1)")).output


def test_output_below_the_limit_does_no_harm(start: Start) -> None:
    worker = start("wire.receive()\nos.write(1, b'y' * (1 << 20))\nwire.say(p.Done())\ntime.sleep(60)")
    assert isinstance(worker.request(HELLO, timeout_s=20.0), Answer)


# ---------------------------------------------------------------------------- nothing stays behind

_FORK = """
import sys
wire.receive()
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(w, str(os.getpid()).encode())
    time.sleep(600)
os.wait()
pid = os.read(r, 20).decode()
"""


def daemon_of(start: Start, then: str) -> tuple[Worker, int]:
    worker = start(_FORK + then)
    outcome = worker.request(HELLO, timeout_s=20.0)
    text = outcome.output if isinstance(outcome, Lost) else getattr(outcome.reply, "message", "")
    return worker, int("".join(filter(str.isdigit, text)))


def test_a_daemon_that_forked_twice_is_swept_after_a_crash(start: Start, nursery: Nursery) -> None:
    # The daemon still holds the socket, so the crash is seen through the process and not its channel.
    begun = time.monotonic()
    _, daemon = daemon_of(start, "os.write(1, pid.encode()); os.kill(os.getpid(), signal.SIGKILL)")
    assert time.monotonic() - begun < 10.0
    assert not gone(daemon)
    assert nursery.sweep() == 1
    assert wait_until_gone(daemon)


def test_a_daemon_that_forked_twice_is_gone_when_the_nursery_closes(start: Start, nursery: Nursery) -> None:
    worker, daemon = daemon_of(start, "wire.say(p.Failed(code='PID', message=pid)); time.sleep(600)")
    assert worker.alive
    assert not gone(daemon)
    nursery.close()
    assert gone(worker.pid)
    assert wait_until_gone(daemon)


def test_sweeping_spares_living_workers(start: Start, nursery: Nursery) -> None:
    worker = start(READY + READY + "time.sleep(60)")
    assert isinstance(worker.request(HELLO, timeout_s=20.0), Answer)
    assert nursery.sweep() == 0
    assert isinstance(worker.request(HELLO, timeout_s=20.0), Answer)


def test_a_closed_worker_kills_nobody_when_it_is_closed_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may belong to another process by then."""
    worker = start("os._exit(0)")
    assert lost(worker).code == "EXITED"
    killed: list[int] = []
    monkeypatch.setattr(workers, "kill_descendants", killed.append)
    worker.close()
    worker.kill()
    assert killed == []


def test_a_request_to_a_lost_worker_says_again_why_it_was_lost(start: Start) -> None:
    worker = start("wire.receive()\nos.abort()")
    first = lost(worker)
    assert worker.request(HELLO, timeout_s=1.0) is first


def test_kill_from_another_thread_ends_a_request_under_way(start: Start) -> None:
    import threading

    worker = start("time.sleep(600)")
    threading.Timer(0.3, worker.kill).start()
    assert lost(worker, timeout_s=60.0).code == "CRASHED"


# ---------------------------------------------------------------------------- what a worker inherits


def test_the_environment_is_scrubbed_and_home_is_the_scratch_folder(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("LD_PRELOAD", "PYTHONPATH", "GITHUB_TOKEN", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "x" if name != "LD_PRELOAD" else "")
    worker = start(
        "wire.receive()\n"
        "lines = [f'{name}={value}' for name, value in os.environ.items()]\n"
        "wire.say(p.Failed(code='E', message='\\n'.join(lines)))"
    )
    outcome = worker.request(HELLO, timeout_s=20.0)
    assert isinstance(outcome, Answer)
    assert isinstance(outcome.reply, p.Failed)
    found = dict(line.split("=", 1) for line in outcome.reply.message.splitlines())
    assert not {"LD_PRELOAD", "PYTHONPATH", "GITHUB_TOKEN", "PYTHONSTARTUP"} & set(found)
    assert found["HOME"] == found["TMPDIR"]
    assert Path(found["HOME"]).is_relative_to(tmp_path)


def test_a_worker_inherits_no_open_file_but_its_channel(start: Start, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as secret:
        os.set_inheritable(secret.fileno(), True)
        worker = start(
            "wire.receive()\n"
            "names = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') "
            "if os.path.lexists(f'/proc/self/fd/{n}')]\n"
            "wire.say(p.Failed(code='F', message=' '.join(names)))"
        )
        outcome = worker.request(HELLO, timeout_s=20.0)
    assert isinstance(outcome, Answer)
    assert isinstance(outcome.reply, p.Failed)
    assert "secret" not in outcome.reply.message
    assert outcome.reply.message.count("socket:") == 1


def test_strides_of_empty_tensors_are_torchs() -> None:
    assert contiguous_strides((2, 0, 3)) == (3, 3, 1)
    assert contiguous_strides(()) == ()


def test_a_worker_that_was_closed_still_counts_as_the_runs_own(start: Start, nursery: Nursery) -> None:
    """An earlier worker's context was taken for another user of the GPU."""
    worker = start(READY + "time.sleep(60)")
    assert isinstance(worker.request(HELLO, timeout_s=20.0), Answer)
    worker.close()
    assert gone(worker.pid)
    assert {os.getpid(), worker.pid} <= nursery.own_processes()


def test_a_second_nursery_leaves_the_first_ones_workers_alone(
    start: Start, nursery: Nursery, tmp_path: Path
) -> None:
    """A batch that is timed again in fresh processes ended the run's own oracle."""
    worker = start(READY + READY + "time.sleep(60)")
    assert isinstance(worker.request(HELLO, timeout_s=20.0), Answer)
    second = Nursery(tmp_path / "second", [SOURCE, *filter(None, sys.path)], elder=nursery)
    other = second.start("candidate")
    assert isinstance(other.request(HELLO, timeout_s=20.0), Answer)
    second.close()
    assert gone(other.pid)
    assert isinstance(worker.request(HELLO, timeout_s=20.0), Answer)
