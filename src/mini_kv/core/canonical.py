"""Digests over whole records in one canonical form, so that no key is made by joining strings."""

from __future__ import annotations

import hashlib

import msgspec


def canonical_bytes(value: object) -> bytes:
    """Return the canonical JSON of ``value``: UTF-8, keys sorted at every level, no white space."""
    return msgspec.json.encode(msgspec.to_builtins(value), order="sorted")


def canonical_sha256(value: object) -> str:
    """Return the lower-case hex SHA-256 of :func:`canonical_bytes`."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def sha256_bytes(raw: bytes | bytearray | memoryview) -> str:
    """Return the lower-case hex SHA-256 of raw bytes."""
    return hashlib.sha256(raw).hexdigest()


def derived_seed(seed: str, purpose: str) -> str:
    """Return 16 hex digits that follow from ``seed`` and do not tell it."""
    return canonical_sha256([seed, purpose])[:16]


def fixed_seed(task_id: str, case_id: str) -> int:
    """Return the fixed-round seed: the first 8 bytes, big-endian, of SHA-256 over the JSON pair.

    The pair is digested in canonical form (``["task","case"]``), so ``("a", "bc")`` and
    ``("ab", "c")`` differ.
    """
    return int.from_bytes(hashlib.sha256(canonical_bytes([task_id, case_id])).digest()[:8], "big")
