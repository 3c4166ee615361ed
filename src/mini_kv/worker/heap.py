"""The C library's heap, where it lets itself be tuned."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's ``mallopt``; other C libraries have none."""
    return getattr(ctypes.CDLL(None), "mallopt", None)
