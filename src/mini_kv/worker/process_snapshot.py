"""Describes this process: torch's flags, the dispatcher, the environment, threads, files, signals.

The candidate shares the process and could forge the description; it shows what careless code leaves
behind, and what a cheat did not bother to hide.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import locale
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from mini_kv.core.records.process_state import ProcessState

_FLAGS: dict[str, Callable[[], object]] = {
    "default_dtype": torch.get_default_dtype,
    "default_device": torch.get_default_device,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "tf32_in_matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
    "tf32_in_cudnn": lambda: torch.backends.cudnn.allow_tf32,
    "cudnn_enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "grad_mode": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast_cpu": lambda: torch.is_autocast_enabled("cpu"),
    "autocast_cuda": lambda: torch.is_autocast_enabled("cuda"),
    "threads": torch.get_num_threads,
    "interop_threads": torch.get_num_interop_threads,
    "initial_seed": torch.initial_seed,
    "anomaly_detection": torch.is_anomaly_enabled,
    "function_modes": torch._C._len_torch_function_stack,
    "dispatch_modes": torch._C._len_torch_dispatch_stack,
    "saved_tensor_hooks": lambda: torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
}
_LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
_STANDARD_STREAMS = ("0", "1", "2")
_SIGNALS = ("SigBlk", "SigIgn", "SigCgt")
_STATUS_LINES = (*_SIGNALS, "Umask")
# Signals 32 and 33 (bits 31 and 32): glibc's SIGCANCEL and SIGSETXID, which it keeps to itself.
_LIBRARY_SIGNALS = 0b11 << 31
_PLACE = "registered at "


def describe_process() -> ProcessState:
    """Return the facts of this moment, but those of the dispatcher that :func:`foreign_kernels` gives."""
    facts: dict[str, str] = {}
    for part in (
        _flags(),
        {"torch.dispatcher_fallbacks": _fallbacks()},
        _interpreter(),
        _arithmetic(),
        _environment(),
        _threads(),
        _files(),
        _status(),
        _scheduling(),
    ):
        facts.update(part)
    facts["process.folder"] = os.getcwd()
    return ProcessState(facts=facts)


def foreign_kernels(own: str) -> dict[str, str]:
    """Return kernels and operators that neither PyTorch registered nor, in namespace ``own``, the candidate.

    Who registered a kernel stands in the dispatcher's own record, by source file.
    """
    roots = _roots()
    facts: dict[str, str] = {}
    if not roots:
        return facts
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(f"{own}::"):
            continue
        for line in torch._C._dispatch_dump(name).splitlines():
            key, _, place = line.partition(f": {_PLACE}")
            if place and not place.startswith(roots):
                where = "" if key == "debug" else f"[{key}]"  # the operator's own place, else a kernel's
                facts[f"dispatcher.{name}{where}"] = place.partition(" :: ")[0]
    return facts


def _roots() -> tuple[str, ...]:
    # Where this torch was built, by the record of an operator that every torch has, and where it lies.
    text = torch._C._dispatch_dump("aten::add.Tensor")
    built = text.partition(f"debug: {_PLACE}")[2].partition("/build/aten/")
    package = str(Path(torch.__file__).parent)
    return (f"{built[0]}/", f"{package}/") if built[1] else ()


def _flags() -> dict[str, str]:
    return {f"torch.{name}": _read(read) for name, read in _FLAGS.items()}


def _read(read: Callable[[], object]) -> str:
    # Some of torch's getters refuse after an older and a newer setter were mixed; that is a fact as well.
    try:
        return str(read())
    except RuntimeError as error:
        return f"refused: {error}"[:80]


def _fallbacks() -> str:
    keys = torch._C.DispatchKey.__members__.items()
    return " ".join(sorted(name for name, key in keys if torch._C._dispatch_has_backend_fallback(key)))


def _interpreter() -> dict[str, str]:
    # What slows or steers every later line of Python in the process, whoever wrote it.
    return {
        "python.trace_function": str(sys.gettrace() is not None),
        "python.profile_function": str(sys.getprofile() is not None),
        "python.garbage_collection": str(gc.isenabled()),
        "python.switch_interval_s": str(sys.getswitchinterval()),
        "python.recursion_limit": str(sys.getrecursionlimit()),
        "process.locale": locale.setlocale(locale.LC_ALL),
    }


def _scheduling() -> dict[str, str]:
    limits = {
        f"process.limit.{name}": str(resource.getrlimit(getattr(resource, f"RLIMIT_{name}")))
        for name in _LIMITS
    }
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    processors = " ".join(map(str, sorted(os.sched_getaffinity(0))))
    return limits | {
        "process.processors": processors,
        "process.timers": str([signal.getitimer(timer) != (0.0, 0.0) for timer in timers]),
        "process.niceness": str(os.getpriority(os.PRIO_PROCESS, 0)),
    }


def _arithmetic() -> dict[str, str]:
    smallest = float.fromhex("0x1p-1074")
    library = ctypes.CDLL(None)
    traps = getattr(library, "fegetexcept", None)  # the C library's own extension
    return {
        "arithmetic.rounding_mode": str(library.fegetround()),
        "arithmetic.traps": "unknown" if traps is None else str(traps()),
        "arithmetic.subnormals": "kept" if smallest * 1.0 != 0.0 else "flushed to zero",
    }


def _environment() -> dict[str, str]:
    # The C library's list, which native code changes; Python's own copy is from the start.
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    facts: dict[str, str] = {}
    for position in range(10_000):
        entry = pointer[position]
        if entry is None:
            break
        name, _, value = entry.partition(b"=")
        # Values may be long or private; that one differs is all that is asked.
        facts[f"environment.{name.decode('utf-8', 'replace')}"] = hashlib.sha256(value).hexdigest()[:16]
    return facts


def _threads() -> dict[str, str]:
    names = Counter(_texts("/proc/self/task", "comm"))
    return {f"threads.{name}": str(count) for name, count in names.items()}


def _texts(folder: str, file: str) -> Iterator[str]:
    for entry in os.listdir(folder):
        try:
            yield Path(folder, entry, file).read_text("utf-8", "replace").strip()
        except OSError:  # a thread that has just ended
            continue


def _files() -> dict[str, str]:
    facts: dict[str, str] = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            kind = "process.standard_stream" if number in _STANDARD_STREAMS else "descriptors"
            facts[f"{kind}.{number}"] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor of this very listing
            continue
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and ".so" in path[0]:
            facts[f"libraries.{path[0]}"] = "mapped"
    return facts


def _status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text("utf-8", "replace").splitlines()
    pairs = [line.partition(":") for line in lines]
    found = {name: value.strip() for name, _, value in pairs if name in _STATUS_LINES}
    return {
        f"process.{name}": _own_signals(value) if name in _SIGNALS else value for name, value in found.items()
    }


def _own_signals(mask: str) -> str:
    # The C library catches two signals of its own as soon as a process starts its first thread.
    return f"{int(mask, 16) & ~_LIBRARY_SIGNALS:016x}"
