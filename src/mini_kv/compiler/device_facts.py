"""Static facts of the kernels in a CUDA build: what ptxas said of them, and their machine code's accesses.

Nothing is run on a GPU. ptxas (``-Xptxas -v``) tells registers, shared memory, stack and spills while it
assembles; ``cuobjdump -sass`` shows the instructions, from which the width of each global access is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from mini_kv.core.records.device_code import AccessWidth, DeviceCode, KernelCode, MemoryInstructions
from mini_kv.core.time_limits import DISASSEMBLY_TIMEOUT_S
from mini_kv.system.commands import Command, Finished, Limits, run_all
from mini_kv.system.toolchain import tool_environ

VERBOSE_ASSEMBLER = ("-Xptxas", "-v")
"""What nvcc needs to be told so that :func:`parse_ptxas` has something to read; costs no time."""

DISASSEMBLY_FILE_BYTES = 256 << 20
MAX_KERNELS = 512

_ENTRY = re.compile(r"Compiling entry function '(?P<symbol>[^']+)' for '(?P<arch>[^']+)'")
_FRAME = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_BARRIERS = re.compile(r"used (?P<count>\d+) barriers")
_SHARED = re.compile(r"(?P<size>\d+)(?:\+\d+)? bytes smem")
_CUMULATIVE = re.compile(r"(?P<size>\d+) bytes cumulative stack size")

_SASS_ARCH = re.compile(r"^\s*code for (?P<arch>sm_\w+)\s*$")
_SASS_FUNCTION = re.compile(r"^\s*Function : (?P<symbol>\S+)\s*$")
_SASS_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z][A-Z0-9_]*)(?P<mods>[.\w]*)"
)
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
# LDG and STG, and LDGSTS, which copies from global to shared memory on its own.
_GLOBAL_LOADS, _GLOBAL_STORES = frozenset({"LDG", "LDGSTS"}), frozenset({"STG"})
_BULK_COPIES = frozenset({"UBLKCP", "UTMALDG", "UTMASTG", "UBLKRED", "UTMAREDG"})


# --------------------------------------------------------------------------- ptxas


def parse_ptxas(text: str) -> tuple[KernelCode, ...]:
    """Return the kernels that ptxas described, in its order; other compiler output between is ignored.

    A kernel that two units instantiate is described twice; the last description stands.
    """
    found: dict[tuple[str, str], KernelCode] = {}
    for symbol, arch, lines in _entries(text):
        kernel = _kernel(symbol, arch, "\n".join(lines))
        if kernel is not None and len(found) < MAX_KERNELS:
            found[symbol, arch] = kernel
    return tuple(found.values())


def _entries(text: str) -> Iterator[tuple[str, str, list[str]]]:
    current: tuple[str, str, list[str]] | None = None
    for line in text.splitlines():
        entry = _ENTRY.search(line)
        if entry is not None:
            if current is not None:
                yield current
            current = (entry["symbol"], entry["arch"], [])
        elif current is not None:
            current[2].append(line)
    if current is not None:
        yield current


def _kernel(symbol: str, arch: str, text: str) -> KernelCode | None:
    used = _USED.search(text)
    frames = list(_FRAME.finditer(text))
    if used is None or not frames:
        return None  # ptxas stopped here; a failed build says why elsewhere
    # Functions that were not inlined have frames of their own, listed under the kernel that calls them.
    cumulative = _number(_CUMULATIVE, "size", text)
    return KernelCode(
        symbol=symbol,
        name=function_name(symbol),
        arch=arch,
        registers_per_thread=int(used["registers"]),
        static_shared_bytes=_number(_SHARED, "size", text),
        stack_bytes=max(cumulative, *(int(frame["stack"]) for frame in frames)),
        spill_store_bytes=sum(int(frame["stores"]) for frame in frames),
        spill_load_bytes=sum(int(frame["loads"]) for frame in frames),
        barriers=_number(_BARRIERS, "count", text),
    )


def _number(pattern: re.Pattern[str], group: str, text: str) -> int:
    found = pattern.search(text)
    return int(found[group]) if found is not None else 0


def function_name(symbol: str) -> str:
    """Return ``kernel`` for ``_ZN5space6kernelIfEEvPKT_``: the innermost name of an Itanium-mangled symbol.

    Namespaces, template arguments and parameters are left off; what is not mangled comes back as it is.
    """
    if not symbol.startswith("_Z"):
        return symbol
    position = 3 if symbol.startswith("_ZN") else 2
    name = ""
    while (found := re.compile(r"L?(\d+)").match(symbol, position)) is not None:
        start, size = found.end(), int(found[1])
        name, position = symbol[start : start + size], start + size
        if not symbol.startswith("_ZN"):
            break
    return name or symbol


# --------------------------------------------------------------------------- SASS


def parse_sass(text: str) -> dict[tuple[str, str], MemoryInstructions]:
    """Return the memory instructions of each (symbol, architecture) in ``cuobjdump -sass``'s listing."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    arch, current = "", None
    for line in text.splitlines():
        code, function = _SASS_ARCH.match(line), _SASS_FUNCTION.match(line)
        if code is not None:
            arch, current = code["arch"], None
        elif function is not None:
            current = counts.setdefault((function["symbol"], arch), Counter())
        elif current is not None and (found := _SASS_INSTRUCTION.match(line)) is not None:
            current.update(_classify(found["name"], found["mods"]))
    return {key: _memory(count) for key, count in counts.items()}


def _classify(name: str, modifiers: str) -> Iterable[str]:
    if name in _GLOBAL_LOADS or name in _GLOBAL_STORES:
        kind = "load" if name in _GLOBAL_LOADS else "store"
        yield f"{kind} {access_bytes(modifiers)}"
    elif name in ("LDL", "STL"):
        yield name
    elif name in _BULK_COPIES:
        yield "bulk"


def access_bytes(modifiers: str) -> int:
    """Return the bytes a thread moves with modifiers such as ``.E.128.CONSTANT``; 4 where none says."""
    words = modifiers.split(".")
    return next((_WIDTHS[word] for word in words if word in _WIDTHS), 4)


def _memory(counts: Counter[str]) -> MemoryInstructions:
    def widths(kind: str) -> tuple[AccessWidth, ...]:
        sizes = sorted((int(key.split()[1]) for key in counts if key.startswith(f"{kind} ")), reverse=True)
        return tuple(AccessWidth(size_bytes=size, instructions=counts[f"{kind} {size}"]) for size in sizes)

    return MemoryInstructions(
        global_loads=widths("load"),
        global_stores=widths("store"),
        local_loads=counts["LDL"],
        local_stores=counts["STL"],
        bulk_copies=counts["bulk"],
    )


def with_memory(
    kernels: Sequence[KernelCode], memory: Mapping[tuple[str, str], MemoryInstructions]
) -> tuple[KernelCode, ...]:
    """Return the kernels with what the disassembly says of each."""
    return tuple(
        msgspec.structs.replace(kernel, memory=memory.get((kernel.symbol, kernel.arch))) for kernel in kernels
    )


# --------------------------------------------------------------------------- the whole


def describe(
    assembler_text: str, library: Path, cuobjdump: str | None, *, timeout_s: float = DISASSEMBLY_TIMEOUT_S
) -> DeviceCode | None:
    """Return the static facts of a built library, or ``None`` when the assembler described no kernel.

    A disassembler that is missing, fails or is too slow costs its own facts only, never the build.
    """
    kernels = parse_ptxas(assembler_text)
    if not kernels:
        return None
    if cuobjdump is None:
        return DeviceCode(kernels=kernels)
    version, listing = _disassemble(cuobjdump, library, timeout_s)
    if listing is None:
        return DeviceCode(kernels=kernels)
    return DeviceCode(kernels=with_memory(kernels, parse_sass(listing)), disassembler=version)


def _disassemble(cuobjdump: str, library: Path, timeout_s: float) -> tuple[str | None, str | None]:
    # The listing goes to a file: captured output is bounded, and a cut listing would give wrong counts.
    listing = library.with_name(f"{library.stem}.sass")
    dump = 'exec "$0" -sass "$1" >"$2"'
    shell = ("/bin/sh", "-c", dump, cuobjdump, str(library), str(listing))
    commands = [
        Command(argv=argv, cwd=str(library.parent), environ=tool_environ())
        for argv in (shell, (cuobjdump, "--version"))
    ]
    try:
        dumped, told = run_all(
            commands, timeout_s=timeout_s, limits=Limits(file_bytes=DISASSEMBLY_FILE_BYTES)
        )
        if dumped.returncode != 0:
            return None, None
        return _release(told), listing.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None, None
    finally:
        listing.unlink(missing_ok=True)


def _release(told: Finished) -> str:
    found = re.search(rb"V(\d+\.\d+\.\d+)", told.stdout)
    return f"cuobjdump {found[1].decode()}" if found is not None else "cuobjdump"
