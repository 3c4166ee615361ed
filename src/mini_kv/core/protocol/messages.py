"""Every request and every reply, to and from the bytes of a header."""

from __future__ import annotations

import msgspec

from mini_kv.core.protocol.candidate import CandidateReply, CandidateRequest
from mini_kv.core.protocol.frames import ProtocolError
from mini_kv.core.protocol.oracle import OracleReply, OracleRequest
from mini_kv.core.protocol.presence import PresenceReply, PresenceRequest
from mini_kv.core.protocol.timing import TimingReply, TimingRequest

Request = PresenceRequest | OracleRequest | CandidateRequest | TimingRequest
Reply = PresenceReply | OracleReply | CandidateReply | TimingReply
Message = Request | Reply
_ENCODER = msgspec.json.Encoder()
_REQUESTS = msgspec.json.Decoder(Request)
_REPLIES = msgspec.json.Decoder(Reply)


def encode_message(message: Message) -> bytes:
    """Return a message's header bytes."""
    return _ENCODER.encode(message)


def decode_request(header: bytes) -> Request:
    """Decode a request header; raises :class:`ProtocolError`."""
    try:
        return _REQUESTS.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a request of this protocol: {error}") from error


def decode_reply(header: bytes) -> Reply:
    """Decode a reply header; raises :class:`ProtocolError`."""
    try:
        return _REPLIES.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a reply of this protocol: {error}") from error
