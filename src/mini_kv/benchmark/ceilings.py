"""What the hardware allows: rates from the cost model, and times that cannot be. Pure."""

from __future__ import annotations

from mini_kv.core.records.environment import GpuFacts


def peak_bytes_per_us(gpu: GpuFacts) -> float | None:
    """Return the theoretical memory rate: NVML's memory clock x bus width x 2 (double data rate).

    MHz x bits / 8 x 2 is bytes a microsecond: 3201 MHz x 6016 bit gives 4.81e6.
    """
    if gpu.memory_clock_mhz is None or gpu.memory_bus_bits is None:
        return None
    return gpu.memory_clock_mhz * gpu.memory_bus_bits / 8.0 * 2.0


def floor_bound_us(
    bytes_moved: int | None, output_bytes: int, l2_bytes: int | None, rate_bytes_per_us: float | None
) -> float | None:
    """Return the least time a cold call can take: bytes that must cross the memory bus over its rate.

    What is written may still lie in the L2 when the call ends, so up to one L2 of output is not
    counted: an honest kernel must never look impossible.
    """
    if bytes_moved is None or rate_bytes_per_us is None or not rate_bytes_per_us > 0.0:
        return None
    must_cross = max(bytes_moved - min(output_bytes, l2_bytes or 0), 0)
    return must_cross / rate_bytes_per_us


def per_time(amount: int | None, time_us: float) -> float | None:
    """Return 1e9 units a second (GB/s, GFLOP/s) from an amount and microseconds."""
    if amount is None or not time_us > 0.0:
        return None
    return amount / (time_us * 1e3)


def percent(part: float | None, whole: float | None) -> float | None:
    """Return part / whole in percent, or None where either is unknown."""
    if part is None or whole is None or not whole > 0.0:
        return None
    return 100.0 * part / whole
