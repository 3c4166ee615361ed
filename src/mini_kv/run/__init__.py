"""What every command that runs candidates needs: its inputs, its processes, a build, a held device."""

from __future__ import annotations

from mini_kv.run.crew import Crew, start_crew
from mini_kv.run.inputs import RunInputs, read_inputs
from mini_kv.run.log import RunLog
from mini_kv.run.stages import build_candidate, build_files, device_state

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
