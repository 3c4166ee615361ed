"""What every command that runs candidates needs: its inputs, its processes, a build, a held device."""

from __future__ import annotations

from mini_kv.run.crew import Crew, start_crew
from mini_kv.run.run_inputs import RunInputs, read_inputs
from mini_kv.run.run_log import RunLog
from mini_kv.run.steps import build_candidate, build_files, device_state

__all__ = [
    "Crew",
    "RunInputs",
    "RunLog",
    "build_candidate",
    "build_files",
    "device_state",
    "read_inputs",
    "start_crew",
]
