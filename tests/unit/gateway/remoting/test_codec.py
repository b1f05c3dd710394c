"""Frames, stored messages, heartbeats of the remoting protocol: round trips, and any bytes."""

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import BadRequestError, TooLargeError
from paceline.filters import ALL
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.bodies import plain_body
from paceline_gateway.remoting.codec.frames import (
    BINARY,
    JSON,
    Command,
    encode,
    lenient_json,
    object_in,
    take_frames,
)
from paceline_gateway.remoting.codec.heartbeats import read_filter, read_heartbeat, read_queues
from paceline_gateway.remoting.codec.message_ids import host_bytes, message_id, place_of
from paceline_gateway.remoting.codec.properties import parse_properties, properties_text
from paceline_gateway.remoting.codec.store_format import (
    Stored,
    decode_batch,
    decode_messages,
    encode_message,
)

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"))
_names = _texts.filter(bool)
_i32 = st.integers(-(2**31), 2**31 - 1)
_i64 = st.integers(0, 2**63 - 1)


@given(
    st.integers(-(2**15), 2**15 - 1),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), _texts, max_size=4),
    st.binary(max_size=64),
    _i32,
    st.one_of(st.none(), _names),
    st.sampled_from([JSON, BINARY]),
)
def test_a_command_is_read_as_it_was_written(
    code: int,
    fields: dict[str, str],
    body: bytes,
    opaque: int,
    remark: str | None,
    serialization: int,
) -> None:
    command = Command(code, fields, body, opaque=opaque, remark=remark, serialization=serialization)
    frame = b"".join(encode(command))

    taken = take_frames(frame + frame + frame[:-1])

    assert (len(taken.commands), taken.size_bytes, taken.fault) == (2, 2 * len(frame), None)
    for found in taken.commands:
        for name in Command.__slots__:
            assert getattr(found, name) == getattr(command, name), name


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PRI * HTTP/2.0\r\n", "speaks gRPC"),
        (b"GET / HTTP/1.1\r\n", "speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "speaks TLS"),
        (b"\x70\x00\x00\x00\x00\x00\x00\x00", "a frame of 1879048192 bytes"),
    ],
)
def test_a_client_of_another_protocol_is_recognised(content: bytes, what: str) -> None:
    fault = take_frames(content).fault

    assert fault is not None
    assert what in fault.message


@given(st.binary(max_size=200))
def test_any_bytes_are_commands_or_a_fault(content: bytes) -> None:
    taken = take_frames(content)

    assert taken.size_bytes <= len(content)


@given(st.sampled_from([0, 1]), st.binary(max_size=100))
def test_any_header_is_a_command_or_a_fault(serialization: int, header: bytes) -> None:
    size = len(header)
    frame = (4 + size).to_bytes(4, "big") + (serialization << 24 | size).to_bytes(4, "big")

    taken = take_frames(frame + header)

    assert (taken.fault is None) == (len(taken.commands) == 1)


@pytest.mark.parametrize(
    ("written", "is_exact"),
    [("9007199254740991", True), ("9007199254740992", False), ('"9007199254740993"', True)],
)
def test_an_offset_that_javascript_has_rounded_is_none(written: str, is_exact: bool) -> None:
    """ali-ons would send back another message of the batch, and commit the one that failed."""
    header = b'{"code":36,"extFields":{"offset":%s}}' % written.encode()
    length = len(header) + 4
    [command] = take_frames(length.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)[0]

    if is_exact:
        assert fields.integer(command, "offset") == int(written.strip('"'))
    else:
        with pytest.raises(BadRequestError, match="(rounded)"):
            fields.integer(command, "offset")


def test_an_object_is_found_as_fastjson_writes_it() -> None:
    table = b'{{"brokerName":"g}\\"1","queueId":0}:5,{"queueId":1}:6}'

    assert object_in(b'{"other":{},"table":%s,"last":1}' % table, "table") == table
    for wrong in (b"", b'{"table":5}', b'{"table":{{}', b'{"other":{}}'):
        with pytest.raises(BadRequestError, match="no object table"):
            object_in(wrong, "table")


@pytest.mark.timeout(30)
def test_a_string_that_never_ends_is_refused_at_once() -> None:
    endless = b'{"table":{"' + b'\\"' * 1_000_000

    with pytest.raises(BadRequestError):
        lenient_json(endless)
    with pytest.raises(BadRequestError):
        object_in(endless, "table")


def test_headers_have_numbers_and_bare_keys_as_some_clients_write_them() -> None:
    header = b'{"code":105,"flag":0,"language":9,"opaque":7,"version":1,'
    header += b'"extFields":{"queueId":3,"unitMode":false,"none":null,"topic":"a"}}'
    size = len(header)
    frame = (4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + header

    [command] = take_frames(frame).commands

    assert command.fields == {"queueId": "3", "unitMode": "false", "topic": "a"}
    assert command.language == "GO"
    assert lenient_json(b'{0:"a,1:b", -1 :{"x":{2:3}}}') == {"0": "a,1:b", "-1": {"x": {"2": 3}}}


@given(
    _names.filter(lambda name: len(name.encode()) < 300),
    st.integers(0, 2**16 - 1),
    _i64,
    st.binary(max_size=100),
    st.dictionaries(_names, _texts, max_size=4),
    st.sampled_from(["127.0.0.1", "::1", "no address"]),
)
def test_a_stored_message_is_read_as_it_was_written(
    topic: str, queue_id: int, offset: int, body: bytes, properties: dict[str, str], host: str
) -> None:
    message = Stored(topic, queue_id, offset, offset, body, properties, 1, 2, 3, flag=7)
    store_host = host_bytes(host, 9876)

    [(found, at)] = list(decode_messages(encode_message(message, store_host)))

    assert (found._replace(sys_flag=0), at) == (message, store_host)


@given(st.binary(max_size=200))
def test_any_bytes_are_stored_messages_or_refused(content: bytes) -> None:
    for read in (decode_messages, decode_batch):
        try:
            assert list(read(content)) or not content
        except BadRequestError:
            continue


def test_a_message_id_leads_back_to_its_place() -> None:
    text = message_id(host_bytes("10.0.0.1", 10911), 0x1A40_0003)

    assert text == "0A000001" + "00002A9F" + "000000001A400003"
    assert str(place_of(int(text[16:], 16), "g1")) == "g1:1a40:3"
    with pytest.raises(BadRequestError):
        place_of(-1, "g1")


def test_properties_that_cannot_be_written_are_left_out() -> None:
    text = properties_text({"a": "1", "b": "x\x02y", "c\x01": "z", "d": ""})

    assert parse_properties(text.decode()) == {"a": "1", "d": ""}
    assert len(properties_text({str(number): "x" * 1000 for number in range(40)})) < 32_768
    with pytest.raises(BadRequestError):
        parse_properties("name without value\x02")


@pytest.mark.parametrize(
    ("kind", "pack"), [(0, zlib.compress), (3, zlib.compress), (1, lz4.frame.compress), (2, None)]
)
def test_compressed_bodies_are_bounded(kind: int, pack: object) -> None:
    compress = pack if callable(pack) else zstandard.ZstdCompressor().compress
    flag = 1 | kind << 8

    assert plain_body(compress(b"x" * 100_000), flag) == b"x" * 100_000
    with pytest.raises(TooLargeError):
        plain_body(compress(bytes(4 * 1024 * 1024 + 1)), flag)
    with pytest.raises(BadRequestError):
        plain_body(b"neither of them", flag)


def test_a_heartbeat_is_read_whoever_wrote_it() -> None:
    java = (
        b'{"clientID":"c","consumerDataSet":[{"consumeType":"CONSUME_PASSIVELY","groupName":"g",'
        b'"messageModel":"BROADCASTING","subscriptionDataSet":[{"subString":"a||b","topic":"t"}]}],'
        b'"producerDataSet":[{"groupName":"p"}]}'
    )

    told = read_heartbeat(java)

    [consumer] = told.consumers
    assert (told.client_id, told.producers) == ("c", ["p"])
    assert (consumer.is_push, consumer.is_broadcasting) == (True, True)
    assert consumer.filters["t"] == read_filter("TAG", "a || b")
    assert read_filter(None, "*") is ALL


@given(st.binary(max_size=60))
def test_any_body_is_a_heartbeat_or_refused(content: bytes) -> None:
    for read in (read_heartbeat, read_queues):
        with pytest.raises(BadRequestError):
            read(content)
