"""Linux system calls that Python's standard library lacks, each raising ``OSError`` when refused.

Numbers and structures are from the kernel's headers (``uapi/linux``); nothing here decides anything.
"""

from __future__ import annotations

import ctypes
import os
import struct

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18

_CAPABILITY_VERSION_3 = 0x2008_0522
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make one system call; integers are passed as C longs."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), f"system call {number}")


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    """``prctl(option, value, third, 0, 0)``."""
    words = (ctypes.c_ulong(word) for word in (value, third, 0, 0))
    _checked(_libc.prctl(ctypes.c_int(option), *words), f"prctl {option}")


def unshare(flags: int) -> None:
    """Leave the namespaces that ``flags`` names for new ones; for a pid namespace, its children do."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """``mount(2)``."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _checked(result, f"mount on {target}")


def drop_capabilities() -> None:
    """Give up every capability, and the right to regain one through a program's file capabilities."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the kernel's last one, or not allowed to: then there is none to regain
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, struct.pack("=6I", 0, 0, 0, 0, 0, 0)), "capset")


def guard_memory() -> None:
    """Close this process's memory, descriptors and environment to other processes of the same user."""
    prctl(PR_SET_DUMPABLE, 0)
