"""Paths as a person in the current folder would type them."""

from __future__ import annotations

from pathlib import Path


def from_here(path: Path) -> Path:
    """Return ``path`` relative to the current folder where it lies below it, else as it is."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
