"""A worker's life: bind to the judge's, import torch, answer requests until the judge is gone."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Protocol

from mini_kv.core.protocol import Done, Failed, Hello, Reply, Request, Rouse, encode_message
from mini_kv.worker.channel import Channel, Payload, sendable

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4

Answer = tuple[Reply, Sequence[Payload]]


class Role(Protocol):
    """What the oracle and the candidate worker have in common."""

    def answer(self, request: Request, payloads: Sequence[bytearray]) -> Answer:
        """Carry out one request."""


def _die_with(parent: int) -> None:
    # A judge that is killed outright must not leave workers behind, spinning kernels among them.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _guard_memory(hello: Hello) -> None:
    """Close the oracle's memory to processes of the same user, the candidate's among them.

    Its ``/proc`` folder then belongs to root, and the CUDA driver, which names its threads there, fails
    for any other user: on a GPU the candidate's own cage must do.
    """
    if hello.device == "cpu" or os.geteuid() == 0:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _role(name: str) -> Role:
    if name == "oracle":
        from mini_kv.worker.oracle import Oracle

        return Oracle()
    from mini_kv.worker.candidate import Candidate

    if name == "contract":
        # opcheck and torch.compile import for seconds: better now, while the compiler runs, than when asked.
        from mini_kv.worker.contract_checks import preload

        preload()
    return Candidate()


def main(role: str, descriptor: int, parent: int) -> None:
    """Serve requests on ``descriptor``; ends with exit code 0 when the judge is gone.

    An ``importer`` serves none: it imports what the contract worker does, and ends.
    """
    _die_with(parent)
    if role == "importer":
        # For what it leaves: bytecode, which the caged workers of later runs find.
        from mini_kv.worker.contract_checks import preload

        preload()
        return
    channel = Channel(descriptor)
    # Imports make hundreds of thousands of objects and next to no garbage: looking for it on the way takes
    # an eighth of their time, and afterwards every collection would walk what they left for 80 ms.
    gc.disable()
    worker = _role(role)
    gc.collect()
    gc.freeze()
    gc.enable()
    while True:
        try:
            request, payloads = channel.receive()
        except EOFError:
            return
        if isinstance(request, Rouse):
            channel.send(encode_message(Done()), ())
            continue
        if role == "oracle" and isinstance(request, Hello):
            _guard_memory(request)
        try:
            reply, answer_payloads = worker.answer(request, payloads)
            header = encode_message(reply)
        # The one broad except of this process. A card's reference that calls sys.exit is met here too.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
            header, answer_payloads = encode_message(_failure(error)), ()
        channel.send(header, answer_payloads)


def _failure(error: BaseException) -> Failed:
    text = "".join(traceback.format_exception(error))
    return Failed(
        code=type(error).__name__,
        message=sendable(str(error)[:4000] or repr(error)),
        traceback=sendable(text[-16000:]),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
