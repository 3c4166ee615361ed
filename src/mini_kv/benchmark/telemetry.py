"""Looks at the GPU around every case: a throttled or shared device makes a time unstable, with a reason."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mini_kv.core.results import BenchmarkCase, Finding, Telemetry


def no_readings() -> Telemetry | None:
    """Return no reading: a device that tells nothing (the CPU)."""
    return None


class Watch:
    """Collects readings and turns what they say into findings of the cases."""

    def __init__(self, read: Callable[[], Telemetry | None], own: Callable[[], frozenset[int]]) -> None:
        self._read = read
        self._own = own
        self._readings: list[Telemetry] = []
        self._strangers: set[int] = set()

    @property
    def readings(self) -> tuple[Telemetry, ...]:
        """All readings so far, in order."""
        return tuple(self._readings)

    def look(self) -> None:
        """Take one reading."""
        reading = self._read()
        if reading is not None:
            self._readings.append(reading)
            self._strangers |= set(reading.process_ids) - self._own()

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
            found.append(Finding(code="THROTTLED", message=message))
        if self._strangers:
            shown = ", ".join(map(str, sorted(self._strangers)))
            message = f"another process used the GPU while it was timed: {shown}"
            found.append(Finding(code="GPU_SHARED", message=message, evidence=(shown,)))
        return tuple(found)
