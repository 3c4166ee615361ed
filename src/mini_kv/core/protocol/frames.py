"""The frame that a message travels in.

``MAGIC | header length (u32) | payload count (u32) | payload lengths (u64 each) | header | payloads``, all
little-endian. Limits are checked before anything is allocated.
"""

from __future__ import annotations

import struct

MAGIC = b"mkv1"
PREFIX = struct.Struct("<4sII")
MAX_HEADER_BYTES = 8 << 20
MAX_PAYLOADS = 4096
DEFAULT_MAX_FRAME_BYTES = 4 << 30


class ProtocolError(Exception):
    """A peer sent something that is not a frame of this protocol."""


def encode_prefix(header: bytes, payload_sizes: tuple[int, ...]) -> bytes:
    """Return the fixed part of a frame that carries ``header`` and payloads of these sizes."""
    sizes = struct.pack(f"<{len(payload_sizes)}Q", *payload_sizes)
    return PREFIX.pack(MAGIC, len(header), len(payload_sizes)) + sizes


def parse_prefix(raw: bytes) -> tuple[int, int]:
    """Return (header bytes, payload count); raises :class:`ProtocolError`."""
    magic, header_bytes, payloads = PREFIX.unpack(raw)
    if magic != MAGIC:
        raise ProtocolError("the frame does not begin with this protocol's magic")
    if header_bytes > MAX_HEADER_BYTES:
        raise ProtocolError(f"a header of {header_bytes} bytes passes the limit of {MAX_HEADER_BYTES}")
    if payloads > MAX_PAYLOADS:
        raise ProtocolError(f"{payloads} payloads pass the limit of {MAX_PAYLOADS}")
    return header_bytes, payloads
