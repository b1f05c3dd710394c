"""Who is connected to this gateway, as mqadmin asks; and questions to clients (223, 307, 309).

A gateway knows the clients of the user who asks, at his address; `paceline client list` shows all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import orjson

from paceline.errors import NotFoundError, PacelineError
from paceline.platform.ports import Buffer
from paceline_gateway.remoting.call import Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command, object_in
from paceline_gateway.remoting.codec.message_ids import offset_in, place_of
from paceline_gateway.remoting.codec.routes import json_of
from paceline_gateway.remoting.codec.store_format import encode_message
from paceline_gateway.remoting.queries import message_row, stored_row
from paceline_gateway.remoting.state.groups import ASK_MS
from paceline_gateway.remoting.state.peers import Peer

log = logging.getLogger("paceline.gateway")

_STATUS_MS = 2_500
_SIGNED = ("AccessKey", "Signature", "SecurityToken")
"""Of whoever asks: no other client's business."""


async def groups_of_topic(call: Call) -> Command:
    """300: groups that have members here which subscribe to the topic."""
    topic = fields.text(call.request, "topic")
    return call.ok(body=json_of({"groupList": call.user.groups.of_topic(topic)}))


async def of_group(call: Call) -> Command:
    """203: members of a consumer group."""
    name = fields.text(call.request, "consumerGroup")
    group = call.user.groups.group(name)
    if group is None:
        return _nobody(call, f"no consumer of group {name} is connected to this gateway")
    told = next(iter(group.members.values())).told
    subscriptions = {
        topic: {"expressionType": wanted.type, "subString": wanted.expression, "topic": topic}
        for topic, wanted in told.filters.items()
    }
    document = {
        "connectionSet": [_connection(peer) for peer in group.peers()],
        "consumeFromWhere": told.from_where,
        "consumeType": "CONSUME_PASSIVELY" if told.is_push else "CONSUME_ACTIVELY",
        "messageModel": "BROADCASTING" if told.is_broadcasting else "CLUSTERING",
        "subscriptionTable": subscriptions,
    }
    return call.ok(body=json_of(document))


async def of_producers(call: Call) -> Command:
    """204: producers of a group."""
    name = fields.text(call.request, "producerGroup")
    peers = call.user.groups.producers_of(name)
    if not peers:
        return _nobody(call, f"no producer of group {name} is connected to this gateway")
    return call.ok(body=json_of({"connectionSet": [_connection(peer) for peer in peers]}))


async def all_producers(call: Call) -> Command:
    """328."""
    now = call.user.cluster.cluster.clock.unix_ms()
    table = {
        name: [
            {
                "clientId": peer.client_id,
                "language": peer.language,
                "lastUpdateTimestamp": now,
                "remoteIP": peer.address,
                "version": peer.version,
            }
            for peer in call.user.groups.producers_of(name)
        ]
        for name in call.user.groups.producers
    }
    return call.ok(body=json_of({"data": table}))


def _connection(peer: Peer) -> dict[str, object]:
    return {
        "clientAddr": peer.address,
        "clientId": peer.client_id,
        "language": peer.language,
        "version": peer.version,
    }


def _nobody(call: Call, why: str) -> Command:
    return call.request.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=why)


async def ask_consumer(call: Call) -> Command:
    """307: what a consumer tells of itself."""
    return await _forward(call, {}, call.request.body)


async def consume_directly(call: Call) -> Command:
    """309: a consumer is given a message, beside those that it gets by itself; what it made of it.
    Its group is as far as it was."""
    message_id = fields.text(call.request, "msgId")
    group = group_of(call)
    row = await message_row(call, str(place_of(offset_in(message_id), group)))
    body = encode_message(stored_row(row), call.peer.store_host)
    return await _forward(call, {"brokerName": str(group)}, body)


async def _forward(call: Call, added: Mapping[str, str], body: Buffer) -> Command:
    """Ask the consumer that a request names, and answer as it does."""
    request = call.request
    name, client_id = fields.text(request, "consumerGroup"), fields.text(request, "clientId")
    group = call.user.groups.group(name)
    peer = None if group is None else group.peer(client_id)
    if peer is None:
        raise NotFoundError(f"client {client_id} of group {name} is not connected to this gateway")
    told = {name: text for name, text in request.fields.items() if name not in _SIGNED}
    answer = await peer.ask(request.code, {**told, **added}, body, timeout_ms=ASK_MS)
    return request.answer(answer.code, answer.fields, answer.body, remark=answer.remark)


async def consumer_offsets(call: Call) -> Command:
    """223: how far the members of a group, or one of them, are with a topic, as they say (221)."""
    request = call.request
    name, topic = fields.text(request, "group"), fields.text(request, "topic")
    wanted = request.fields.get("clientAddr") or ""
    group = call.user.groups.group(name)
    peers = [] if group is None else group.peers()
    if not peers:
        return _nobody(call, f"no consumer of group {name} is connected to this gateway")
    asked = [peer for peer in peers if wanted in ("", peer.client_id)]
    told = await asyncio.gather(*(_offsets_of(each, name, topic) for each in asked))
    tables = (
        orjson.dumps(peer.client_id) + b":" + object_in(bytes(answer.body), "messageQueueTable")
        for peer, answer in zip(asked, told, strict=True)
        if answer is not None and answer.code == ResponseCode.SUCCESS
    )
    return call.ok(body=b'{"consumerTable":{' + b",".join(tables) + b"}}")


async def _offsets_of(peer: Peer, group: str, topic: str) -> Command | None:
    """None: it does not answer, which must not hide the others."""
    asking = {"topic": topic, "group": group}
    try:
        return await peer.ask(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, asking, timeout_ms=_STATUS_MS
        )
    except PacelineError as error:
        log.info("consumer_silent", extra={"client": peer.client_id, "error": error.message})
        return None


AT_BROKER: Mapping[int, Callable[[Call], Awaitable[Command]]] = {
    RequestCode.GET_CONSUMER_CONNECTION_LIST: of_group,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: of_producers,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups_of_topic,
    RequestCode.GET_CONSUMER_RUNNING_INFO: ask_consumer,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_offsets,
}
