"""``calibrate``: spin kernels of known length, read by the stopwatch that reads every candidate."""

from __future__ import annotations

from mini_kv.calibration.spin_measurement import CalibrateRequest, calibrate

__all__ = ["CalibrateRequest", "calibrate"]
