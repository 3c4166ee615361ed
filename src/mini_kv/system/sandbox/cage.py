"""One machine's cage, ready to be given to workers and compilers: what was surveyed and what was reached."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mini_kv.core.codes import Code
from mini_kv.core.errors import ConfigurationError
from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.isolation import Isolation, IsolationLevel
from mini_kv.system.sandbox.policy import (
    Ground,
    Policy,
    compiler_policy,
    survey,
    user_for,
    worker_policy,
)
from mini_kv.system.sandbox.probe import BOOT, probe_ground
from mini_kv.system.sandbox.worker_folders import make_rooms
from mini_kv.system.toolchain import Toolchain

_LAUNCH = BOOT + "from mini_kv.system.sandbox.launch import main; main()"


@dataclass(frozen=True, kw_only=True)
class Cage:
    """What every candidate worker of a run enters: exactly the features that the probe has reached."""

    ground: Ground
    isolation: Isolation

    @property
    def import_path(self) -> tuple[str, ...]:
        """What a caged worker imports from: nothing of the project."""
        return self.ground.import_path

    def rooms(self, folder: Path, number: int) -> tuple[Path, Path, Policy]:
        """Make a worker's rooms in ``folder``; return its scratch folder, its inbox and its policy."""
        features = self.isolation.features
        user = user_for(number, features)
        scratch, inbox = make_rooms(folder, user)
        return scratch, inbox, worker_policy(self.ground, features, scratch=scratch, inbox=inbox, user=user)

    def launcher(self, toolchain: Toolchain) -> tuple[str, ...]:
        """Return what to put before a compiler's command line; empty where nothing can be had."""
        if "file_access" not in self.isolation.features:
            return ()
        policy = compiler_policy(self.isolation.features, _tool_folders(toolchain))
        path = [entry for entry in self.ground.import_path if "site-packages" not in entry]
        return (sys.executable, "-I", "-S", "-c", _LAUNCH, json.dumps(path), json.dumps(policy))


def _tool_folders(toolchain: Toolchain) -> tuple[str, ...]:
    """Return the folders that compilers and linker read as well as the system's own."""
    folders: list[str] = []
    for compiler in (toolchain.cxx, toolchain.nvcc):
        if compiler is not None:
            folders += compiler.include_folders
            folders += compiler.library_folders
            folders += [folder for program in compiler.programs for folder in _homes(program.path)]
            folders += [compiler.root] if compiler.root else []
    if toolchain.torch is not None:
        folders += [*toolchain.torch.include_folders, toolchain.torch.library_folder]
    if toolchain.cuda is not None:
        folders += toolchain.cuda.include_folders
        runtime = toolchain.cuda.runtime_library
        folders += [os.path.dirname(runtime)] if runtime else []
    return (*folders, toolchain.python_include) if toolchain.python_include else tuple(folders)


def _homes(program: str) -> tuple[str, ...]:
    """Return a tool's folder, and the whole installation it belongs to where that is one of its own.

    A compiler below ``/opt/gcc/bin`` has its libraries and start files below ``/opt/gcc``.
    """
    folder = os.path.dirname(program)
    prefix = os.path.dirname(folder)
    own = os.path.basename(folder) == "bin" and prefix not in ("/", "/usr", "/usr/local", "")
    return (folder, prefix) if own else (folder,)


def build_cage(device: DeviceKind, import_path: Sequence[str], hidden: Sequence[Path]) -> Cage:
    """Survey the machine and try it; never raises for one that offers less. Takes about 0.1 s.

    ``MINI_KV_ISOLATION`` names the highest level to use, for a machine on which a driver or a tool does
    not work inside. Raises ``ConfigurationError`` when it names no level.
    """
    ground = survey(device, import_path, hidden)
    named = os.environ.get("MINI_KV_ISOLATION", IsolationLevel.ISOLATED.value)
    try:
        highest = IsolationLevel(named)
    except ValueError as error:
        levels = ", ".join(level.value for level in IsolationLevel)
        message = f"MINI_KV_ISOLATION names no level: '{named}' is none of {levels}."
        raise ConfigurationError(Code.UNKNOWN_ISOLATION, message) from error
    return Cage(ground=ground, isolation=probe_ground(ground, highest))
