"""Seats for the two workers of a run: who sits there may be lost and replaced, the seat stays.

The candidate's seat replaces a lost worker by a fresh one that has opened the same library; from the
first loss on, a spare is kept importing torch in the background, so that a candidate that crashes in
every case does not cost an import each time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from mini_kv.core import protocol as p
from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError, InternalError
from mini_kv.core.time_limits import LOAD_TIMEOUT_S, WORKER_START_TIMEOUT_S
from mini_kv.system.conversation import Conversation
from mini_kv.system.oracle_client import OracleClient, text_of
from mini_kv.system.workers import Answer, Lost, Nursery, Payload, Worker

_ABANDONED = Lost(
    code=Code.ABANDONED,
    message="the answer was not waited for: a call of the cases hung, or the run was interrupted",
    output="",
)


class CandidateSeat(Conversation):
    """The candidate worker of a run; ``role`` is "contract" for the one that runs contract checks."""

    def __init__(self, nursery: Nursery, hello: p.Hello, role: str = "candidate") -> None:
        self._nursery = nursery
        self._hello = hello
        self._role = role
        self._load_request: p.LoadCandidate | None = None
        self._worker = nursery.start(role)
        self._spare: Worker | None = None
        self.ready: p.Ready | None = None
        self.losses = 0
        self.number = 1
        self._abandoned = threading.Event()

    @property
    def pid(self) -> int:
        """The id of the process that was started: in a namespace of its own, the worker's elder."""
        return self._worker.pid

    def rouse(self) -> None:
        """Wait until the first worker has imported what it needs; its device stays untouched.

        Whatever goes wrong meanwhile is what :meth:`greet` answers then.
        """
        self._worker.request(p.Rouse(), timeout_s=WORKER_START_TIMEOUT_S)

    def greet(self) -> p.Ready | p.Failed | Lost:
        """Wait until the first worker has imported torch and opened the device."""
        outcome = self._worker.request(self._hello, timeout_s=WORKER_START_TIMEOUT_S)
        match outcome:
            case Answer(reply=p.Ready() as ready):
                self.ready = ready
                return ready
            case Answer(reply=p.Failed() as failed):
                return failed
            case Answer():
                raise InternalError(Code.PROTOCOL, "a worker answered Hello with something else")
            case Lost():
                return outcome

    def load(self, request: p.LoadCandidate) -> p.CandidateLoaded | p.Failed | Lost:
        """Open the library in the seated worker, and in every later one."""
        self._load_request = request
        return self._load_into(self._worker)

    def ask(
        self,
        message: p.Request,
        payloads: Sequence[Payload] = (),
        *,
        timeout_s: float,
        max_reply_bytes: int = p.DEFAULT_MAX_FRAME_BYTES,
        last: bool = False,
    ) -> Answer | Lost:
        """Ask the seated worker, a fresh one if it was lost. Nothing is asked after the ``last`` request."""
        if not self._worker.alive and not self._abandoned.is_set():
            replaced = self._replace()
            if isinstance(replaced, Lost):
                return replaced
        if self._abandoned.is_set():
            self._worker.kill()
            return _ABANDONED
        outcome = self._worker.request(
            message, payloads, timeout_s=timeout_s, max_reply_bytes=max_reply_bytes
        )
        if isinstance(outcome, Lost):
            self._after_loss(spare=not last)
            return _ABANDONED if self._abandoned.is_set() else outcome
        return outcome

    def drop_timing(self, case_id: str, *, timeout_s: float) -> Answer | Lost:
        """Have the worker free a timed case. A lost worker holds nothing, and a fresh one costs seconds."""
        if not self.occupied:
            return Answer(reply=p.Done(), payloads=[])
        return super().drop_timing(case_id, timeout_s=timeout_s)

    def retire(self) -> None:
        """Give up the seated worker (its device is gone); the next request meets a fresh one."""
        self._worker.close()
        self._after_loss(spare=True)

    def close(self) -> None:
        """End the seated worker and the spare."""
        self._worker.close()
        if self._spare is not None:
            self._spare.close()

    def abandon(self) -> None:
        """Make every request of another thread come back as lost at once, now and from now on."""
        self._abandoned.set()
        self._worker.kill()

    def held(self) -> AbstractContextManager[None]:
        """Keep the seated worker and all that it started from running in a block."""
        return self._worker.held()

    @property
    def occupied(self) -> bool:
        """Whether the next request meets the worker that answered the last one."""
        return self._worker.alive

    def _after_loss(self, *, spare: bool) -> None:
        self.losses += 1
        self._nursery.sweep()
        if spare and self._spare is None and not self._abandoned.is_set():
            self._spare = self._nursery.start(self._role)

    def _replace(self) -> Lost | None:
        fresh, self._spare = self._spare or self._nursery.start(self._role), None
        self._worker = fresh
        self.number += 1
        outcome = fresh.request(self._hello, timeout_s=WORKER_START_TIMEOUT_S)
        if isinstance(outcome, Lost):
            return outcome
        if isinstance(outcome.reply, p.Failed):
            return _as_lost(outcome.reply)
        loaded = self._load_into(fresh)
        if not self._abandoned.is_set():
            self._spare = self._nursery.start(self._role)
        match loaded:
            case p.CandidateLoaded():
                return None
            case p.Failed():
                return _as_lost(loaded)
            case Lost():
                return loaded

    def _load_into(self, worker: Worker) -> p.CandidateLoaded | p.Failed | Lost:
        if self._load_request is None:
            raise InternalError(Code.ORDER, "a candidate was asked before its library was named")
        outcome = worker.request(worker.bring(self._load_request), timeout_s=LOAD_TIMEOUT_S)
        match outcome:
            case Lost():
                return outcome
            case Answer(reply=p.CandidateLoaded() as loaded):
                return loaded
            case Answer(reply=p.Failed() as failed):
                return failed
            case Answer():
                return p.Failed(code=Code.PROTOCOL_VIOLATION, message="the worker answered something else")


class OracleSeat(OracleClient):
    """The oracle of a run. Its failures are the card's or the machine's, so they are raised."""

    def __init__(self, nursery: Nursery, hello: p.Hello) -> None:
        self._hello = hello
        self._worker = nursery.start("oracle")

    def greet(self) -> p.Ready:
        """Wait until torch is imported and the device opened; raises ``ConfigurationError``."""
        reply = self.ask(self._hello, timeout_s=WORKER_START_TIMEOUT_S).reply
        if isinstance(reply, p.Ready):
            return reply
        raise ConfigurationError(Code.DEVICE_UNUSABLE, text_of(reply))

    def ask(
        self,
        message: p.Request,
        payloads: Sequence[Payload] = (),
        *,
        timeout_s: float,
        max_reply_bytes: int = p.DEFAULT_MAX_FRAME_BYTES,
    ) -> Answer:
        """Ask the oracle; raises ``InternalError`` when it is lost. ``Failed`` is a reply like others."""
        outcome = self._worker.request(
            message, payloads, timeout_s=timeout_s, max_reply_bytes=max_reply_bytes
        )
        if isinstance(outcome, Lost):
            raise InternalError(
                Code.ORACLE_LOST,
                f"the oracle was lost while it answered {type(message).__name__} "
                f"({outcome.code}: {outcome.message}); last output: {outcome.output[-600:]!r}",
            )
        return outcome

    def close(self) -> None:
        """End the oracle."""
        self._worker.close()


def _as_lost(failed: p.Failed) -> Lost:
    return Lost(code=failed.code, message=failed.message, output=failed.traceback)
