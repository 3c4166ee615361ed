"""The probe's process: enter the cage as far as it goes, try to get out, print what happened as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from mini_kv.system.sandbox import trials
from mini_kv.system.sandbox.entry import try_to_enter


def main() -> None:
    """``argv[1]`` is JSON with ``policy``, ``targets`` and ``parent``; the answer goes to stdout."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    reached, reasons = try_to_enter(order["policy"], order["parent"], ())
    unreadable = next((path for path in order["policy"]["must_read"] if not _opens(path)), None)
    answer = {
        "reached": sorted(reached),
        "reasons": reasons,
        "unreadable": unreadable,
        "trials": trials.run_all(order["targets"]),
    }
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True
