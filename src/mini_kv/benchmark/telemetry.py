"""Looks at the GPU around every case: a throttled or shared device makes a time unstable, with a reason."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mini_kv.core.codes import Code
from mini_kv.core.records.benchmark import BenchmarkCase, Telemetry
from mini_kv.core.records.results import Finding
from mini_kv.system.processes import process_name


def no_readings() -> Telemetry | None:
    """Return no reading: a device that tells nothing (the CPU)."""
    return None


class Watch:
    """Collects readings and turns what they say into findings of the cases.

    ``own`` tells which processes are the run's own, ``name`` what a process is called.
    """

    def __init__(
        self,
        read: Callable[[], Telemetry | None],
        own: Callable[[], frozenset[int]],
        name: Callable[[int], str | None] = process_name,
    ) -> None:
        self._read = read
        self._own = own
        self._name = name
        self._readings: list[Telemetry] = []
        self._strangers: dict[int, str] = {}

    @property
    def readings(self) -> tuple[Telemetry, ...]:
        """All readings so far, in order."""
        return tuple(self._readings)

    def look(self) -> None:
        """Take one reading."""
        # Before and after: a process of the run may end, or start, while the driver lists it.
        before = self._own()
        reading = self._read()
        if reading is None:
            return
        self._readings.append(reading)
        for process in set(reading.process_ids) - before - self._own() - self._strangers.keys():
            self._strangers[process] = self._name(process) or "gone or out of sight"

    def judge(self, case: BenchmarkCase) -> BenchmarkCase:
        """Return the case with what the readings hold against it."""
        findings = self.findings()
        if not findings:
            return case
        return msgspec.structs.replace(case, stable=False, findings=(*case.findings, *findings))

    def findings(self) -> tuple[Finding, ...]:
        """Return what the readings hold against every time taken so far."""
        reasons = sorted({reason for reading in self._readings for reason in reading.throttle_reasons})
        found: list[Finding] = []
        if reasons:
            message = f"the GPU was throttled while it was timed: {', '.join(reasons)}"
            found.append(Finding(code=Code.THROTTLED, message=message))
        if self._strangers:
            shown = tuple(f"{process} ({name})" for process, name in sorted(self._strangers.items()))
            message = f"another process used the GPU while it was timed: {', '.join(shown)}"
            found.append(Finding(code=Code.GPU_SHARED, message=message, evidence=shown))
        return tuple(found)
