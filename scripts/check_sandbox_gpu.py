#!/usr/bin/env python3
"""Show that candidates' cage holds on this machine, and that CUDA, torch and custom operators work in it.

    scripts/check_sandbox_gpu.py [--device cpu]

Enters the cage as a candidate's worker does, multiplies matrices on the device, calls a shipped
operator from its own build, records kernels, captures a graph, then tries everything that is forbidden.
Prints a table; exit code 1 when something that must work does not, or something forbidden does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mini_kv import compiler, task_card
from mini_kv.core import protocol as p
from mini_kv.core.records.card import DeviceKind
from mini_kv.system.gpu import read_gpus
from mini_kv.system.sandbox import probe
from mini_kv.system.sandbox.cage import Cage, build_cage
from mini_kv.system.sandbox.trials import GUARDS
from mini_kv.system.sandbox.worker_folders import hand_over
from mini_kv.system.scratch import scratch_folder
from mini_kv.system.toolchain import find_toolchain
from mini_kv.system.workers import Answer, Nursery

ROOT = Path(__file__).resolve().parent.parent
CANDIDATE = "candidates/vector_add/v0_naive"
TIMEOUT_S = 240.0

BOOT = (
    "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order['path']\n"
    "from mini_kv.system.sandbox.entry import enter\n"
    "from mini_kv.system.sandbox import trials\n"
    "if order['policy']: enter(order['policy'], order['parent'], ())\n"
)
WORK = r"""
import os, threading, time
device, results = order["device"], {}

def check(name, action):
    started = time.perf_counter()
    try:
        said = action()
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    results[name] = [said, round((time.perf_counter() - started) * 1e3, 1)]

def import_torch():
    global torch
    import torch

def open_device():
    if device == "cuda" and not torch.cuda.is_available():
        return "torch.cuda.is_available() is False"
    torch.zeros(1, device=device).add_(1).item()

def multiply():
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, dtype=torch.float64) for _ in "ab")
    close = torch.allclose((a.to(device) @ b.to(device)).cpu(), a @ b)
    return None if close else "the product is wrong"

def custom_operator():
    torch.ops.load_library(order["library"])
    a, b = (torch.randn(4097, device=device) for _ in "ab")
    same = torch.equal(torch.ops.mini_kv_vector_add_v0.add(a, b), a + b)
    return None if same else "the sum is wrong"

def python_file():
    import runpy
    runpy.run_path(order["python"])

def contract_checks():
    x = torch.randn(5, device=device, dtype=torch.float64, requires_grad=True)
    operator = torch.ops.mini_kv_vector_add_v0.add.default
    torch.library.opcheck(operator, (x, x))
    torch.autograd.gradcheck(operator, (x, x))
    torch.compile(lambda a: operator(a, a) + 1, backend="eager", fullgraph=True)(x)

def allocate_much():
    pieces = [torch.empty(1 << 28, dtype=torch.uint8, device=device) for _ in range(4)]
    pieces[-1].fill_(1)
    del pieces

def pinned_memory():
    if device == "cuda":
        torch.randn(1 << 20).pin_memory().to(device, non_blocking=True).sum().item()

def side_stream():
    if device == "cuda":
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.ones(1 << 20, device=device).mul_(2)
        stream.synchronize()

def graph_capture():
    if device == "cuda":
        x = torch.ones(128, device=device)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        torch.cuda.synchronize()
        return None if y.sum().item() == 256 else "the replay is wrong"

def kernel_records():
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA if device == "cuda" else kinds.CPU]) as profile:
        torch.ones(1 << 16, device=device).mul_(2)
        if device == "cuda":
            torch.cuda.synchronize()
    return None if len(profile.events()) else "nothing was recorded"

def scratch_folder():
    with open("written", "w") as stream:
        stream.write("here")

def threads():
    thread = threading.Thread(target=lambda: None, name="named")
    thread.start()
    thread.join()

for work in (import_torch, open_device, multiply, custom_operator, python_file, contract_checks,
             allocate_much, pinned_memory, side_stream, graph_capture, kernel_records,
             scratch_folder, threads):
    check(work.__name__, work)
# The CUDA driver holds descriptors of its own by now.
order["targets"]["descriptors"] = list(range(256))
print("RESULT" + json.dumps({"works": results, "trials": trials.run_all(order["targets"])}), flush=True)
"""


def main() -> int:
    """Run everything and print the table; 0 when all holds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is a GPU")
    wanted = parser.parse_args().device or ("cuda" if read_gpus(os.environ).gpus else "cpu")
    device: DeviceKind = "cuda" if wanted == "cuda" else "cpu"
    cage = build_cage(device, import_path(), (ROOT, ROOT / "artifacts"))
    show_level(cage)
    with scratch_folder("check-") as folder:
        folder.chmod(0o711)
        library, python = built(cage, device)
        failed = show_worker(cage, device, folder, library, python)
        bare = run(None, cage, device, folder / "bare", library, python)
        caged = run(cage, cage, device, folder / "caged", library, python)
    failed += show_work(caged, bare) + show_trials(cage, caged)
    print(f"\n{'all holds' if not failed else f'{failed} FAILED'} on {device}")
    return 1 if failed else 0


def import_path() -> list[str]:
    """Return what workers import from."""
    return list(dict.fromkeys([str(ROOT / "src"), *(entry for entry in sys.path if os.path.exists(entry))]))


def show_level(cage: Cage) -> None:
    """Print what was reached."""
    isolation = cage.isolation
    print(f"level: {isolation.level.value}")
    print(f"reached: {', '.join(isolation.features)}")
    for one in isolation.missing:
        print(f"missing: {one.name}: {one.reason}")


def built(cage: Cage, device: DeviceKind) -> tuple[Path, str]:
    """Build the shipped operator with caged compilers; return its library and its Python file."""
    manifest = task_card.load_manifest(ROOT / CANDIDATE, ROOT)
    toolchain = find_toolchain(ROOT / ".build", os.environ)
    gpus = read_gpus(os.environ).gpus
    arch_list = (gpus[0].compute_capability,) if device == "cuda" else ()
    request = compiler.BuildRequest(
        project_root=str(ROOT),
        candidate_folder=CANDIDATE,
        manifest=manifest.manifest,
        device=device,
        arch_list=arch_list,
        timeout_s=TIMEOUT_S,
    )
    result = compiler.build(request, toolchain, launcher=cage.launcher(toolchain))
    if result.library is None:
        raise SystemExit(f"the operator was not built in the compilers' cage: {result.message}")
    print(f"build: {'cached' if result.cached else f'{result.elapsed_s:.1f} s, in the compilers cage'}")
    sources = compiler.logs_folder(ROOT, result) / "sources"
    return ROOT / result.library, str(sources / str(manifest.manifest.python))


def show_worker(cage: Cage, device: DeviceKind, folder: Path, library: Path, python: str) -> int:
    """Start a real worker in the cage and let it load the operator; return 1 when that fails."""
    from mini_kv.system.files import sha256_file

    nursery = Nursery(folder, import_path(), cage)
    try:
        worker = nursery.start("candidate")
        hello = worker.request(p.Hello(device=device, threads=1), timeout_s=TIMEOUT_S)
        load = p.LoadCandidate(
            library=str(library),
            library_sha256=sha256_file(library),
            python=python,
            dispatcher="mini_kv_vector_add_v0::add",
            schema="add(Tensor a, Tensor b) -> Tensor",
        )
        loaded = worker.request(worker.bring(load), timeout_s=TIMEOUT_S)
    finally:
        nursery.close()
    good = isinstance(loaded, Answer) and isinstance(loaded.reply, p.CandidateLoaded)
    print(f"worker: {'loads the operator' if good else f'FAILED: {hello} {loaded}'}")
    return 0 if good else 1


def run(
    entered: Cage | None, cage: Cage, device: DeviceKind, folder: Path, library: Path, python: str
) -> dict[str, Any]:
    """Do the work and the trials, in the cage or (``entered`` None) outside; return what was said."""
    folder.mkdir()
    scratch, inbox, policy = cage.rooms(folder, 7)
    if entered is None:
        os.chown(scratch, os.getuid(), os.getgid())
    opened, file = hand_over(library, python, inbox)
    with probe.bait(folder / "outside", inbox) as targets, subprocess.Popen(["sleep", "600"]) as victim:
        order = {
            "path": list(cage.import_path),
            "policy": policy if entered is not None else None,
            "parent": os.getpid(),
            "device": device,
            "library": opened,
            "python": file,
            # Outside the cage the trials would succeed: on a process that nobody misses.
            "targets": targets | {"judge": os.getpid() if entered is not None else victim.pid},
        }
        home = {
            name: str(scratch) for name in ("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
        }
        kept = {
            name: os.environ[name]
            for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
            if name in os.environ
        }
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-X", "faulthandler", "-c", BOOT + WORK, json.dumps(order)],
                cwd=scratch,
                env=kept | home | {"USER": "candidate"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        finally:
            victim.kill()
    head, mark, answer = ended.stdout.partition("RESULT")
    if not mark:
        raise SystemExit(f"the process ended with {ended.returncode}: {head} {ended.stderr[-3000:]}")
    said: dict[str, Any] = json.loads(answer)
    return said


def show_work(caged: dict[str, Any], bare: dict[str, Any]) -> int:
    """Print what must work, with its times inside and outside; return how much does not."""
    print(f"\n{'must work':<20} {'inside ms':>10} {'outside ms':>10}")
    failed = 0
    for name, (said, taken_ms) in caged["works"].items():
        failed += said is not None
        outside, outside_ms = bare["works"][name]
        note = "" if said is None else f"  FAILED: {said}" + (" (outside too)" if outside else "")
        print(f"{name:<20} {taken_ms:>10.1f} {outside_ms:>10.1f}{note}")
    return failed


def show_trials(cage: Cage, caged: dict[str, Any]) -> int:
    """Print what must be refused; return how much was not, although a feature that refuses it is there."""
    print(f"\n{'must be refused':<20}")
    failed = 0
    for name, said in caged["trials"].items():
        guarded = set(GUARDS[name][1]) & set(cage.isolation.features)
        failed += said is not None and bool(guarded)
        word = "refused" if said is None else f"FAILED: {said}" if guarded else f"open: {said}"
        print(f"{name:<20} {word}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
