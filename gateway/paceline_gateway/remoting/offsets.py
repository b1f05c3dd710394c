"""Where consumer groups stand, and where queues begin and end: codes 14, 15, 29, 30, 31."""

import logging

from paceline.errors import (
    GroupNotFoundError,
    LockFencedError,
    NotFoundError,
    OffsetMovedBackError,
    OffsetOutOfRangeError,
)
from paceline.wire.calls import offsets as wire
from paceline.wire.names import RETRY_PREFIX
from paceline_gateway.remoting.call import CALL_MS, Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command

log = logging.getLogger("paceline.gateway")

_PASSED = (OffsetMovedBackError, OffsetOutOfRangeError, LockFencedError)
"""Why a commit may be refused in everyday life: somebody else is further, or has the queue now."""


async def query_consumer_offset(call: Call) -> Command:
    """14. A group that has never committed starts at 0 while that is still there: else a consumer
    that begins at the end would pass over what was sent before it came."""
    request = call.request
    group, topic = fields.text(request, "consumerGroup"), fields.text(request, "topic")
    queue = wire.QueueOf(topic=topic, queue=fields.integer(request, "queueId"))
    links, of = call.user.links, group_of(call)
    try:
        standing, _ = await links.call(
            of, wire.Offsets(group=group, queues=[queue]), timeout_ms=CALL_MS
        )
        offset = standing.offsets[0].offset
    except (GroupNotFoundError, NotFoundError):
        if not topic.startswith(RETRY_PREFIX):
            raise
        return _not_found(call, "no retry has been stored")
    if offset is None:
        ends, _ = await links.call(of, wire.Ends(queues=[queue]), timeout_ms=CALL_MS)
        if ends.queues[0].start > 0:
            return _not_found(call, "the group has never committed there")
        offset = 0
    return call.ok({"offset": str(offset)})


def _not_found(call: Call, why: str) -> Command:
    return call.request.answer(ResponseCode.QUERY_NOT_FOUND, remark=why)


async def update_consumer_offset(call: Call) -> Command:
    """15."""
    request = call.request
    await commit(
        call,
        fields.text(request, "consumerGroup"),
        fields.text(request, "topic"),
        fields.integer(request, "queueId"),
        fields.integer(request, "commitOffset"),
    )
    return call.ok()


async def commit(call: Call, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Commit an offset. One that is passed already, or out of range, is left as it is."""
    of = group_of(call)
    row = wire.CommitRow(
        topic=topic,
        queue=queue_id,
        offset=max(0, offset),
        token=call.user.locks.token_of(group, call.peer.client_id, topic, of, queue_id),
    )
    try:
        await call.user.links.call(of, wire.Commit(group=group, offsets=[row]), timeout_ms=CALL_MS)
    except _PASSED as error:
        log.info("commit_refused", extra={"consumer_group": group, "error": error.message})


async def max_offset(call: Call) -> Command:
    """30."""
    return call.ok({"offset": str((await _range(call)).end)})


async def min_offset(call: Call) -> Command:
    """31."""
    return call.ok({"offset": str((await _range(call)).start)})


async def _range(call: Call) -> wire.RangeRow:
    topic = fields.text(call.request, "topic")
    row = wire.QueueOf(topic=topic, queue=fields.integer(call.request, "queueId"))
    try:
        answer, _ = await call.user.links.call(
            group_of(call), wire.Ends(queues=[row]), timeout_ms=CALL_MS
        )
    except NotFoundError:
        if not topic.startswith(RETRY_PREFIX):
            raise
        return wire.RangeRow(topic_id=0, queue=row.queue, start=0, end=0)
    return answer.queues[0]


async def search_offset(call: Call) -> Command:
    """29: the first offset stored at a time or later."""
    request = call.request
    row = wire.QueueOf(
        topic=fields.text(request, "topic"), queue=fields.integer(request, "queueId")
    )
    asked = wire.Times(unix_ms=max(0, fields.integer(request, "timestamp")), queues=[row])
    answer, _ = await call.user.links.call(group_of(call), asked, timeout_ms=CALL_MS)
    return call.ok({"offset": str(answer.queues[0].offset)})
