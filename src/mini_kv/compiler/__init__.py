"""Sources, flags and toolchain -> content key -> :class:`~mini_kv.core.records.build.Build`."""

from __future__ import annotations

from mini_kv.compiler.builder import build, logs_folder
from mini_kv.compiler.diagnosis import explain_load_error
from mini_kv.compiler.recipe import RECIPE_VERSION, BuildRequest

__all__ = ["RECIPE_VERSION", "BuildRequest", "build", "explain_load_error", "logs_folder"]
