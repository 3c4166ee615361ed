"""Landlock: which files this process may still touch, and that it reaches no TCP port and no stranger.

Only rights that the running kernel's ABI knows are handled; the ABI decides what each adds
(Documentation/userspace-api/landlock.rst).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable

from mini_kv.system.sandbox.kernel import system_call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS = (1 << 13) - 1  # all of ABI 1
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract UNIX sockets and signals
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

TCP_ABI = 4
SCOPE_ABI = 6

LISTED = _READ_DIR
READABLE = _EXECUTE | _READ_FILE | _READ_DIR
WRITABLE = _FIRST_RIGHTS | _REFER | _TRUNCATE
DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _TRUNCATE | _IOCTL_DEV


def abi() -> int:
    """Return the kernel's Landlock ABI; 0 where there is none."""
    try:
        return system_call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def _file_rights(version: int) -> int:
    rights = _FIRST_RIGHTS
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version >= since:
            rights |= right
    return rights


def restrict(allowed: Iterable[tuple[str, int]]) -> None:
    """Deny every handled right but those of ``allowed`` (path, rights); paths that do not exist are skipped.

    ``no_new_privs`` must be set. There is no way back, and children inherit it.
    """
    version = abi()
    if version == 0:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock")
    handled = _file_rights(version)
    attributes = struct.pack(
        "=QQQ",
        handled,
        _TCP if version >= TCP_ABI else 0,
        _SCOPES if version >= SCOPE_ABI else 0,
    )
    size = 24 if version >= SCOPE_ABI else 16 if version >= TCP_ABI else 8
    ruleset = system_call(_CREATE_RULESET, attributes, size, 0)
    try:
        for path, rights in allowed:
            _allow(ruleset, path, rights & handled)
        system_call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what cannot be opened needs no permission to be
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_FILES
        if rights:
            system_call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
