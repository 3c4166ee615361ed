"""The timer on a GPU: spins of known length are read truly.

That a spoiled measurement is flagged is seen in research/tests/test_controls_gpu.py.
"""

from __future__ import annotations

import pytest

from mini_kv.calibration import CalibrateRequest, calibrate
from mini_kv.calibration.spin_measurement import MIN_PROCESSES
from mini_kv.core.progress import silent

pytestmark = pytest.mark.gpu


def test_spins_of_known_length_are_read_truly() -> None:
    # The demands are on medians over at least MIN_PROCESSES processes: two are read up to 2 % apart at 2 us.
    found = calibrate(CalibrateRequest(device="cuda", processes=MIN_PROCESSES), silent)
    assert [f"{bar.demand}: {bar.found}" for bar in found.bars if not bar.passed] == []
