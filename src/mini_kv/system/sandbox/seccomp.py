"""A seccomp filter: system calls that no kernel library needs, and that reach out of the process, fail.

A list of what is denied, not of what is allowed: drivers and torch may use any ordinary call. Denied
calls return EPERM (``clone3`` ENOSYS, so that the C library falls back to ``clone``, whose flags a
filter can see).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Sequence

from mini_kv.system.sandbox.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    PR_SET_CHILD_SUBREAPER,
    system_call,
)

AF_UNIX = 1

_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
# Offsets in struct seccomp_data (little endian); of an argument, first the lower half.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_ALLOW, _ERROR = 0x7FFF_0000, 0x0005_0000
_SET_MODE_FILTER = 1
_SPEC_ALLOW = 1 << 2
_X32 = 0x4000_0000
_NEW_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

_CALLS_X86_64 = {
    "socket": 41,
    "clone": 56,
    "rt_sigaction": 13,
    "prctl": 157,
    "seccomp": 317,
    "ptrace": 101,
    "syslog": 103,
    "personality": 135,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "sysctl": 156,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_CALLS_AARCH64 = {
    "socket": 198,
    "clone": 220,
    "rt_sigaction": 134,
    "prctl": 167,
    "seccomp": 277,
    "ptrace": 117,
    "syslog": 116,
    "personality": 92,
    "vhangup": 58,
    "pivot_root": 41,
    "adjtimex": 171,
    "chroot": 51,
    "acct": 89,
    "settimeofday": 170,
    "mount": 40,
    "umount2": 39,
    "swapon": 224,
    "swapoff": 225,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "init_module": 105,
    "delete_module": 106,
    "quotactl": 60,
    "lookup_dcookie": 18,
    "clock_settime": 112,
    "kexec_load": 104,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "unshare": 97,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "kexec_file_load": 294,
    "bpf": 280,
    "userfaultfd": 282,
}
# From 424 on, a call has one number on every architecture.
_CALLS_COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}
_MACHINES = {"x86_64": (0xC000_003E, _CALLS_X86_64), "aarch64": (0xC000_00B7, _CALLS_AARCH64)}
_JUDGED_BY_ARGUMENT = ("socket", "clone", "clone3", "rt_sigaction", "prctl", "seccomp")


def machine_is_known() -> bool:
    """Say whether this processor's system calls are in the tables."""
    return os.uname().machine in _MACHINES


def calls() -> dict[str, int]:
    """Return the numbers of the calls that the filter looks at; raises ``OSError`` for other machines."""
    if not machine_is_known():
        raise OSError(errno.ENOSYS, f"no system call table for {os.uname().machine}")
    return _MACHINES[os.uname().machine][1] | _CALLS_COMMON


def program(families: Sequence[int], *, accountable: bool = False) -> bytes:
    """Return the filter as ``struct sock_filter[]``; ``families`` are the sockets that may be made.

    ``accountable`` denies what would take a child's CPU time out of the kernel's account: to have children
    reaped unseen (another action for SIGCHLD), and to give up orphans (prctl's child subreaper).
    """
    numbers = calls()
    denied = sorted(number for name, number in numbers.items() if name not in _JUDGED_BY_ARGUMENT)
    refuse, unknown = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
    steps: list[bytes] = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, _MACHINES[os.uname().machine][0], 1, 0),
        _step(_RETURN, refuse),  # another architecture's calls (int 0x80) have other numbers
        _step(_LOAD, _NUMBER),
        _step(_JUMP_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, refuse),
        _step(_JUMP_EQUAL, numbers["clone3"], 0, 1),
        _step(_RETURN, unknown),
    ]
    sections = {numbers["socket"]: _socket(families), numbers["clone"]: _clone()}
    if accountable:
        sections |= {numbers["rt_sigaction"]: _rt_sigaction(), numbers["prctl"]: _prctl()}
    # A jump counts the steps it skips: from a denied call over the rest of the list, the jumps to the
    # sections and the permission of everything else.
    for rest, number in zip(reversed(range(len(denied))), denied, strict=True):
        steps.append(_step(_JUMP_EQUAL, number, rest + len(sections) + 1))
    behind = 2  # the two verdicts that stand between the jumps and the first section
    for rest, (number, section) in zip(reversed(range(len(sections))), sections.items(), strict=True):
        steps.append(_step(_JUMP_EQUAL, number, rest + behind))
        behind += len(section)
    steps += [_step(_RETURN, _ALLOW), _step(_RETURN, refuse)]
    for section in sections.values():
        steps += section
    return b"".join(steps)


def _socket(families: Sequence[int]) -> list[bytes]:
    steps = [_step(_LOAD, _FIRST_ARGUMENT)]
    for rest, family in zip(reversed(range(len(families))), families, strict=True):
        steps.append(_step(_JUMP_EQUAL, family, rest + 1))
    return [*steps, _step(_RETURN, _ERROR | errno.EPERM), _step(_RETURN, _ALLOW)]


def _clone() -> list[bytes]:
    return [_step(_LOAD, _FIRST_ARGUMENT), _step(_JUMP_SET, _NEW_NAMESPACES, 1, 0), *_VERDICTS]


def _rt_sigaction() -> list[bytes]:
    # To ask (no new action) is no change; the kernel looks at the whole 64-bit pointer.
    return [
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_JUMP_EQUAL, signal.SIGCHLD, 0, 4),
        _step(_LOAD, _SECOND_ARGUMENT),
        _step(_JUMP_EQUAL, 0, 0, 3),
        _step(_LOAD, _SECOND_ARGUMENT + 4),
        _step(_JUMP_EQUAL, 0, 0, 1),
        *_VERDICTS,
    ]


def _prctl() -> list[bytes]:
    return [
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_JUMP_EQUAL, PR_SET_CHILD_SUBREAPER, 1, 0),
        *_VERDICTS,
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


# Where a section ends: what it did not send to the second is allowed.
_VERDICTS = (_step(_RETURN, _ALLOW), _step(_RETURN, _ERROR | errno.EPERM))


def install(families: Sequence[int], *, accountable: bool = False) -> None:
    """Put the filter on this thread and all it starts; ``no_new_privs`` must be set.

    Old kernels switch a costly speculation guard on with any filter, which would slow down what is
    timed; the flag asks them not to.
    """
    code = program(families, accountable=accountable)
    kept = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    number = calls()["seccomp"]
    try:
        system_call(number, _SET_MODE_FILTER, _SPEC_ALLOW, header)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        system_call(number, _SET_MODE_FILTER, 0, header)
