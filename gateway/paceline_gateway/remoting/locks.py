"""Queue locks of ordered consumers: codes 41 and 42.

A client names no fencing token; the gateway keeps the one of each lock that it has got for the
client, and names it with the client's commits and send-backs (R33). A client that goes on at
another gateway has its lock granted anew there, which fences what the first one still does.
"""

from collections.abc import Iterable

from paceline.errors import LockFencedError, LockHeldError
from paceline.wire.calls import locks as wire
from paceline.wire.calls.request import refused_rows
from paceline_gateway.remoting.call import CALL_MS, Call, group_of
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.heartbeats import QueueAsked, read_queues
from paceline_gateway.remoting.codec.routes import json_of
from paceline_gateway.remoting.state.locks import LEASE_MS


async def lock(call: Call) -> Command:
    """41: answers the queues that the client holds now."""
    group, client_id, asked = read_queues(bytes(call.request.body))
    call.peer.client_id = call.peer.client_id or client_id  # its next heartbeat may be due later
    queues = [queue for queue in asked if queue.broker_name == group_of(call)]
    held = await _held(call, group, client_id, queues) if queues else []
    return call.ok(body=json_of({"lockOKMQSet": _rows(held)}))


async def _held(
    call: Call, group: str, client_id: str, queues: list[QueueAsked]
) -> list[QueueAsked]:
    """Ask for their locks; those that the client has now."""
    locks, of = call.user.locks, group_of(call)
    rows = [
        wire.LockRow(
            topic=queue.topic,
            queue=queue.queue_id,
            token=locks.token_of(group, client_id, queue.topic, of, queue.queue_id),
        )
        for queue in queues
    ]
    locked = await _lock(call, group, client_id, rows)
    fenced = [index for index, row in enumerate(locked.queues) if row.code == LockFencedError.code]
    if fenced:  # the token is of a grant that has ended: a new one
        for index in fenced:
            rows[index].token = None
        again = await _lock(call, group, client_id, [rows[index] for index in fenced])
        for index, row in zip(fenced, again.queues, strict=True):
            locked.queues[index] = row
    held: list[QueueAsked] = []
    for queue, row in zip(queues, locked.queues, strict=True):
        key = (group, client_id, queue.topic, str(of), queue.queue_id)
        if row.code is None and row.token is not None:
            locks.held(key, (row.token[0], row.token[1]))
            held.append(queue)
        else:
            locks.lost(key)
    return held


async def _lock(call: Call, group: str, client_id: str, rows: list[wire.LockRow]) -> wire.Locked:
    request = wire.Lock(group=group, client_id=client_id, queues=rows, lease_ms=LEASE_MS)
    try:
        answer, _ = await call.user.links.call(group_of(call), request, timeout_ms=CALL_MS)
    except (LockHeldError, LockFencedError) as error:
        return refused_rows(wire.Locked, error)
    return answer


async def unlock(call: Call) -> Command:
    """42. What the client has got at another gateway is granted anew first, for its token."""
    group, client_id, asked = read_queues(bytes(call.request.body))
    locks, of = call.user.locks, group_of(call)
    queues = [queue for queue in asked if queue.broker_name == of]
    unknown = [
        queue
        for queue in queues
        if locks.token_of(group, client_id, queue.topic, of, queue.queue_id) is None
    ]
    if unknown:
        await _held(call, group, client_id, unknown)
    rows = []
    for queue in queues:
        token = locks.lost((group, client_id, queue.topic, str(of), queue.queue_id))
        if token is not None:
            rows.append(wire.LockRow(topic=queue.topic, queue=queue.queue_id, token=token))
    if rows:
        request = wire.Unlock(group=group, client_id=client_id, queues=rows)
        try:
            await call.user.links.call(of, request, timeout_ms=CALL_MS)
        except (LockHeldError, LockFencedError):
            return call.ok()  # somebody else has them: they are not this client's any more
    return call.ok()


def _rows(queues: Iterable[QueueAsked]) -> list[dict[str, object]]:
    return [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        for queue in queues
    ]
