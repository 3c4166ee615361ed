"""A stand-in for Nsight Compute: records how it was called and behaves as it is told to.

``make_ncu(folder, behaviour)`` writes the program. Behaviours are named after what goes wrong; ``run`` also
runs the real target, ``good`` only pretends to.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

_PROGRAM = """#!{python} -I
import json, os, pathlib, subprocess, sys, time

behaviour, page = {behaviour!r}, pathlib.Path({page!r})
here, argv = pathlib.Path({folder!r}), sys.argv[1:]

if argv == ["--version"]:
    if behaviour == "no version":
        sys.exit("unknown option --version")
    print("NVIDIA (R) Nsight Compute Command Line Profiler")
    print("Copyright (c) 2018-2025 NVIDIA Corporation")
    print("Version 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit(0)

with open(here / "calls.jsonl", "a") as stream:
    stream.write(json.dumps({{"argv": argv, "environ": dict(os.environ)}}) + "\\n")

if "--import" in argv:
    if behaviour == "import fails":
        sys.exit("==ERROR== Failed to load report file")
    if behaviour == "import hangs":
        time.sleep(60)
    sys.stdout.write("==WARNING== a remark\\n" if behaviour == "remark" else "")
    sys.stdout.write(page.read_text())
    sys.exit(0)

report = pathlib.Path(argv[argv.index("--export") + 1]).with_suffix(".ncu-rep")
log = pathlib.Path(argv[argv.index("--log-file") + 1])
target = argv[argv.index("all", argv.index("--target-processes")) + 1 :]
outputs = pathlib.Path(json.loads(json.loads(target[-1])["plan"])["output_folder"])


def say(*lines, code=0):
    log.write_text("".join(line + "\\n" for line in lines))
    sys.exit(code)


def finish_target():
    (outputs / "output_0.bin").write_bytes(b"1234")
    (outputs / "done.json").write_text("{{}}")


if behaviour == "broken":
    say("==ERROR== The driver does not support this profiler.", code=1)
if behaviour == "hangs":
    time.sleep(60)
if behaviour == "target fails":
    sys.stderr.write("Traceback (most recent call last):\\nRuntimeError: no kernel image\\n")
    say("==PROF== Connected to process 1", "==ERROR== The application returned an error code (1).", code=1)
if behaviour == "target lies":
    print("==ERROR== ERR_NVGPUCTRPERM")
    say("==PROF== Connected to process 1", "==ERROR== The application returned an error code (1).", code=1)
if behaviour == "run":
    ended = subprocess.run(target)
    if ended.returncode:
        say("==ERROR== The application returned an error code (%d)." % ended.returncode, code=1)
else:
    finish_target()
if behaviour == "no permission":
    say("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
        "Counters on the target device 0.", code=1)
if behaviour == "no permission, no log":
    sys.stderr.write("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\\n")
    sys.exit(1)
if behaviour == "no kernel":
    say("==WARNING== No kernels were profiled.", "Available Kernels:", "1. vectorized_elementwise_kernel")
if behaviour == "unknown metric" or (behaviour == "unknown extra metric" and "--metrics" in argv):
    say("==ERROR== Failed to find metric dram__bytes_read.sum", code=1)
if behaviour != "no report":
    report.write_bytes(b"NVR\\0 a report")
say("==PROF== Connected to process 1", '==PROF== Profiling "kernel" - 0: 0%....100% - 19 passes',
    "==PROF== Report: " + str(report), code=9 if behaviour == "bad exit" else 0)
"""


def make_ncu(folder: Path, behaviour: str, page: Path) -> str:
    """Write the program into ``folder``; return its path. ``page`` is what an import prints."""
    path = folder / "ncu"
    path.write_text(
        _PROGRAM.format(python=sys.executable, behaviour=behaviour, page=str(page), folder=str(folder))
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def calls(folder: Path) -> list[dict[str, object]]:
    """Return how the program was called, oldest first, version questions left out."""
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
