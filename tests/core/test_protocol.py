"""Framing: any bytes are either a message or a :class:`ProtocolError`, at a bounded price."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mini_kv.core import protocol as p
from mini_kv.core.protocol import ProtocolError
from mini_kv.core.records.card import Tolerance
from mini_kv.core.tensors import AbsentArg, ScalarArg, TensorSpec

TENSOR = TensorSpec(
    shape=(2, 0),
    strides=(1, 1),
    storage_offset=3,
    dtype="float16",
    device="cpu",
    storage_bytes=10,
    blob=0,
)
REQUESTS: list[p.Request] = [
    p.Hello(device="cuda", threads=4),
    p.Rouse(),
    p.RunCase(
        key="k", arguments=(TENSOR, ScalarArg(special="-inf"), AbsentArg()), poison=255, poison_bytes=(4,)
    ),
    p.MakeCase(
        key="k/1", params={"shape": (1, 2), "eps": 1e-6, "flag": True}, seed="00ff", expect_values=True
    ),
    p.LoadReference(
        reference="a:b", input_factory="a:c", tolerances={"float32": Tolerance(rtol=1e-6, atol=3e-45)}
    ),
    p.TimeBatch(case_id="c", warmup=1, iterations=2, calls_per_sample=0, cache="cold"),
]
REPLIES: list[p.Reply] = [
    p.Done(),
    p.Failed(code="X", message="\u00b5s \ud7ff \U0001f600"),
    p.Raised(types=("RuntimeError",), message="", device_lost=False),
    p.ContractAnswer(results={"gradcheck": None, "opcheck.test_schema": "no"}),
    p.Timed(
        samples_us=(1.5, 1e-310),
        launch_exposed=(0,),
        kept=(1,),
        calls_per_sample=1,
        floor_us=0.0,
        tick_us=0.1,
    ),
]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_requests_survive_the_wire(message: p.Request) -> None:
    assert p.decode_request(p.encode_message(message)) == message


@pytest.mark.parametrize("message", REPLIES, ids=lambda message: type(message).__name__)
def test_replies_survive_the_wire(message: p.Reply) -> None:
    assert p.decode_reply(p.encode_message(message)) == message


def test_every_message_has_a_tag_of_its_own() -> None:
    kinds = [*get_args(p.Request), *get_args(p.Reply)]
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert all(isinstance(tag, str) for tag in tags)
    assert len(set(tags)) == len(tags)


def test_a_frame_is_laid_out_as_documented() -> None:
    raw = p.encode_prefix(b"{}", (5, 1 << 40))
    assert raw == b"mkv1" + struct.pack("<IIQQ", 2, 2, 5, 1 << 40)
    assert p.parse_prefix(raw[: p.PREFIX.size]) == (2, 2)


def test_the_prefixs_limits_are_sharp() -> None:
    at_most = p.PREFIX.pack(p.MAGIC, p.MAX_HEADER_BYTES, p.MAX_PAYLOADS)
    assert p.parse_prefix(at_most) == (p.MAX_HEADER_BYTES, p.MAX_PAYLOADS)
    for header, payloads in ((p.MAX_HEADER_BYTES + 1, 0), (0, p.MAX_PAYLOADS + 1)):
        with pytest.raises(ProtocolError, match="limit"):
            p.parse_prefix(p.PREFIX.pack(p.MAGIC, header, payloads))


@given(st.binary(min_size=p.PREFIX.size, max_size=p.PREFIX.size))
@example(b"mkv1" + b"\xff" * 8)
@example(b"mkv1" + bytes(8))
def test_any_prefix_is_within_the_limits_or_refused(raw: bytes) -> None:
    try:
        header_bytes, payloads = p.parse_prefix(raw)
    except ProtocolError:
        return
    assert raw.startswith(p.MAGIC)
    assert 0 <= header_bytes <= p.MAX_HEADER_BYTES
    assert 0 <= payloads <= p.MAX_PAYLOADS


@given(st.binary(max_size=400))
@example(b"")
@example(b"\xff\xfe")
@example(b'{"type":"done"}trailing')
@example(b'{"type":"failed","code":"\\ud800","message":""}')
@example(b"[" * 400)
def test_any_bytes_are_a_message_or_a_protocol_error(raw: bytes) -> None:
    for decode in (p.decode_request, p.decode_reply):
        try:
            message = decode(raw)
        except ProtocolError:
            continue
        assert isinstance(message, (*get_args(p.Request), *get_args(p.Reply)))


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
TAGS = st.sampled_from([str(kind.__struct_config__.tag) for kind in get_args(p.Reply)])


@given(TAGS, st.dictionaries(st.sampled_from(["types", "message", "outputs", "input_blobs", "kept"]), VALUES))
def test_documents_with_a_known_tag_and_odd_fields_are_refused_or_sound(
    tag: str, fields: dict[str, Any]
) -> None:
    raw = msgspec.json.encode({"type": tag, **fields})
    try:
        reply = p.decode_reply(raw)
    except ProtocolError:
        return
    # What the judge accepts it must be able to pass on.
    assert p.decode_reply(p.encode_message(reply)) == reply


@given(st.sampled_from(REPLIES), st.data())
def test_a_changed_byte_never_does_worse_than_a_protocol_error(reply: p.Reply, data: st.DataObject) -> None:
    raw = bytearray(p.encode_message(reply))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] = data.draw(st.integers(0, 255))
    try:
        p.decode_reply(bytes(raw))
    except ProtocolError:
        pass


def test_numbers_that_json_cannot_carry_are_refused() -> None:
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        raw = b'{"type":"timer_measured","floor_us":%s,"tick_us":1.0,"copy_gb_per_s":null,"l2_bytes":null}'
        try:
            reply = p.decode_reply(raw % number)
        except ProtocolError:
            continue
        assert isinstance(reply, p.TimerMeasured)
        assert math.isfinite(reply.floor_us)


def test_deep_nesting_costs_neither_stack_nor_memory() -> None:
    raw = b'{"type":"contract_answer","results":' + b"[" * (1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            p.decode_reply(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_an_exception_without_a_type_is_no_reply() -> None:
    with pytest.raises(ProtocolError):
        p.decode_reply(b'{"type":"raised","types":[],"message":"","device_lost":false}')


def test_a_requests_numbers_are_bounded() -> None:
    for poison in (-1, 256):
        with pytest.raises(ProtocolError):
            p.decode_request(
                b'{"type":"run_case","key":"k","arguments":[],"poison":%d,"poison_bytes":[]}' % poison
            )
