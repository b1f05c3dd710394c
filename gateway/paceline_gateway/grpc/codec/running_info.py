"""Pure: what a consumer tells of itself (ConsumerRunningInfo), and what is known without asking it.

Consumers by remoting answer in JSON, with objects for keys of maps, as Java's fastjson writes them.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, field

from paceline.errors import BadRequestError, PeerError
from paceline.filters import of_told
from paceline_gateway.grpc.codec.values import expression_of
from paceline_gateway.grpc.stubs import admin_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Broker, MessageQueue, Resource
from paceline_gateway.remoting.codec.frames import json_with_texts_for_keys

_I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Queue(msgspec.Struct, rename="camel"):
    """MessageQueue."""

    topic: str
    broker_name: str
    queue_id: _I32


class _ProcessQueue(msgspec.Struct, rename="camel"):
    """ProcessQueueInfo; fields are called as in the answer."""

    commit_offset: _I64 = 0
    cached_msg_min_offset: _I64 = 0
    cached_msg_max_offset: _I64 = 0
    cached_msg_count: _I32 = 0
    cached_msg_size_in_mib: _I32 = field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: _I64 = 0
    transaction_msg_max_offset: _I64 = 0
    transaction_msg_count: _I32 = 0
    locked: bool = False
    try_unlock_times: _I64 = 0
    last_lock_timestamp: _I64 = 0
    dropped: bool = field(default=False, name="droped")
    last_pull_timestamp: _I64 = 0
    last_consume_timestamp: _I64 = 0


class _Status(msgspec.Struct):
    """ConsumeStatus; fields are called as in the answer."""

    receive_rt: float = field(default=0.0, name="pullRT")
    receive_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: _I64 = field(default=0, name="consumeFailedMsgs")


class _Subscription(msgspec.Struct, rename="camel"):
    """SubscriptionData."""

    topic: str
    sub_string: str | None = None
    expression_type: str | None = None


class _Told(msgspec.Struct, rename="camel"):
    """ConsumerRunningInfo."""

    properties: dict[str, Any] | None = None
    subscription_set: list[_Subscription] | None = None
    mq_table: dict[str, _ProcessQueue] | None = None
    status_table: dict[str, _Status] | None = None
    jstack: str | None = None


class RunningInfo(NamedTuple):
    """What a consumer by remoting has told."""

    info: wire.ConsumerRunningInfo
    stacks: str
    """Of its threads; empty: it was not asked for them, or has none to tell."""


def read_running_info(body: bytes) -> RunningInfo:
    """PeerError: the client's answer cannot be read."""
    try:
        told = msgspec.convert(json_with_texts_for_keys(body), _Told, strict=False)
        queues = [
            _queue_item(msgspec.json.decode(key, type=_Queue), row)
            for key, row in (told.mq_table or {}).items()
        ]
    except (BadRequestError, msgspec.MsgspecError) as error:
        raise PeerError(f"what the client told of itself cannot be read: {error}") from error
    info = wire.ConsumerRunningInfo(
        properties={name: str(value) for name, value in (told.properties or {}).items()},
        subscriptions={
            row.topic: expression_of(row.expression_type or "", row.sub_string or "*")
            for row in told.subscription_set or ()
        },
        message_queue_table=queues,
        consume_status_table={
            topic: wire.ConsumeStatus(**msgspec.structs.asdict(row))
            for topic, row in (told.status_table or {}).items()
        },
    )
    return RunningInfo(info, told.jstack or "")


def known_info(row: Mapping[str, Any], *, is_ordered: bool) -> wire.ConsumerRunningInfo:
    """Of a consumer that is not asked: what it has told brokers. `is_ordered`: by its group."""
    filters: Mapping[str, str] = row.get("filters") or {}
    topics: Iterable[str] = row["topics"]
    wanted = {topic: of_told(filters.get(topic, "")) for topic in topics}
    return wire.ConsumerRunningInfo(
        properties={
            "PROP_CLIENT_VERSION": row["version"],
            "PROP_CONSUMER_START_TIMESTAMP": str(row["since_unix_ms"]),
            "PROP_CONSUMEORDERLY": str(is_ordered or row.get("mode") == "ordered").lower(),
        },
        subscriptions={
            topic: expression_of(each.type, each.expression) for topic, each in wanted.items()
        },
    )


def _queue_item(queue: _Queue, row: _ProcessQueue) -> wire.MessageQueueItem:
    return wire.MessageQueueItem(
        message_queue=MessageQueue(
            topic=Resource(name=queue.topic),
            id=queue.queue_id,
            broker=Broker(name=queue.broker_name),
        ),
        process_queue_info=wire.ProcessQueueInfo(**msgspec.structs.asdict(row)),
    )
