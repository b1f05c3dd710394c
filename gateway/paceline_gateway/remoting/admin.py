"""What mqadmin and dashboards do with topics and consumer groups.

Each question goes to every broker of a cluster, so a broker group answers for itself alone.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson

from paceline.errors import (
    BadRequestError,
    GroupNotFoundError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.queues import QueueKey
from paceline.types import ConsumerGroupName, GroupName, QueueId, TopicName
from paceline.wire.calls import offsets as wire
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline.wire.topics import TopicView
from paceline_gateway.remoting.call import CALL_MS, Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import RequestCode
from paceline_gateway.remoting.codec.frames import Command, lenient_json
from paceline_gateway.remoting.codec.routes import json_of
from paceline_gateway.remoting.codec.store_format import StoredBatch

Handler = Callable[[Call], Awaitable[Command]]

_TYPE = "message.type"
_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
_ENTRIES_MAX = 64
_GROUPS_MAX = 1000
_SETTINGS = {
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "retryQueueNums": "retry_queue_nums",
    "retryMaxTimes": "retry_max_times",
}
"""SubscriptionGroupConfig's names of settings of consumer groups."""
_ATTRIBUTES = {"message.model": "message_model", "consume.from.where": "consume_from_where"}
"""Settings that RocketMQ's groups do not have, as attributes."""


async def update_topic(call: Call) -> Command:
    """17: makes or changes the topic's queues in this broker group."""
    request, admin = call.request, call.user.cluster.admin.topics
    topic, group = fields.text(request, "topic"), str(group_of(call))
    read = {group: fields.integer(request, "readQueueNums", 8)}
    write = {group: fields.integer(request, "writeQueueNums", 8)}
    perm = fields.integer(request, "perm", 6)
    type_, labels = _attributes(request.fields.get("attributes", ""))
    known = call.user.cluster.cluster.topic(topic)
    if known is None:
        await admin.create(
            topic,
            queues=write,
            read_queues=read if read != write else None,
            perm=perm,
            message_type=type_ or "NORMAL",
            attributes={name: value for name, value in labels.items() if value is not None},
        )
    else:
        await admin.alter(
            topic,
            read_queues=read,
            write_queues=write,
            perm=perm,
            message_type=type_,
            attributes=labels,
        )
    return call.ok()


def _attributes(text: str) -> tuple[str | None, dict[str, str | None]]:
    """Message type and labels in "+name=value,-name"."""
    labels: dict[str, str | None] = {}
    for each in filter(None, text.split(",")):
        name, _, value = each[1:].partition("=")
        if each[0] not in "+-" or not name:
            raise BadRequestError(f"{each[:64]} is no attribute: +NAME=VALUE or -NAME")
        labels[name.strip()] = value.strip() if each[0] == "+" else None
    return labels.pop(_TYPE, None), labels


async def topic_config(call: Call) -> Command:
    """351."""
    topic = fields.text(call.request, "topic")
    found = call.user.cluster.cluster.topic(topic)
    if found is None:
        raise await call.user.cluster.cluster.no_topic(TopicName(topic))
    return call.ok(body=json_of(_topic_row(found, group_of(call))))


async def topic_configs(call: Call) -> Command:
    """21: of all topics with a queue here."""
    view, group = call.user.cluster.cluster.view, group_of(call)
    topics = [] if view is None else [each for each in view.topics.values() if group in each.queues]
    table = {each.topic: _topic_row(each, group) for each in topics}
    return call.ok(body=json_of({"dataVersion": _VERSION, "topicConfigTable": table}))


def _topic_row(topic: TopicView, group: GroupName) -> dict[str, Any]:
    """TopicConfig."""
    return {
        "attributes": {**topic.attributes, _TYPE: topic.message_type},
        "order": False,
        "perm": topic.perm,
        "readQueueNums": topic.read_queues.get(group, 0),
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.topic,
        "topicSysFlag": 0,
        "writeQueueNums": topic.write_queues.get(group, 0),
    }


async def delete_topic(call: Call) -> Command:
    """215 at each broker, then 216 at the name server: it is gone with the first."""
    topic = fields.text(call.request, "topic")
    if call.user.cluster.cluster.topic(topic) is not None:
        try:
            await call.user.cluster.admin.topics.delete(topic)
        except TopicNotFoundError:
            return call.ok()  # another broker was asked before
    return call.ok()


async def update_group(call: Call) -> Command:
    """200: makes or changes a consumer group."""
    document = lenient_json(bytes(call.request.body))
    if not isinstance(document, dict) or not isinstance(document.get("groupName"), str):
        raise BadRequestError("a consumer group needs groupName", field="groupName")
    name, admin = document["groupName"], call.user.cluster.admin.consumer_groups
    settings = {ours: document[theirs] for theirs, ours in _SETTINGS.items() if theirs in document}
    settings |= _settings_in(document.get("attributes"))
    view = call.user.cluster.cluster.view
    if view is None or ConsumerGroupName(name) not in view.consumer_groups:
        await admin.create(name, **settings)
    else:
        await admin.alter(name, **settings)
    return call.ok()


def _settings_in(attributes: Any) -> dict[str, str]:
    """Those of `{"+message.model": "BROADCASTING"}`; others are passed over."""
    given = attributes if isinstance(attributes, dict) else {}
    return {
        ours: str(given[f"+{theirs}"]).lower()
        for theirs, ours in _ATTRIBUTES.items()
        if f"+{theirs}" in given
    }


async def group_config(call: Call) -> Command:
    """352."""
    group = await call.user.cluster.admin.consumer_groups.get(fields.text(call.request, "group"))
    return call.ok(body=json_of(_group_row(group.group, group.settings)))


async def group_configs(call: Call) -> Command:
    """201."""
    groups = await call.user.cluster.admin.consumer_groups.all()
    table = {each.group: _group_row(each.group, each.settings) for each in groups}
    return call.ok(body=json_of({"dataVersion": _VERSION, "subscriptionGroupTable": table}))


def _group_row(name: str, settings: ConsumerGroupSettings) -> dict[str, Any]:
    """SubscriptionGroupConfig."""
    return {
        **{theirs: getattr(settings, ours) for theirs, ours in _SETTINGS.items()},
        "attributes": {
            **settings.attributes,
            **{theirs: getattr(settings, ours).upper() for theirs, ours in _ATTRIBUTES.items()},
        },
        "brokerId": 0,
        "consumeTimeoutMinute": settings.consume_timeout_minute,
        "groupName": name,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": settings.notify_consumer_ids_changed_enable,
        "whichBrokerWhenConsumeSlowly": settings.which_broker_when_consume_slowly,
    }


async def delete_group(call: Call) -> Command:
    """207."""
    try:
        await call.user.cluster.admin.consumer_groups.delete(fields.text(call.request, "groupName"))
    except GroupNotFoundError:
        return call.ok()  # another broker was asked before
    return call.ok()


async def topic_stats(call: Call) -> Command:
    """202: first and next offset of the topic's queues here."""
    topic = fields.text(call.request, "topic")
    rows = await _ranges(call, topic)
    table = {
        (topic, row.queue): {
            "lastUpdateTimestamp": await _last_unix_ms(call, topic, row),
            "maxOffset": row.end,
            "minOffset": row.start,
        }
        for row in rows
    }
    return call.ok(body=b'{"offsetTable":' + _by_queue(group_of(call), table) + b"}")


async def _last_unix_ms(call: Call, topic: str, row: wire.RangeRow) -> int:
    """When the last message of a queue was stored; 0: it has none."""
    if row.end <= row.start:
        return 0
    batch = await _batch(call, topic, row.queue, row.end - 1)
    return 0 if batch is None else batch.view.header.store_unix_ms


async def _batch(call: Call, topic: str, queue: int, offset: int) -> StoredBatch | None:
    """The batch of the message at an offset; None: it is not there any more, or may not be read."""
    found = call.user.cluster.cluster.topic(topic)
    if found is None:
        return None
    key = QueueKey(found.topic_id, group_of(call), QueueId(queue))
    read = await call.user.reader.read(key, offset, topic=topic, wait_ms=0)
    return read.batches[0] if read.batches else None


async def queue_entries(call: Call) -> Command:
    """321: where messages of a queue lie."""
    request = call.request
    topic, queue = fields.text(request, "topic"), fields.integer(request, "queueId")
    offset = max(0, fields.integer(request, "index"))
    count = max(1, min(_ENTRIES_MAX, fields.integer(request, "count", 1)))
    row = next((row for row in await _ranges(call, topic) if row.queue == queue), None)
    if row is None:
        raise QueueNotFoundError(f"topic {topic} has no queue {queue} here", queue=queue)
    found: list[dict[str, Any]] = []
    batch = await _batch(call, topic, queue, offset) if offset < row.end else None
    if batch is not None:
        header = batch.view.header
        first = max(0, offset - header.base_queue_offset)
        for number in range(first, min(first + count, header.record_count)):
            message = batch.message(number)
            found.append(
                {
                    "eval": False,
                    "physicOffset": message.physical_offset,
                    "physicSize": len(message.body),
                    "tagsCode": 0,
                }
            )
    document = {"maxQueueIndex": row.end, "minQueueIndex": row.start, "queueData": found}
    return call.ok(body=json_of(document))


async def _ranges(call: Call, topic: str) -> Iterable[wire.RangeRow]:
    cluster, group = call.user.cluster.cluster, group_of(call)
    found = cluster.topic(topic)
    if found is None:
        raise await cluster.no_topic(TopicName(topic))
    queues = [wire.QueueOf(topic=topic, queue=queue) for queue in range(found.queues.get(group, 0))]
    if not queues:
        return []
    answer, _ = await call.user.links.call(group, wire.Ends(queues=queues), timeout_ms=CALL_MS)
    return answer.queues


async def consume_stats(call: Call) -> Command:
    """208: how far a group is behind on each queue here."""
    group, topic = fields.text(call.request, "consumerGroup"), call.request.fields.get("topic")
    return call.ok(body=_stats(call, await _lag(call, group, times=True), topic or None))


async def all_consume_stats(call: Call) -> Command:
    """317: of each group that has committed anything here."""
    groups = await call.user.cluster.admin.consumer_groups.all()
    found, behind = [], 0
    for group in groups[:_GROUPS_MAX]:
        rows = await _lag(call, group.group, times=True)
        if rows:
            name = orjson.dumps(group.group)
            found.append(b"{" + name + b":[" + _stats(call, rows, None) + b"]}")
            behind += sum(row.end - _offset(row) for row in rows)
    body = b'{"consumeStatsList":[' + b",".join(found) + b'],"totalDiff":%d}' % behind
    return call.ok(body=body)


async def _lag(call: Call, group: str, *, times: bool = False) -> list[wire.LagRow]:
    answer, _ = await call.user.links.call(
        group_of(call), wire.Lag(group=group, times=times), timeout_ms=CALL_MS
    )
    return answer.queues


def _offset(row: wire.LagRow) -> int:
    return row.start if row.offset is None else row.offset


def _stats(call: Call, rows: Iterable[wire.LagRow], topic: str | None) -> bytes:
    """ConsumeStats."""
    table = {
        (row.topic, row.queue): {
            "brokerOffset": row.end,
            "consumerOffset": _offset(row),
            "lastTimestamp": row.consumed_unix_ms or 0,
            "pullOffset": _offset(row),
        }
        for row in rows
        if topic is None or row.topic == topic
    }
    return b'{"consumeTps":0.0,"offsetTable":' + _by_queue(group_of(call), table) + b"}"


async def topics_of_group(call: Call) -> Command:
    """343: topics that a group has committed on here, or that its members here subscribe to."""
    name = fields.text(call.request, "group")
    group = call.user.groups.group(name)
    told = set() if group is None else group.topics()
    topics = sorted(told | {row.topic for row in await _lag(call, name)})
    return call.ok(body=json_of({"topicList": topics}))


async def reset_offset(call: Call) -> Command:
    """222: move a group to the first message stored at a time, or to the end (-1)."""
    request = call.request
    group, topic = fields.text(request, "group"), fields.text(request, "topic")
    unix_ms = fields.integer(request, "timestamp", -1)
    reset = wire.Reset(group=group, topic=topic)
    reset.back_only = not fields.flag(request, "isForce", default=True)
    if unix_ms < 0:
        reset.to = "last"
    else:
        reset.unix_ms = unix_ms
    answer, _ = await call.user.links.call(group_of(call), reset, timeout_ms=CALL_MS)
    table = {(topic, row.queue): row.offset for row in answer.queues if row.offset is not None}
    body = b'{"offsetTable":' + _by_queue(group_of(call), table) + b"}"
    told = {"topic": topic, "group": group, "timestamp": str(unix_ms), "isForce": "true"}
    members = call.user.groups.group(group)
    for peer in () if members is None else members.peers():  # else they commit what they had
        peer.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, told, body)
    return call.ok(body=body)


def _by_queue(group: GroupName, table: Mapping[tuple[str, int], Any]) -> bytes:
    """A map with MessageQueues for keys, as Java's fastjson writes and reads it."""
    pairs = (
        json_of({"brokerName": group, "queueId": queue, "topic": topic})
        + b":"
        + orjson.dumps(value)
        for (topic, queue), value in table.items()
    )
    return b"{" + b",".join(pairs) + b"}"


AT_NAME_SERVER: Mapping[int, Handler] = {
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
}
AT_BROKER: Mapping[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: topic_configs,
    RequestCode.GET_TOPIC_CONFIG: topic_config,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: group_configs,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group_config,
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.QUERY_CONSUME_QUEUE: queue_entries,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: all_consume_stats,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: topics_of_group,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
}
