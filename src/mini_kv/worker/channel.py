"""The worker's end of the socket: blocking, one request at a time."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from mini_kv.core import protocol
from mini_kv.core.protocol import ProtocolError, Request

Payload = bytes | bytearray | memoryview


def sendable(text: str) -> str:
    """Return text that UTF-8 can carry: half of a surrogate pair is written as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class Channel:
    """Frames over one connected stream socket."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)

    def receive(self) -> tuple[Request, list[bytearray]]:
        """Block until one whole request is here; raises ``EOFError`` when the judge has left."""
        header_bytes, payloads = protocol.parse_prefix(bytes(self._exactly(protocol.PREFIX.size)))
        sizes = struct.unpack(f"<{payloads}Q", self._exactly(8 * payloads))
        request = protocol.decode_request(bytes(self._exactly(header_bytes)))
        return request, [self._exactly(size) for size in sizes]

    def send(self, header: bytes, payloads: Sequence[Payload] = ()) -> None:
        """Send one whole reply, whose header is encoded already."""
        sizes = tuple(memoryview(payload).nbytes for payload in payloads)
        self._socket.sendall(protocol.encode_prefix(header, sizes) + header)
        for payload in payloads:
            self._socket.sendall(payload)

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            received = self._socket.recv_into(view)
            if received == 0:
                raise EOFError("the judge closed the channel")
            view = view[received:]
        return buffer


__all__ = ["Channel", "Payload", "ProtocolError", "sendable"]
