"""Whether Python finds the bytecode of what the contract worker imports, or has to compile it in every run.

Some installers leave bytecode out, and Python then writes it at the first import. A caged worker may not
write there, so it would compile two thousand modules anew each time: 3.4 s instead of 0.7 s on two cores.
One trusted process that imports the same, once, leaves it next to the sources, where Python always puts it.
"""

from __future__ import annotations

import importlib.util
import os
import struct
from pathlib import Path

# Some of the modules behind torch.compile and opcheck, from the first that is imported to the last: a process
# that was ended on the way has left the bytecode of a part.
SAMPLES = (
    "_dynamo/symbolic_convert.py",
    "_dynamo/output_graph.py",
    "_dynamo/variables/builder.py",
    "_functorch/aot_autograd.py",
    "_functorch/partitioners.py",
    "_meta_registrations.py",
    "testing/_internal/optests/generate_tests.py",
)
# PEP 552: magic, flags, the source's modification time and size.
_HEADER = struct.Struct("<4sIII")


def torch_folder() -> Path | None:
    """Return the folder of the torch that workers import, which is not imported here."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def lacks_bytecode(torch: Path | None) -> bool:
    """Say whether imports behind torch.compile lack bytecode where a trusted process could leave it."""
    return torch is not None and any(_lacks(torch / sample) for sample in SAMPLES)


def _lacks(source: Path) -> bool:
    cached = Path(importlib.util.cache_from_source(str(source)))
    try:
        facts = source.stat()
    except OSError:
        return False  # another torch, that has no such module: nothing is known of its imports
    try:
        with cached.open("rb") as file:
            magic, flags, mtime, size = _HEADER.unpack(file.read(_HEADER.size))
    except (OSError, struct.error):
        valid = False
    else:
        dated = flags == 0 and (mtime, size) == (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
        valid = magic == importlib.util.MAGIC_NUMBER and (dated or flags != 0)
    folder = cached.parent if cached.parent.is_dir() else source.parent
    return not valid and os.access(folder, os.W_OK)


__all__ = ["SAMPLES", "lacks_bytecode", "torch_folder"]
