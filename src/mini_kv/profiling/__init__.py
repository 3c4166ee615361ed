"""``mini-kv profile``: one case of one candidate, gated, captured, checked and archived."""

from __future__ import annotations

from mini_kv.profiling.profile_run import ProfileRequest, profile_case

__all__ = ["ProfileRequest", "profile_case"]
