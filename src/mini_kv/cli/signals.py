"""Ctrl-C, SIGTERM, a closed terminal: the first one stops the run, later ones do not disturb its archive."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = b"mini-kv: stopping; what was found so far is being archived.\n"


@contextmanager
def stop_once() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` in the block at the first SIGINT, SIGTERM or SIGHUP, and only there.

    People press Ctrl-C twice, and a CI runner sends SIGTERM right after it. A SIGHUP that was ignored
    before (``nohup``) stays so. Outside the main thread, where no handler can be set, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def remind(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # the terminal may be gone
            os.write(2, _PATIENCE)  # print may have been interrupted within a write of its own

    def stop(number: int, frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, remind)
        raise KeyboardInterrupt

    outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [each for each in SIGNALS if not (each is signal.SIGHUP and outlives_terminal)]
    before = {each: signal.signal(each, stop) for each in heard}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
