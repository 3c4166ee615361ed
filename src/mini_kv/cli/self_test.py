"""``mini-kv doctor --self-test``: candidates whose verdicts are known, verified on this very machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_kv.core.codes import Code
from mini_kv.core.records.archived_files import ATTEMPT_FILE
from mini_kv.core.time_limits import SELF_TEST_TIMEOUT_S
from mini_kv.system.commands import Command, run_all
from mini_kv.system.scratch import scratch_folder

_SHIPPED = Path(__file__).resolve().parent.parent / "self_test"
_AT_ONCE = 2


@dataclass(frozen=True, kw_only=True)
class Known:
    """One shipped candidate and what it must get: the exit code and the code on one axis."""

    name: str
    what: str
    exit_code: int
    axis: str
    code: str | None


KNOWN = (
    Known(name="sequential_sum", what="an honest one", exit_code=0, axis="numerics", code=None),
    Known(name="zeros", what="wrong values", exit_code=4, axis="numerics", code=Code.WRONG_VALUES),
    Known(
        name="unwritten_tail", what="unwritten memory", exit_code=4, axis="numerics", code=Code.WRONG_VALUES
    ),
    Known(
        name="zeroes_its_input", what="a mutated input", exit_code=4, axis="memory", code=Code.INPUT_MUTATED
    ),
    Known(name="exits_when_opened", what="exit code 0", exit_code=3, axis="build", code=Code.LOAD_EXITED),
    # Right where it gets a socket: accepted, it shows that candidates are not shut off here.
    Known(name="opens_a_socket", what="the network", exit_code=4, axis="numerics", code=Code.WRONG_VALUES),
)


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What became of one of them, in words; ``level`` is the isolation that its run reached."""

    known: Known
    fault: str | None
    level: str


def self_test() -> tuple[Tested, ...]:
    """Verify all of :data:`KNOWN` in a project of their own that is deleted afterwards (half a minute)."""
    with scratch_folder("self-test-") as folder:
        project = folder / "project"
        shutil.copytree(_SHIPPED, project)
        (project / "mini_kv.toml").touch()
        commands = [
            Command(argv=_verify(project, known.name), cwd=str(project), environ=dict(os.environ))
            for known in KNOWN
        ]
        finished = run_all(commands, timeout_s=SELF_TEST_TIMEOUT_S, at_once=_AT_ONCE)
        return tuple(
            _told(known, ended.returncode, project / "archive" / known.name)
            for known, ended in zip(KNOWN, finished, strict=True)
        )


def _verify(project: Path, name: str) -> tuple[str, ...]:
    archive = str(project / "archive" / name)
    options = ("--task", "card.yaml", "--candidate", name, "--device", "cpu", "--skip-benchmark")
    return (sys.executable, "-m", "mini_kv", "verify", *options, "--artifacts", archive)


def _told(known: Known, exit_code: int | None, archive: Path) -> Tested:
    attempts = list(archive.glob(f"*/*/{ATTEMPT_FILE.name}"))
    if len(attempts) != 1:
        return Tested(known=known, fault=f"no verdict: exit code {exit_code}", level="")
    axes: dict[str, dict[str, Any]] = {
        axis["name"]: axis for axis in json.loads(attempts[0].read_text("utf-8"))["axes"]
    }
    level = str(axes["isolation"]["message"]).partition(":")[0]
    got = axes[known.axis]["code"]
    fault = None
    if exit_code != known.exit_code or got != known.code:
        fault = f"exit code {exit_code} with {got}, not {known.exit_code} with {known.code}"
    return Tested(known=known, fault=fault, level=level)


def render(results: tuple[Tested, ...]) -> str:
    """Return one line a candidate and the level at which verdicts can be trusted here."""
    rows = [
        f"{'ok' if one.fault is None else 'WRONG':<7}  {one.known.name:<18}  {one.known.what}"
        + (f" - {one.fault}" if one.fault else "")
        for one in results
    ]
    level = next((one.level for one in results if one.level), "none")
    if all(one.fault is None for one in results):
        last = f"Verdicts on the CPU can be trusted here at isolation level: {level}."
    else:
        last = f"Verdicts cannot be trusted here yet (isolation level: {level}); see the lines marked WRONG."
    return "\n".join([*rows, "", last])
