"""Consumers that pull by offset: codes 11 and 361, with long polls, and offsets told on the way."""

from typing import NamedTuple

from paceline.consumer.fetch.fetched import Trouble
from paceline.errors import BadRequestError, DeadlineError, TopicNotFoundError
from paceline.filters import ALL, Filter
from paceline.queues import QueueKey
from paceline.types import QueueId, TopicName
from paceline.wire.names import RETRY_PREFIX
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import (
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    ResponseCode,
)
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.heartbeats import read_filter
from paceline_gateway.remoting.codec.store_format import encode_message
from paceline_gateway.remoting.offsets import commit
from paceline_gateway.remoting.state.queue_reader import Read

WAIT_MS_MAX = 20_000
"""RocketMQ's brokerSuspendMaxTimeMillis."""
MESSAGES_MAX = 1024
BYTES_MAX = 256 * 1024
"""RocketMQ's maxTransferBytesOnMessageInMemory; one message always goes."""


class Asked(NamedTuple):
    """A pull."""

    group: str
    topic: str
    queue_id: int
    offset: int
    limit: int
    wait_ms: int
    wanted: Filter
    commit_offset: int | None


def read_pull(call: Call) -> Asked:
    """BadRequestError; what a subscription's expression is wrong in is told as such."""
    request = call.request
    sys_flag = fields.integer(request, "sysFlag", 0)
    group, topic = fields.text(request, "consumerGroup"), fields.text(request, "topic")
    queue_id = fields.integer(request, "queueId")
    if not 0 <= queue_id < 2**16:
        raise BadRequestError("queueId must be 0 to 65535", field="queueId")
    wait_ms = 0
    if sys_flag & PULL_SUSPEND:
        wait_ms = max(0, min(WAIT_MS_MAX, fields.integer(request, "suspendTimeoutMillis", 0)))
    return Asked(
        group,
        topic,
        queue_id,
        max(0, fields.integer(request, "queueOffset")),
        max(1, min(MESSAGES_MAX, fields.integer(request, "maxMsgNums", 32))),
        wait_ms,
        _wanted(call, group, topic, sys_flag),
        fields.integer(request, "commitOffset", -1) if sys_flag & PULL_COMMIT else None,
    )


def _wanted(call: Call, group: str, topic: str, sys_flag: int) -> Filter:
    """In the request, or as the client's heartbeat said: Go's client also fills in the request's
    field then, with what is no expression of the type that it names."""
    request = call.request
    if not sys_flag & PULL_SUBSCRIPTION:
        told = call.user.groups.subscription(group, call.peer, topic)
        if told is not None:
            return told
    return read_filter(request.fields.get("expressionType"), request.fields.get("subscription"))


async def pull(call: Call) -> Command:
    """Answer with messages, or after a while that there are none."""
    asked = read_pull(call)
    if asked.commit_offset is not None and asked.commit_offset > 0:
        call.user.spawn(
            commit(call, asked.group, asked.topic, asked.queue_id, asked.commit_offset),
            name="pull-commit",
        )
    if not asked.wait_ms:
        return await _pull(call, asked)
    ended = call.user.poll()
    try:
        return await _pull(call, asked)
    finally:
        ended()


async def _pull(call: Call, asked: Asked) -> Command:
    user, clock = call.user, call.user.cluster.cluster.clock
    deadline = clock.monotonic_ms() + asked.wait_ms
    key = await queue_key(call, asked.topic, asked.queue_id, wait_ms=asked.wait_ms)
    if key is None:
        return _nothing(call, asked, asked.offset)
    user.groups.pulled(asked.group, call.peer, key)
    offset = asked.offset
    while True:
        left = deadline - clock.monotonic_ms()
        read = await user.reader.read(key, offset, topic=asked.topic, wait_ms=max(0, left))
        if read.trouble is not None:
            return _in_trouble(call, asked, read)
        content, offset = _taken(call, asked, read, offset)
        if content:
            user.cluster.traffic.given.add(len(content))
            return call.request.answer(
                ResponseCode.SUCCESS, _header(offset, 0, max(offset, read.end)), b"".join(content)
            )
        if clock.monotonic_ms() >= deadline or not call.peer.is_open:
            return _nothing(call, asked, offset)


async def queue_key(call: Call, topic: str, queue_id: int, *, wait_ms: int) -> QueueKey | None:
    """The queue of the listener's broker group; None: a topic of retries that has none yet, also
    after `wait_ms`. TopicNotFoundError, BadRequestError."""
    cluster, group = call.user.cluster.cluster, call.peer.place.group
    assert group is not None
    name = TopicName(topic)
    found = cluster.topic(topic)
    if found is None:
        if not topic.startswith(RETRY_PREFIX):
            raise await cluster.no_topic(topic)
        try:
            view = await cluster.watch.wait_for(
                lambda view: name in view.topics, timeout_ms=wait_ms
            )
        except DeadlineError:
            return None
        found = view.topics[name]
    if queue_id >= found.queues.get(group, 0):
        if topic.startswith(RETRY_PREFIX):
            return None
        raise BadRequestError(
            f"topic {topic} has {found.queues.get(group, 0)} queues in broker group {group}, and no"
            f" queue {queue_id}",
            field="queueId",
        )
    return QueueKey(found.topic_id, group, QueueId(queue_id))


def _taken(call: Call, asked: Asked, read: Read, offset: int) -> tuple[list[bytes], int]:
    """What of it the client gets, and the offset that it goes on from."""
    found: list[bytes] = []
    size = 0
    for batch in read.batches:
        base = batch.view.header.base_queue_offset
        first = max(0, offset - base)
        if offset >= batch.view.header.end_queue_offset:
            continue
        mask = None if asked.wanted is ALL else asked.wanted.mask(batch.view)
        for number in range(first, batch.view.header.record_count):
            if mask is None or mask[number]:
                if found and (len(found) >= asked.limit or size >= BYTES_MAX):
                    return found, base + number
                found.append(encode_message(batch.message(number), call.peer.store_host))
                size += len(found[-1])
        offset = batch.view.header.end_queue_offset
    return found, max(offset, read.end)


def _in_trouble(call: Call, asked: Asked, read: Read) -> Command:
    if read.trouble is Trouble.OUT_OF_RANGE:
        start, end = read.range or (0, 0)
        offset = min(max(asked.offset, start), end)
        return call.request.answer(ResponseCode.PULL_OFFSET_MOVED, _header(offset, start, end))
    if read.trouble is Trouble.NO_PERMISSION:
        return call.request.answer(
            ResponseCode.NO_PERMISSION,
            _header(asked.offset, 0, 0),
            remark=f"topic {asked.topic} may not be read by this user, or by anybody for now",
        )
    if read.trouble is Trouble.UNKNOWN_QUEUE:
        raise TopicNotFoundError(f"queue {asked.queue_id} of topic {asked.topic} is not there")
    return call.request.answer(
        ResponseCode.SYSTEM_ERROR,
        _header(asked.offset, 0, 0),
        remark="what came from the broker was damaged; ask again",
    )


def _nothing(call: Call, asked: Asked, offset: int) -> Command:
    code = ResponseCode.PULL_NOT_FOUND
    if offset > asked.offset:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY  # nothing of it was wanted
    return call.request.answer(code, _header(offset, 0, offset))


def _header(offset: int, start: int, end: int) -> dict[str, str]:
    """PullMessageResponseHeader."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(offset),
        "minOffset": str(start),
        "maxOffset": str(end),
    }
