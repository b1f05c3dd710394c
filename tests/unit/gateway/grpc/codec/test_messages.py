"""Messages from protobuf and back."""

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.errors import ForbiddenError
from paceline.producer.transaction import HalfMessage
from paceline.wire import properties as names
from paceline_gateway.grpc.codec.received import Handed, half_of, received_of
from paceline_gateway.grpc.codec.sent import Sent, sent_of
from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.codec.values import (
    duration_of,
    group_of,
    milliseconds,
    subscription_of,
    timestamp_of,
    topic_of,
)
from paceline_gateway.grpc.stubs import messages_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import (
    Code,
    FilterExpression,
    FilterType,
    MessageType,
    Resource,
)

ID = "01A0B1C2D3E4F5061728394A5B6C7D8E9F"
TOPIC = Resource(name="orders")


def a_message(
    body: bytes = b"x", /, user: dict[str, str] | None = None, **system: object
) -> wire.Message:
    properties = wire.SystemProperties(**{"message_id": ID, **system})  # type: ignore[arg-type]
    return wire.Message(
        topic=TOPIC, body=body, user_properties=user or {}, system_properties=properties
    )


def popped(sent: Sent, **more: str) -> PoppedMessage:
    """As the cluster gives it back."""
    message = sent.message
    properties = {**(message.properties or {}), **more}
    if message.sharding:
        properties[names.SHARDING_KEY] = message.sharding
    tag = message.tag or ""
    return PoppedMessage(
        "orders", "g1", 2, 7, message.body, message.key, tag, properties, 5, 6, "h", 1, 9
    )


def refused(message: wire.Message) -> Code:
    with pytest.raises(Refused) as told:
        sent_of(message, "orders")
    return told.value.status_code


text = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)


@given(
    body=st.binary(min_size=1, max_size=100),
    user=st.dictionaries(text.filter(lambda one: one not in names.RESERVED), text, max_size=5),
    keys=st.lists(text, max_size=4),
    tag=st.none() | text,
    group=st.none() | text,
    trace=st.none() | text,
    gzip=st.booleans(),
)
def test_what_a_client_sends_is_what_a_client_receives(
    body: bytes,
    user: dict[str, str],
    keys: list[str],
    tag: str | None,
    group: str | None,
    trace: str | None,
    gzip: bool,
) -> None:
    given_ = {"tag": tag, "message_group": group, "trace_context": trace}
    system = {name: value for name, value in given_.items() if value is not None}
    encoding = wire.Encoding.GZIP if gzip else wire.Encoding.IDENTITY

    sent = sent_of(a_message(body, user, keys=keys, body_encoding=encoding, **system), "orders")
    found = received_of(popped(sent), Handed(TOPIC, 5, 60_000))

    told = found.system_properties
    assert (found.body, dict(found.user_properties)) == (body, user)
    assert list(told.keys) == keys
    assert (told.message_id, told.body_encoding) == (ID, encoding)
    for name, value in system.items():
        assert getattr(told, name) == value
    assert told.message_type == (MessageType.NORMAL if group is None else MessageType.FIFO)
    assert told.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


def test_the_receipt_comes_with_the_message() -> None:
    found = received_of(popped(sent_of(a_message(), "orders")), Handed(TOPIC, 5, 60_000))

    told = found.system_properties
    assert (told.receipt_handle, told.delivery_attempt, told.queue_id) == ("h", 1, 5)
    assert (told.queue_offset, told.invisible_duration.seconds) == (7, 60)
    assert milliseconds(told.born_timestamp) == 5
    assert milliseconds(told.store_timestamp) == 6


def test_a_message_that_no_client_of_rocketmq_sent_is_named_by_its_place() -> None:
    message = PoppedMessage("orders", "g1", 2, 7, b"x", "k", "t", {}, 5, 6, "h", 1, 9)

    told = received_of(message, Handed(TOPIC, 2, 1)).system_properties

    assert (told.message_id, list(told.keys), told.tag) == ("g1-orders-2-7", ["k"], "t")


def test_types_follow_from_properties() -> None:
    due = timestamp_of(1_700_000_000_123)
    delayed = sent_of(a_message(delivery_timestamp=due), "orders")
    urgent = sent_of(a_message(priority=7), "orders")
    half = sent_of(a_message(message_type=MessageType.TRANSACTION), "orders")

    assert delayed.message.delivery_unix_ms == 1_700_000_000_123
    assert (half.is_half, delayed.is_half, urgent.is_half) == (True, False, False)
    assert urgent.message.priority == 7
    told = received_of(popped(urgent, _SYS_MSG_PRIORITY_="7"), Handed(TOPIC, 0, 1))
    assert (told.system_properties.priority, told.system_properties.message_type) == (
        7,
        MessageType.PRIORITY,
    )
    told = received_of(popped(delayed, TIMER_OUT_MS="1700000000123"), Handed(TOPIC, 0, 1))
    assert told.system_properties.message_type == MessageType.DELAY
    assert milliseconds(told.system_properties.delivery_timestamp) == 1_700_000_000_123


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (a_message(b""), Code.MESSAGE_BODY_EMPTY),
        (a_message(b"x" * (4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (a_message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (a_message(message_id="x" * 129), Code.ILLEGAL_MESSAGE_ID),
        (a_message(user={"UNIQ_KEY": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (a_message(user={"": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (a_message(user={str(n): "" for n in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (a_message(user={"n": "x" * 16_384}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (a_message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (a_message(tag=""), Code.ILLEGAL_MESSAGE_TAG),
        (a_message(keys=["a", "\n"]), Code.ILLEGAL_MESSAGE_KEY),
        (a_message(message_group="x" * 65), Code.ILLEGAL_MESSAGE_GROUP),
        (a_message(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (
            a_message(priority=1, message_group="g"),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (a_message(lite_topic="t"), Code.NOT_IMPLEMENTED),
        (a_message(message_type=MessageType.LITE), Code.NOT_IMPLEMENTED),
        (
            a_message(message_type=MessageType.FIFO),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (
            a_message(message_group="g", delivery_timestamp=timestamp_of(5)),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (
            a_message(message_group="g", message_type=MessageType.TRANSACTION),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (
            a_message(body_digest=wire.Digest(type=wire.DigestType.MD5, checksum="00")),
            Code.MESSAGE_CORRUPTED,
        ),
    ],
)
def test_a_message_that_is_wrong_is_refused_with_its_own_code(
    message: wire.Message, code: Code
) -> None:
    assert refused(message) == code


def test_digests_are_compared_and_crc32_is_passed_over() -> None:
    digests = [
        wire.Digest(type=wire.DigestType.MD5, checksum=hashlib.md5(b"x").hexdigest()),
        wire.Digest(type=wire.DigestType.SHA1, checksum=hashlib.sha1(b"x").hexdigest().upper()),
        wire.Digest(type=wire.DigestType.CRC32, checksum=f"{zlib.crc32(b'y')}"),
    ]
    for digest in digests:
        assert sent_of(a_message(b"x", body_digest=digest), "orders").message.body == b"x"


def test_a_half_message_has_a_digest_for_the_producer_that_is_asked() -> None:
    half = HalfMessage("tx", "k", "orders", b"x", "a", None, {names.UNIQ_KEY: ID, "n": "1"})

    found = half_of(half, TOPIC)

    told = found.system_properties
    assert told.message_type == MessageType.TRANSACTION
    assert (told.message_id, bool(told.body_digest.checksum)) == (ID, True)
    assert dict(found.user_properties) == {"n": "1"}


@given(st.integers(-(10**12), 10**15))
def test_times_come_back_to_the_millisecond(ms: int) -> None:
    assert milliseconds(timestamp_of(ms)) == ms
    if abs(ms) < 10**11:
        assert milliseconds(duration_of(ms)) == ms


def test_names_are_full_by_the_resource_or_else_by_the_header() -> None:
    assert topic_of(Resource(name="orders"), "").full == "orders"
    assert topic_of(Resource(name="orders"), "shop").full == "shop%orders"
    assert topic_of(Resource(resource_namespace="pub", name="orders"), "shop").full == "pub%orders"
    assert group_of(Resource(name="work"), "shop").full == "shop%work"
    assert topic_of(Resource(name="%DLQ%work"), "shop").full == "%DLQ%shop%work"


@pytest.mark.parametrize("name", ["", "a b", "x" * 200, "../x", ".", "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(Refused) as topic:
        topic_of(Resource(name=name), "")
    with pytest.raises(Refused) as group:
        group_of(Resource(name=name), "")

    assert topic.value.status_code == Code.ILLEGAL_TOPIC
    assert group.value.status_code == Code.ILLEGAL_CONSUMER_GROUP


def test_names_of_the_system_are_forbidden() -> None:
    with pytest.raises(ForbiddenError):
        topic_of(Resource(name="RMQ_SYS_TRACE_TOPIC"), "")


def test_filters_are_read_as_they_are_everywhere() -> None:
    topic = topic_of(TOPIC, "")
    tags = FilterExpression(type=FilterType.TAG, expression="a || b")
    assert subscription_of(topic, tags).filter.expression == "a || b"
    assert subscription_of(topic, FilterExpression()).filter.expression == "*"
    sql = FilterExpression(type=FilterType.SQL, expression="n > 1")
    assert subscription_of(topic, sql).filter.type == "SQL92"
    with pytest.raises(Refused) as told:
        subscription_of(topic, FilterExpression(type=FilterType.SQL, expression="n >"))
    assert told.value.status_code == Code.ILLEGAL_FILTER_EXPRESSION
