"""How a run went: how long each stage took, and what ended it. A run that fails is archived all the same."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mini_kv.core.codes import Code
from mini_kv.core.errors import ExitCode, MiniKvError
from mini_kv.core.records.results import Finding


@dataclass(kw_only=True)
class RunLog:
    """Filled while stages run. ``fault`` is the exit code of what was raised, ``interrupted`` Ctrl-C."""

    findings: list[Finding] = field(default_factory=list)
    stage_elapsed_s: dict[str, float] = field(default_factory=dict)
    fault: ExitCode | None = None
    interrupted: bool = False
    _inner_s: float = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note how long the block took, whatever became of it; a stage inside counts for itself alone."""
        outer_s, self._inner_s = self._inner_s, 0.0
        started = time.monotonic()
        try:
            yield
        finally:
            took_s = time.monotonic() - started
            self.stage_elapsed_s[name] = round(took_s - self._inner_s, 4)
            self._inner_s = outer_s + took_s

    @contextmanager
    def keeping_faults(self) -> Iterator[None]:
        """Note what the block raises, Ctrl-C included, instead of passing it on."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
            self.findings.append(Finding(code=Code.INTERRUPTED, message="the run was interrupted"))
        except MiniKvError as error:
            self.fault = error.exit_code
            self.findings.append(Finding(code=error.code, message=error.message))
        except Exception as error:  # noqa: BLE001 - archived first, then reported as our own
            self.fault = ExitCode.INTERNAL
            self.findings.append(own_fault(error))


def own_fault(error: Exception) -> Finding:
    """Return an unexpected exception as a finding with its traceback."""
    text = "".join(traceback.format_exception(error))
    return Finding(
        code=Code.INTERNAL,
        message=f"fault of mini-kv itself: {type(error).__name__}: {error}",
        evidence=(text,),
    )
