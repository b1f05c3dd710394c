"""The JSON door: strict reading, all or nothing, errors that name the field."""

import base64
import contextlib
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import BadJsonError, BadNameError, BadRequestError, TooLargeError
from paceline.filters import TagFilter, make_filter
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import MESSAGE_BYTES_MAX
from paceline.types import QueueOffset
from paceline.wire.http import (
    JSON_BYTES_MAX,
    PullRequest,
    parse_json_object,
    parse_number,
    parse_pull,
    parse_send,
    produce_answer_to_json,
)
from paceline.wire.stream import (
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    PRODUCE_FLAG_UNCONFIRMED,
    ProduceAnswer,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='ab:\\"u', max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)

# -- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"nonsense", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}',
        b'{"a":1e999}', b'{"a":' + b"9" * 5000 + b"}", b'{"a":"\\ud800"}', b'{"\\udfff":1}',
        b'{"a":"\xff"}', b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"), b'{"a":"\x00"}', b"{}{}",
        b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
        b"[]", b"1", b'"text"', b"null", b"true", b"{'a':1}", b'{"a":1,}', b'{"a":01}',
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadJsonError) as caught:
        parse_json_object(body)

    assert caught.value.details["field"] == "body"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"topic":"a","topic":"b"}', "topic"),
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":{"b":[{"c":1,"c":2}]}}', "c"),
        (b'{"a":":::","a":1}', "a"),
        (b'{"a":1,"\\u0061":2}', "a"),
        (b'{"a":"\\u003a","a":1}', "a"),
        (b'{"a\\u003A":1,"a:":1}', "a:"),
        (b'{"a":"\\\\u003a\\u003a","b":1,"b":2}', "b"),
        (b'{"":1,"":2}', ""),
    ],
)
def test_a_key_that_is_there_twice_is_refused_and_named(body: bytes, key: str) -> None:
    with pytest.raises(BadJsonError) as caught:
        parse_json_object(body)

    assert caught.value.details["field"] == key


@settings(max_examples=300, deadline=None)
@given(document=st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=4), indent=st.booleans())
def test_any_object_is_read_as_it_was_written(document: dict[str, Any], indent: bool) -> None:
    body = json.dumps(document, indent=2 if indent else None)

    assert parse_json_object(body.encode()) == document
    assert parse_json_object(orjson.dumps(document)) == document


@settings(max_examples=300, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.text(alphabet='ab:\\"\u00fc', max_size=2), JSON_VALUES), max_size=4
    ),
    is_ascii=st.booleans(),
    is_escaped=st.booleans(),
)
def test_duplicates_are_found_exactly_when_there_are_any(
    pairs: list[tuple[str, Any]], is_ascii: bool, is_escaped: bool
) -> None:
    members = [
        (json.dumps(name, ensure_ascii=is_ascii), json.dumps(value, ensure_ascii=is_ascii))
        for name, value in pairs
    ]
    if is_escaped:
        members = [(name.replace(":", "\\u003A"), value) for name, value in members]
    body = "{" + ", ".join(f"{name} : {value}" for name, value in members) + "}"

    if len({name for name, _ in pairs}) == len(pairs):
        assert parse_json_object(body.encode()) == dict(pairs)
    else:
        with pytest.raises(BadJsonError):
            parse_json_object(body.encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_bad_json(body: bytes) -> None:
    for one in (body, b'{"a":' + body + b"}", b'{"' + body + b'":1}'):
        with contextlib.suppress(BadJsonError):
            assert isinstance(parse_json_object(one), dict)


def test_a_body_over_the_limit_is_too_large() -> None:
    with pytest.raises(TooLargeError) as caught:
        parse_json_object(b" " * (JSON_BYTES_MAX + 1))
    assert caught.value.details["limit"] == JSON_BYTES_MAX
    with pytest.raises(TooLargeError):
        parse_json_object(b'{"a":1}', limit=6)
    assert parse_json_object(b'{"a":1}', limit=7) == {"a": 1}


# -- send -----------------------------------------------------------------------------------------


def a_send(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"body": "x"}], **changes}


def test_a_send_becomes_columns() -> None:
    request = parse_send(
        {
            "messages": [
                {"body": "\u00fc", "key": "k", "tag": "t", "properties": {"a": "b"}},
                {"body_base64": "/wA=", "key": None, "tag": ""},
                {"body": ""},
            ],
            "queue": 3,
            "producer": {"id": 2**64 - 1, "epoch": 1, "sequence": 9},
        }
    )

    assert list(request.bodies) == ["\u00fc".encode(), b"\xff\x00", b""]
    assert list(request.keys) == ["k", None, None]
    assert list(request.tags) == ["t", "", None]
    assert list(request.properties) == [{"a": "b"}, None, None]
    assert request.queue == 3
    assert request.producer is not None
    assert (request.producer.producer_id, request.producer.epoch) == (2**64 - 1, 1)
    batch = encode_batch(
        request.bodies,
        keys=request.keys,
        tags=request.tags,
        properties=request.properties,
        born_unix_ms=1,
        topic_id=1,
        queue_id=3,
    )
    assert BatchView(batch).keys() == ["k", None, None]


def test_a_producer_id_may_be_decimal_text() -> None:
    producer = {"id": "18446744073709551615", "epoch": 0, "sequence": 0}

    request = parse_send(a_send(queue=0, producer=producer))

    assert request.producer is not None
    assert request.producer.producer_id == 2**64 - 1


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [{"body": "x"}] * 65_536}, "messages"),
        (a_send(extra=1), "extra"),
        (a_send(queue="1"), "queue"),
        (a_send(queue=True), "queue"),
        (a_send(queue=1.0), "queue"),
        (a_send(queue=-1), "queue"),
        (a_send(queue=65_536), "queue"),
        (a_send(producer={"id": 1, "epoch": 0, "sequence": 0}), "queue"),
        (a_send(queue=0, producer=7), "producer"),
        (a_send(queue=0, producer={"epoch": 0, "sequence": 0}), "id"),
        (a_send(queue=0, producer={"id": 0, "epoch": 0, "sequence": 0}), "id"),
        (a_send(queue=0, producer={"id": "0", "epoch": 0, "sequence": 0}), "id"),
        (a_send(queue=0, producer={"id": "1 ", "epoch": 0, "sequence": 0}), "id"),
        (a_send(queue=0, producer={"id": "\u0661", "epoch": 0, "sequence": 0}), "id"),
        (a_send(queue=0, producer={"id": str(2**64), "epoch": 0, "sequence": 0}), "id"),
        (a_send(queue=0, producer={"id": 2.0**64, "epoch": 0, "sequence": 0}), "id"),
        (a_send(queue=0, producer={"id": 1, "epoch": 65_536, "sequence": 0}), "epoch"),
        (a_send(queue=0, producer={"id": 1, "epoch": 0, "sequence": -1}), "sequence"),
        (a_send(queue=0, producer={"id": 1, "epoch": 0, "sequence": 2**31}), "sequence"),
        (a_send(queue=0, producer={"id": 1, "epoch": 0, "sequence": 0, "x": 1}), "x"),
    ],
)
def test_a_send_of_another_shape_is_refused(document: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_send(document)

    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("text", "messages[1]"),
        (None, "messages[1]"),
        ({}, "messages[1].body"),
        ({"body": None}, "messages[1].body"),
        ({"body": 5}, "messages[1].body"),
        ({"body": {"a": 1}}, "messages[1].body"),
        ({"body": "x", "body_base64": "eA=="}, "messages[1].body_base64"),
        ({"body_base64": None}, "messages[1].body_base64"),
        ({"body_base64": "eA"}, "messages[1].body_base64"),
        ({"body_base64": "eA==\n"}, "messages[1].body_base64"),
        ({"body_base64": "e A=="}, "messages[1].body_base64"),
        ({"body_base64": "eA==eA=="}, "messages[1].body_base64"),
        ({"body_base64": "\u00fc==="}, "messages[1].body_base64"),
        ({"body": "x", "key": 1}, "messages[1].key"),
        ({"body": "x", "key": "k" * 65_536}, "messages[1].key"),
        ({"body": "x", "sharding_key": 7}, "messages[1].sharding_key"),
        ({"body": "x", "sharding_key": "k" * 32_768}, "messages[1].sharding_key"),
        ({"body": "x", "sharding_key": "k" * 32_767}, "messages[1].properties"),
        ({"body": "x", "tag": ["t"]}, "messages[1].tag"),
        ({"body": "x", "tag": "\u00fc" * 16_384}, "messages[1].tag"),
        ({"body": "x", "properties": []}, "messages[1].properties"),
        ({"body": "x", "properties": {"a": 1}}, "messages[1].properties.a"),
        ({"body": "x", "properties": {"a": None}}, "messages[1].properties.a"),
        ({"body": "x", "properties": {"": "a"}}, "messages[1].properties"),
        (
            {"body": "x", "properties": {str(number): "" for number in range(10_000)}},
            "messages[1].properties",
        ),
        ({"body": "x", "Body": "y"}, "messages[1].Body"),
    ],
)
def test_one_bad_message_refuses_all_and_is_named(message: object, field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_send({"messages": [{"body": "good"}, message]})

    assert caught.value.details["field"] == field
    assert not isinstance(caught.value, TooLargeError)


def test_a_body_over_four_mebibytes_is_too_large() -> None:
    for message in (
        {"body": "x" * (MESSAGE_BYTES_MAX + 1)},
        {"body_base64": base64.b64encode(bytes(MESSAGE_BYTES_MAX + 1)).decode()},
    ):
        with pytest.raises(TooLargeError) as caught:
            parse_send({"messages": [message]})
        assert caught.value.details["field"] == "messages[0].body"


def test_a_produce_answer_says_what_its_flags_say() -> None:
    stored = produce_answer_to_json(ProduceAnswer(4, 2, 10, 900, 7, 0, 800), queue=3)
    flags = PRODUCE_FLAG_DUPLICATE | PRODUCE_FLAG_OFFSET_UNKNOWN | PRODUCE_FLAG_UNCONFIRMED
    unsure = produce_answer_to_json(ProduceAnswer(4, 2, 10, 900, 7, flags, 0), queue=3)

    assert stored == {
        "status": "SEND_OK", "queue": 3, "offset": 10, "count": 2, "store_unix_ms": 7,
        "epoch": 4, "confirm": 900, "position": 800, "duplicate": False, "confirmed": True,
    }  # fmt: skip
    assert (unsure["offset"], unsure["duplicate"], unsure["confirmed"]) == (None, True, False)


# -- pull -----------------------------------------------------------------------------------------


def test_a_pull_query_is_read_with_its_defaults() -> None:
    assert parse_pull([("offset", "0")]) == PullRequest(offset=QueueOffset(0))
    assert parse_pull(
        [("tags", "a,b"), ("offset", str(2**63 - 1)), ("wait_ms", "5"), ("group", "g")]
    ) == PullRequest(
        offset=QueueOffset(2**63 - 1), wait_ms=5, wanted=TagFilter(["b", "a"]), group="g"
    )


def test_a_pull_may_name_a_filter() -> None:
    by_tags = parse_pull([("offset", "0"), ("filter", "a || b")])
    by_sql = parse_pull([("offset", "0"), ("filter", "n > 1"), ("filter_type", "SQL92")])

    assert by_tags.wanted == TagFilter(["a", "b"])
    assert by_sql.wanted == make_filter("SQL92", "n > 1")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ([], "offset"),
        ([("offset", "")], "offset"),
        ([("offset", "-1")], "offset"),
        ([("offset", "+1")], "offset"),
        ([("offset", " 1")], "offset"),
        ([("offset", "1_0")], "offset"),
        ([("offset", "1.5")], "offset"),
        ([("offset", "\u0661")], "offset"),
        ([("offset", str(2**63))], "offset"),
        ([("offset", "9" * 5000)], "offset"),
        ([("offset", "1\n")], "offset"),
        ([("offset", "1"), ("offset", "2")], "offset"),
        ([("offset", "1"), ("max_messages", "0")], "max_messages"),
        ([("offset", "1"), ("max_bytes", str(2**30))], "max_bytes"),
        ([("offset", "1"), ("wait_ms", "1000000000")], "wait_ms"),
        ([("offset", "1"), ("tags", "")], "tags"),
        ([("offset", "1"), ("tags", "a,,b")], "tags"),
        ([("offset", "1"), ("filter", "a >"), ("filter_type", "SQL92")], "filter"),
        ([("offset", "1"), ("filter", "a || ")], "filter"),
        ([("offset", "1"), ("filter", "a"), ("filter_type", "CLASS")], "filter"),
        ([("offset", "1"), ("filter_type", "SQL92")], "filter"),
        ([("offset", "1"), ("filter", "a"), ("tags", "a")], "filter"),
        ([("offset", "1"), ("unknown", "1")], "unknown"),
    ],
)
def test_a_bad_pull_query_is_refused(query: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_pull(query)

    assert caught.value.details["field"] == field


def test_a_bad_group_in_a_pull_is_a_bad_name() -> None:
    with pytest.raises(BadNameError):
        parse_pull([("offset", "1"), ("group", "../g")])


def test_a_number_from_a_path_is_decimal_and_in_range() -> None:
    assert parse_number("007", "queue", high=7) == 7
    with pytest.raises(BadRequestError):
        parse_number("8", "queue", high=7)
