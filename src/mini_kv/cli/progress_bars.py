"""Progress on stderr: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from mini_kv.core.printable import printable
from mini_kv.core.progress import Event, Progress

# A log of a long run gets a line of each stage that often at most.
QUIET_S = 5.0


@contextmanager
def display(stream: TextIO, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Yield a progress callback that writes to ``stream``; safe to call from several threads.

    ``clock`` returns seconds.
    """
    if stream.isatty():
        with _bars(stream) as show:
            yield show
    else:
        yield _lines(stream, clock)


def _lines(stream: TextIO, clock: Callable[[], float]) -> Progress:
    shown: set[tuple[str, bool]] = set()
    told_s: dict[str, float] = {}

    def show(event: Event) -> None:
        if event.warning:
            stream.write(_warning(event))
            stream.flush()
            return
        finished = event.done >= event.total
        now_s = clock()
        # One line when a stage begins and one when it ends: a log is read later, not watched. Only a stage
        # that takes long says in between how far it is.
        if (event.stage, finished) not in shown:
            shown.add((event.stage, finished))
            state = f"done ({printable(event.detail)})" if finished else "..."
        elif not finished and event.done and now_s - told_s[event.stage] >= QUIET_S:
            state = f"{event.done} of {event.total} done, now {printable(event.detail)}"
        else:
            return
        told_s[event.stage] = now_s
        # One write: two threads report, and a line must not end up inside another.
        stream.write(f"{event.stage}: {state}\n")
        stream.flush()

    return show


def _warning(event: Event) -> str:
    return f"mini-kv: warning: {printable(event.detail)}\n"


@contextmanager
def _bars(stream: TextIO) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with RichProgress(*columns, console=Console(file=stream), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(event: Event) -> None:
            if event.warning:
                # Above the bars, where it stays when they go; a sentence, and no markup.
                bars.console.print(_warning(event), end="", markup=False, highlight=False, soft_wrap=True)
                return
            if event.stage not in tasks:
                tasks[event.stage] = bars.add_task(event.stage, total=event.total, detail="")
            detail = printable(event.detail[:48])
            bars.update(tasks[event.stage], completed=event.done, total=event.total, detail=detail)

        yield show
