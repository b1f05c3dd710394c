"""Who is connected to this gateway, as mqadmin asks; and questions to a client (307).

A gateway knows the clients of the user who asks, at his address; `paceline client list` shows all.
"""

from collections.abc import Awaitable, Callable, Mapping

from paceline.errors import NotFoundError
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.routes import json_of
from paceline_gateway.remoting.state.peers import Peer

_ASK_MS = 10_000


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
    request = call.request
    name, client_id = fields.text(request, "consumerGroup"), fields.text(request, "clientId")
    group = call.user.groups.group(name)
    peers = [] if group is None else group.peers()
    peer = next((peer for peer in peers if peer.client_id == client_id), None)
    if peer is None:
        raise NotFoundError(f"client {client_id} of group {name} is not connected to this gateway")
    signed = ("AccessKey", "Signature")
    told = {name: text for name, text in request.fields.items() if name not in signed}
    answer = await peer.ask(request.code, told, request.body, timeout_ms=_ASK_MS)
    return request.answer(answer.code, answer.fields, answer.body, remark=answer.remark)


AT_BROKER: Mapping[int, Callable[[Call], Awaitable[Command]]] = {
    RequestCode.GET_CONSUMER_CONNECTION_LIST: of_group,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: of_producers,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups_of_topic,
    RequestCode.GET_CONSUMER_RUNNING_INFO: ask_consumer,
}
