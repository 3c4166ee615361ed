"""What this machine can shut a candidate in with, found by doing it once and by trying to get out.

The judge runs its own code in the same cage that candidates get, next to a secret file, listening
sockets and its own process id as bait. What was refused to be entered, and what turned out not to
hold, is left out of the level and told with the reason.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mini_kv.core.records.card import DeviceKind
from mini_kv.core.records.isolation import Isolation, IsolationLevel, MissingFeature, level_of
from mini_kv.core.time_limits import SANDBOX_PROBE_TIMEOUT_S
from mini_kv.system.sandbox import landlock, trials
from mini_kv.system.sandbox.policy import Ground, survey, user_for, wanted_features, worker_policy
from mini_kv.system.sandbox.worker_folders import make_rooms
from mini_kv.system.scratch import scratch_folder, scratch_place

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
_PROBE = BOOT + "from mini_kv.system.sandbox.trial_run import main; main()"
# Features of the launch itself, which need no trial; and those that are part of another.
_ALWAYS = ("own_process", "scrubbed_environment")
_PART_OF = {"tcp_rules": "file_access", "scoped_signals": "file_access"}
_NEED_FILES = ("file_access", "mount_namespace", "own_user", "own_proc", *_PART_OF)


def probe_isolation(
    device: DeviceKind,
    import_path: Sequence[str] | None = None,
    hidden: Sequence[Path] = (),
    *,
    highest: IsolationLevel = IsolationLevel.ISOLATED,
) -> Isolation:
    """Return the isolation that a candidate on ``device`` gets here; takes about 0.1 s, changes nothing.

    ``import_path`` is what workers import from (``sys.path`` unless given), ``hidden`` folders that must
    stay unseen, ``highest`` the level above which nothing is used. Never raises for a machine that offers
    less.
    """
    ground = survey(device, sys.path if import_path is None else import_path, hidden)
    return probe_ground(ground, highest)


def probe_ground(ground: Ground, highest: IsolationLevel = IsolationLevel.ISOLATED) -> Isolation:
    """As :func:`probe_isolation`, for a machine that was surveyed."""
    abi = landlock.abi()
    wanted = wanted_features(abi, highest)
    declined = set(wanted_features(abi)) - set(wanted) - {"user_namespace"}
    reasons = dict.fromkeys(declined, f"nothing above level '{highest.value}' was asked for")
    try:
        found = judge_answer(_run(ground, wanted), wanted)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        fault = scratch_place()[1]
        reason = f"the probe did not answer: {error}" + (f" ({fault})" if fault is not None else "")
        reasons |= {name: reason for name in wanted if name not in _ALWAYS}
        return _isolation(set(_ALWAYS), reasons)
    told = {one.name: one.reason for one in found.missing}
    return _isolation(set(found.features), told | reasons)


def judge_answer(answer: dict[str, Any], wanted: Sequence[str]) -> Isolation:
    """Return what a probe's answer shows, the trials weighed against what it says it entered."""
    reached = set(answer["reached"]) & set(wanted)
    reasons: dict[str, str] = dict(answer["reasons"])
    if answer["unreadable"] is not None:
        for name in reached.intersection(_NEED_FILES):
            reasons[name] = f"{answer['unreadable']} cannot be read inside"
    for trial, escape in answer["trials"].items():
        for name in reached.intersection(trials.GUARDS[trial][1]) if escape else ():
            reasons.setdefault(name, f"{trial} was not refused: {escape}")
    for part, whole in _PART_OF.items():
        if whole in reasons:
            reasons.setdefault(part, reasons[whole])
    reached -= set(reasons)
    if os.geteuid() != 0 and "own_user" not in wanted:
        reasons["own_user"] = "mini-kv does not run as root, so that candidates share its user id"
    if "file_access" not in reached and landlock.abi() == 0:
        reasons["file_access"] = "the kernel has no Landlock"
    return _isolation(reached, reasons)


def _isolation(reached: set[str], reasons: dict[str, str]) -> Isolation:
    missing = tuple(
        MissingFeature(name=name, reason=reason)
        for name, reason in sorted(reasons.items())
        if name not in reached
    )
    return Isolation(level=level_of(reached), features=tuple(sorted(reached)), missing=missing)


def _run(ground: Ground, wanted: Sequence[str]) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("probe-"))
        user = user_for(0, wanted)
        scratch, inbox = make_rooms(folder, user)
        targets = stack.enter_context(bait(folder / "outside", inbox))
        policy = worker_policy(ground, wanted, scratch=scratch, inbox=inbox, user=user)
        order = {"policy": policy, "targets": targets, "parent": os.getpid()}
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROBE, json.dumps(ground.import_path), json.dumps(order)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=scratch,
            env={"PATH": os.defpath, "LANG": "C"},
            timeout=SANDBOX_PROBE_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(f"exit code {ended.returncode}: {said[-1][-500:] if said else 'it said nothing'}")
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


@contextmanager
def bait(outside: Path, inbox: Path) -> Iterator[trials.Targets]:
    """Lay out what a candidate must not reach: a readable secret, sockets that listen, a process id."""
    outside.mkdir()
    secret, given = outside / "secret", inbox / "given"
    for path in (secret, given):
        path.write_bytes(b"bait")
        path.chmod(0o644)
    name = f"\0mini-kv-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        tcp.bind(("127.0.0.1", 0))
        abstract.bind(name)
        unix.bind(str(outside / "unix"))
        for one in (tcp, abstract, unix):
            one.listen()
        os.chmod(outside / "unix", 0o777)
        yield {
            "judge": os.getpid(),
            "secret": str(secret),
            "outside": str(outside),
            "given": str(given),
            "tcp_port": tcp.getsockname()[1],
            "abstract": name,
            "unix": str(outside / "unix"),
        }
