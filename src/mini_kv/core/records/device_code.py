"""What a CUDA build holds for the GPU: registers, memory and access widths of every kernel, unexecuted."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from mini_kv.core.record import Record

Count = Annotated[int, Meta(ge=0)]


class AccessWidth(Record, frozen=True, kw_only=True):
    """How many load or store instructions of a kernel move ``size_bytes`` a thread at once."""

    size_bytes: Annotated[int, Meta(ge=1)]
    instructions: Count


class MemoryInstructions(Record, frozen=True, kw_only=True):
    """Memory instructions in a kernel's machine code, counted as written, not as executed.

    ``local_*`` touch memory that belongs to one thread alone: spilled registers or an indexed array.
    ``bulk_copies`` are asynchronous copies of whole tiles, whose width no instruction tells.
    """

    global_loads: tuple[AccessWidth, ...]
    global_stores: tuple[AccessWidth, ...]
    local_loads: Count
    local_stores: Count
    bulk_copies: Count


class KernelCode(Record, frozen=True, kw_only=True):
    """One kernel for one architecture. ``name`` is the function's own, ``symbol`` the mangled whole.

    ``stack_bytes`` are a thread's, spills included. ``memory`` is ``None`` where no disassembler was at hand.
    """

    symbol: str
    name: str
    arch: str
    registers_per_thread: Count
    static_shared_bytes: Count
    stack_bytes: Count
    spill_store_bytes: Count
    spill_load_bytes: Count
    barriers: Count
    memory: MemoryInstructions | None = None


class DeviceCode(Record, frozen=True, kw_only=True):
    """The kernels of a build in the assembler's order. ``disassembler`` is cuobjdump's release, if it ran."""

    kernels: tuple[KernelCode, ...]
    disassembler: str | None = None


MAX_REMARKS = 6


def remarks(code: DeviceCode) -> tuple[str, ...]:
    """Return one sentence for each kernel that spills registers or keeps an array in local memory.

    Both live in DRAM behind the caches: slow where they are touched, hence worth a remark, yet no fault.
    """
    found = [sentence for kernel in code.kernels if (sentence := _remark(kernel)) is not None]
    if len(found) <= MAX_REMARKS:
        return tuple(found)
    return (
        *found[:MAX_REMARKS],
        f"{len(found) - MAX_REMARKS} more kernels use local memory; see compile.json",
    )


def _remark(kernel: KernelCode) -> str | None:
    where = f"{kernel.name} ({kernel.arch}, {kernel.registers_per_thread} registers a thread)"
    if kernel.spill_store_bytes or kernel.spill_load_bytes:
        return (
            f"{where} spills registers to local memory: {kernel.spill_store_bytes} bytes of stores and "
            f"{kernel.spill_load_bytes} bytes of loads a thread"
        )
    if kernel.stack_bytes:
        return (
            f"{where} keeps {kernel.stack_bytes} bytes a thread in local memory: an indexed array or a call"
        )
    return None
