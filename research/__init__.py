"""Studies of the product, its kernels and its pages, and no part of it: README.md says what each is for."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""
