"""What mqadmin and dashboards ask of brokers and name servers.

Each question goes to every broker of a cluster, so a broker group answers for itself alone. What
would change a node's settings is refused: by that code RocketMQ's brokers were taken over
(CVE-2023-33246).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson

from paceline.errors import BadRequestError, GroupNotFoundError, TopicNotFoundError
from paceline.types import ConsumerGroupName, GroupName, TopicName
from paceline.wire.calls import offsets as wire
from paceline_gateway.remoting.call import CALL_MS, Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command, lenient_json
from paceline_gateway.remoting.codec.routes import json_of
from paceline_gateway.remoting.state.clients import Clients

Handler = Callable[[Call], Awaitable[Command]]

_TYPE = "message.type"
_SETTINGS = {
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "retryQueueNums": "retry_queue_nums",
    "retryMaxTimes": "retry_max_times",
}
"""SubscriptionGroupConfig's names of settings of consumer groups."""


async def refuse_settings(call: Call) -> Command:
    """25, 318, 1009."""
    return call.request.answer(
        ResponseCode.NO_PERMISSION,
        remark="settings of nodes are not changed over the network: change the node's file and"
        " start it again; of a broker group: paceline group set",
    )


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
    view = call.user.cluster.cluster.view
    if view is None or ConsumerGroupName(name) not in view.consumer_groups:
        await admin.create(name, **settings)
    else:
        await admin.alter(name, **settings)
    return call.ok()


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
            "lastUpdateTimestamp": 0,
            "maxOffset": row.end,
            "minOffset": row.start,
        }
        for row in rows
    }
    return call.ok(body=b'{"offsetTable":' + _by_queue(group_of(call), table) + b"}")


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
    answer, _ = await call.user.links.call(
        group_of(call), wire.Lag(group=group), timeout_ms=CALL_MS
    )
    clock = call.user.cluster.cluster.clock
    table = {
        (row.topic, row.queue): {
            "brokerOffset": row.end,
            "consumerOffset": row.start if row.offset is None else row.offset,
            "lastTimestamp": max(0, clock.unix_ms() - row.behind_ms),
            "pullOffset": row.start if row.offset is None else row.offset,
        }
        for row in answer.queues
        if not topic or row.topic == topic
    }
    body = b'{"consumeTps":0.0,"offsetTable":' + _by_queue(group_of(call), table) + b"}"
    return call.ok(body=body)


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
    return call.ok(body=b'{"offsetTable":' + _by_queue(group_of(call), table) + b"}")


def _by_queue(group: GroupName, table: Mapping[tuple[str, int], Any]) -> bytes:
    """A map with MessageQueues for keys, as Java's fastjson writes and reads it."""
    pairs = (
        json_of({"brokerName": group, "queueId": queue, "topic": topic})
        + b":"
        + orjson.dumps(value)
        for (topic, queue), value in table.items()
    )
    return b"{" + b",".join(pairs) + b"}"


async def runtime_info(call: Call) -> Command:
    """28."""
    view = call.user.cluster.cluster.view
    group = None if view is None else view.groups.get(group_of(call))
    master = None if group is None else group.master
    table = {
        "brokerVersionDesc": "paceline gateway",
        "brokerActive": str(master is not None).lower(),
        "msgPutTotalTodayNow": "0",
        "msgGetTotalTodayNow": "0",
        "putTps": "0.0 0.0 0.0",
        "getTransferredTps": "0.0 0.0 0.0",
    }
    return call.ok(body=json_of({"table": table}))


async def consumers_of_topic(call: Call) -> Command:
    """300: groups that have members here which subscribe to the topic."""
    topic = fields.text(call.request, "topic")
    return call.ok(body=json_of({"groupList": call.user.groups.of_topic(topic)}))


class Connections:
    """Handlers that know who is connected."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def of_group(self, call: Call) -> Command:
        """203: members of a group that are connected to this gateway."""
        name = fields.text(call.request, "consumerGroup")
        group = call.user.groups.group(name)
        if group is None:
            return call.request.answer(
                ResponseCode.CONSUMER_NOT_ONLINE,
                remark=f"no consumer of group {name} is connected to this gateway",
            )
        members = list(group.members.values())
        peers = self._clients.of_group(name)
        return call.ok(
            body=json_of(
                {
                    "connectionSet": [
                        {
                            "clientAddr": peer.source,
                            "clientId": peer.client_id,
                            "language": peer.language,
                            "version": peer.version,
                        }
                        for peer in peers
                    ],
                    "consumeFromWhere": members[0].told.from_where,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "BROADCASTING"
                    if members[0].told.is_broadcasting
                    else "CLUSTERING",
                    "subscriptionTable": {
                        topic: {
                            "expressionType": wanted.type,
                            "subString": wanted.expression,
                            "topic": topic,
                        }
                        for topic, wanted in members[0].told.filters.items()
                    },
                }
            )
        )


AT_NAME_SERVER: Mapping[int, Handler] = {
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.UPDATE_NAMESRV_CONFIG: refuse_settings,
    RequestCode.UPDATE_CONTROLLER_CONFIG: refuse_settings,
}


def at_broker(clients: Clients) -> Mapping[int, Handler]:
    """Handlers by code. `clients`: who is connected to this gateway."""
    connections = Connections(clients)
    return {
        RequestCode.UPDATE_BROKER_CONFIG: refuse_settings,
        RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
        RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
        RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
        RequestCode.GET_CONSUME_STATS: consume_stats,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
        RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: consumers_of_topic,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.of_group,
    }
