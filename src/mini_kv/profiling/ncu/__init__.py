"""One launch of one kernel under Nsight Compute, and the archive of what came of it."""

from __future__ import annotations

from mini_kv.profiling.ncu.capturing import Capture, CaptureRequest, capture
from mini_kv.profiling.ncu.profile_archive import ProfileArchive, load_profile
from mini_kv.profiling.ncu.tool import Ncu, find_ncu

__all__ = [
    "Capture",
    "CaptureRequest",
    "Ncu",
    "ProfileArchive",
    "capture",
    "find_ncu",
    "load_profile",
]
