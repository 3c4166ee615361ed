"""``calibrate``: spin kernels of known length, read by the stopwatch that reads every candidate."""

from __future__ import annotations

from mini_kv.calibration.running import CalibrateRequest, calibrate

__all__ = ["CalibrateRequest", "calibrate"]
