"""What clients say of their groups, and ask about them: codes 34, 35, 38, 46."""

from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command, lenient_json
from paceline_gateway.remoting.codec.heartbeats import read_filter, read_heartbeat
from paceline_gateway.remoting.codec.routes import json_of


async def heartbeat(call: Call) -> Command:
    """34."""
    await call.user.groups.heard(call.peer, read_heartbeat(bytes(call.request.body)))
    return call.ok()


async def unregister(call: Call) -> Command:
    """35."""
    client_id = fields.text(call.request, "clientID")
    if client_id == call.peer.client_id:
        user, of = call.user, call.request.fields
        if producers := of.get("producerGroup"):
            user.groups.left_producers(call.peer, producers)
        if consumers := of.get("consumerGroup"):
            user.groups.left_consumers(call.peer, consumers)
            user.locks.gone(consumers, client_id)
    return call.ok()


async def consumer_ids(call: Call) -> Command:
    """38: all members, whatever door they came by, in the same order everywhere."""
    name = fields.text(call.request, "consumerGroup")
    group = call.user.groups.group(name)
    ids = [] if group is None else group.ids
    if not ids:
        members = await call.user.cluster.admin.consumer_groups.members_of(name)
        ids = sorted(row["client_id"] for row in members["members"])
    if not ids:
        return call.request.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"no consumer of group {name} is connected"
        )
    return call.ok(body=json_of({"consumerIdList": ids}))


async def check_client_config(call: Call) -> Command:
    """46: whether an expression can be read."""
    document = lenient_json(bytes(call.request.body))
    data = document.get("subscriptionData") if isinstance(document, dict) else None
    if isinstance(data, dict):
        read_filter(data.get("expressionType"), data.get("subString"))
    return call.ok()
