"""GPU facts and readings through NVML. Without a driver there are simply none.

GPUs are numbered as CUDA numbers them for this process: ``CUDA_VISIBLE_DEVICES`` is applied, so index
0 here is torch's ``cuda:0`` (with unequal GPUs, under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mini_kv.core.record import Record
from mini_kv.core.records.benchmark import Telemetry
from mini_kv.core.records.environment import GpuFacts

THROTTLE_REASONS = {
    0x0000_0000_0000_0004: "software power cap",
    0x0000_0000_0000_0008: "hardware slowdown",
    0x0000_0000_0000_0010: "sync boost",
    0x0000_0000_0000_0020: "software thermal slowdown",
    0x0000_0000_0000_0040: "hardware thermal slowdown",
    0x0000_0000_0000_0080: "hardware power brake",
}
"""Reasons that make times of equal work differ; idling and clocks set by a person are not among them.

Bits of ``nvmlClocksEventReasons`` in NVML's header.
"""


class GpuReport(Record, frozen=True, kw_only=True):
    """Every GPU this process may use. ``cuda_driver`` is the newest CUDA the driver runs: ``13.0``."""

    driver: str | None
    cuda_driver: str | None
    gpus: tuple[GpuFacts, ...]


NO_GPUS = GpuReport(driver=None, cuda_driver=None, gpus=())


class Nvml:
    """An open NVML session, from :func:`open_nvml`; a reading takes well under a millisecond."""

    def __init__(self, library: Any, environ: Mapping[str, str]) -> None:
        self._nvml = library
        self._handles = self._visible(environ.get("CUDA_VISIBLE_DEVICES"))

    def report(self) -> GpuReport:
        """Return driver versions and the facts of every visible GPU."""
        cuda = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return GpuReport(
            driver=_as_text(self._ask("nvmlSystemGetDriverVersion")),
            cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda is not None else None,
            gpus=tuple(self._facts(index, handle) for index, handle in enumerate(self._handles)),
        )

    def telemetry(self, index: int) -> Telemetry | None:
        """Read clocks, temperature, power, throttle reasons and processes; ``None`` without that GPU."""
        if not 0 <= index < len(self._handles):
            return None
        nvml, handle = self._nvml, self._handles[index]
        power_mw = self._ask("nvmlDeviceGetPowerUsage", handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        return Telemetry(
            index=index,
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=power_mw / 1000 if power_mw is not None else None,
            utilization_percent=int(rates.gpu) if rates is not None else None,
            throttle_reasons=throttle_names(reasons or 0),
            process_ids=tuple(int(one.pid) for one in processes or ()),
        )

    def _facts(self, index: int, handle: Any) -> GpuFacts:
        nvml = self._nvml
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        limit_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        ecc = self._ask("nvmlDeviceGetEccMode", handle)
        return GpuFacts(
            index=index,
            name=_as_text(self._ask("nvmlDeviceGetName", handle)) or "unknown",
            uuid=_as_text(self._ask("nvmlDeviceGetUUID", handle)),
            compute_capability=f"{capability[0]}.{capability[1]}",
            total_memory_bytes=int(memory.total) if memory is not None else 0,
            memory_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM),
            memory_bus_bits=self._ask("nvmlDeviceGetMemoryBusWidth", handle),
            power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
            ecc=bool(ecc[0]) if ecc is not None else None,
        )

    def _visible(self, wanted: str | None) -> tuple[Any, ...]:
        count = self._ask("nvmlDeviceGetCount") or 0
        handles = [self._ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        present = [handle for handle in handles if handle is not None]
        uuids = [_as_text(self._ask("nvmlDeviceGetUUID", handle)) or "" for handle in present]
        return tuple(present[place] for place in visible_places(wanted, uuids))

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return the answer, or ``None`` for what this GPU, driver, container or binding does not tell."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def visible_places(wanted: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Apply ``CUDA_VISIBLE_DEVICES`` to GPUs in bus order, as the CUDA runtime does.

    Entries are numbers or beginnings of UUIDs; the first that names no GPU ends the list, and an empty
    value hides them all.
    """
    if wanted is None:
        return tuple(range(len(uuids)))
    chosen: list[int] = []
    for word in (part.strip() for part in wanted.split(",")):
        if word.isdecimal() and int(word) < len(uuids):
            chosen.append(int(word))
            continue
        named = [
            place for place, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid.startswith(word)
        ]
        if len(named) != 1:
            break
        chosen.append(named[0])
    return tuple(chosen)


def throttle_names(reasons: int) -> tuple[str, ...]:
    """Return the names of the throttle reasons set in NVML's bit mask."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)


@contextmanager
def open_nvml(environ: Mapping[str, str]) -> Iterator[Nvml | None]:
    """Open NVML for the block; yields ``None`` where there is no driver."""
    pynvml = _load_nvml()
    if pynvml is None:
        yield None
        return
    try:
        yield Nvml(pynvml, environ)
    finally:
        pynvml.nvmlShutdown()


def _load_nvml() -> Any:
    """Return the initialised binding, or ``None``; the import alone takes 80 ms, hence only here."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def read_gpus(environ: Mapping[str, str]) -> GpuReport:
    """Return the GPUs this process may use; :data:`NO_GPUS` without a driver."""
    with open_nvml(environ) as nvml:
        return nvml.report() if nvml is not None else NO_GPUS


def _as_text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
