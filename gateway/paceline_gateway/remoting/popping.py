"""Messages received by receipt: POP (200050), its acknowledgement (200051), and more time (200053).

A client shows what it was given by property POP_CK: RocketMQ's eight words, and our handle as a
ninth. After a change of the invisible time it makes the eight words anew out of the answer: then
the record of the grant stands in the place of the pop time, and the attempt in that of the revive
queue, of which the handle is made.
"""

from paceline.consumer.fetch.fetched import Trouble
from paceline.errors import (
    BadRequestError,
    DeadlineError,
    InvalidReceiptHandleError,
    ReceiptExpiredError,
)
from paceline.filters import ALL
from paceline.queues import QueueKey
from paceline.types import QueueId, TopicId
from paceline.wire.calls import pop as wire
from paceline.wire.calls.request import refused_rows
from paceline.wire.receipts import Receipt, format_handle, parse_handle, why_refused
from paceline_gateway.connected_clients import broker_id
from paceline_gateway.remoting.call import CALL_MS, Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.heartbeats import read_filter
from paceline_gateway.remoting.codec.store_format import Stored, encode_message

_SILENCE_MS = 3_000
_WORDS = 8
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"


async def pop(call: Call) -> Command:
    """200050."""
    request = call.request
    group, topic = fields.text(request, "consumerGroup"), fields.text(request, "topic")
    wanted = read_filter(request.fields.get("expType"), request.fields.get("exp"))
    invisible_ms = fields.integer(request, "invisibleTime", wire.INVISIBLE_MS)
    wait_ms = max(0, min(wire.WAIT_MS_MAX, fields.integer(request, "pollTime", 0)))
    asked = wire.Receive(
        group=group,
        client_id=_client_id(call),
        topics=[
            topic
            if wanted == ALL
            else wire.FilteredTopic(
                topic=topic,
                type="SQL92" if wanted.type == "SQL92" else "TAG",
                expression=wanted.expression,
            )
        ],
        max_messages=max(1, min(wire.MESSAGES_MAX, fields.integer(request, "maxMsgNums", 32))),
        invisible_ms=max(wire.INVISIBLE_MS_MIN, min(wire.INVISIBLE_MS_MAX, invisible_ms)),
        wait_ms=wait_ms,
        start="last" if fields.integer(request, "initMode", 0) == 1 else "first",
        order=fields.flag(request, "order"),
    )
    of = group_of(call)
    limit_ms = wait_ms + _SILENCE_MS
    ended = call.user.poll()
    try:
        answer, _ = await call.user.links.call(of, asked, timeout_ms=limit_ms, attempt_ms=limit_ms)
    finally:
        ended()
    if not answer.messages:
        return call.request.answer(
            ResponseCode.POLLING_TIMEOUT, _header(0, []), remark="no message came"
        )
    now = call.user.cluster.cluster.clock.unix_ms()
    full_group = call.user.cluster.cluster.namespace.full_group(group)
    found: list[bytes] = []
    places: list[tuple[int, int]] = []
    for topic_id, queue_id, first, end, attempt in answer.messages:
        key = QueueKey(TopicId(topic_id), of, QueueId(queue_id))
        for message in await _read(call, key, first, end, timeout_ms=asked.invisible_ms // 2):
            receipt = Receipt(
                of, topic_id, queue_id, message.queue_offset, answer.position, attempt
            )
            words = (message.queue_offset, now, asked.invisible_ms, 0, 0, of, queue_id)
            shown = " ".join(
                (*map(str, words), str(message.queue_offset), format_handle(receipt, full_group))
            )
            given = message._replace(
                properties={**message.properties, POP_CK: shown, FIRST_POP_TIME: str(now)},
                reconsume_times=max(message.reconsume_times, attempt - 1),
            )
            found.append(encode_message(given, call.peer.store_host))
            places.append((queue_id, message.queue_offset))
    call.user.cluster.traffic.given.add(len(found))
    return call.ok(_header(asked.invisible_ms, places, now), b"".join(found))


async def _read(
    call: Call, key: QueueKey, first: int, end: int, *, timeout_ms: int
) -> list[Stored]:
    """Messages [first, end) of a queue; what was deleted meanwhile is missing. DeadlineError."""
    clock = call.user.cluster.cluster.clock
    deadline = clock.monotonic_ms() + timeout_ms
    topic = call.user.cluster.cluster.topic_name(key.topic_id) or ""
    found: list[Stored] = []
    while first < end:
        left = deadline - clock.monotonic_ms()
        if left <= 0:
            raise DeadlineError(f"messages of broker group {key.group} were not readable in time")
        read = await call.user.reader.read(key, first, topic=topic, wait_ms=left)
        if read.trouble is Trouble.OUT_OF_RANGE and read.range is not None:
            first = max(first + 1, read.range[0])
            continue
        if read.trouble is Trouble.UNKNOWN_QUEUE:
            break
        for batch in read.batches:
            base, behind = batch.view.header.base_queue_offset, batch.view.header.end_queue_offset
            for offset in range(max(first, base), min(end, behind)):
                found.append(batch.message(offset - base))
        first = max(first, read.end)
    return found


def _header(invisible_ms: int, places: list[tuple[int, int]], now: int = 0) -> dict[str, str]:
    """PopMessageResponseHeader. Words of a queue: 0 (no retry topic), its id, offsets."""
    offsets: dict[int, list[int]] = {}
    for queue_id, offset in places:
        offsets.setdefault(queue_id, []).append(offset)
    return {
        "popTime": str(now),
        "invisibleTime": str(invisible_ms),
        "reviveQid": "0",
        "restNum": "0",
        "startOffsetInfo": ";".join(f"0 {queue} {rows[0]}" for queue, rows in offsets.items()),
        "msgOffsetInfo": ";".join(
            f"0 {queue} {','.join(map(str, rows))}" for queue, rows in offsets.items()
        ),
        "orderCountInfo": "",
    }


async def ack(call: Call) -> Command:
    """200051."""
    group, handle = _handle(call)
    asked = wire.Ack(group=group, client_id=_client_id(call), handles=[handle])
    try:
        answer, _ = await call.user.links.call(group_of(call), asked, timeout_ms=CALL_MS)
    except (InvalidReceiptHandleError, ReceiptExpiredError) as error:
        answer = refused_rows(wire.Receipts, error)
    code = answer.receipts[0].code
    if code is not None:
        return call.request.answer(ResponseCode.NO_MESSAGE, remark=f"{code}: {why_refused(code)}")
    return call.ok()


async def change_invisible(call: Call) -> Command:
    """200053."""
    group, handle = _handle(call)
    invisible_ms = max(0, fields.integer(call.request, "invisibleTime"))
    asked = wire.Invisible(
        group=group,
        client_id=_client_id(call),
        handles=[handle],
        invisible_ms=min(wire.INVISIBLE_MS_MAX, invisible_ms),
    )
    try:
        answer, _ = await call.user.links.call(group_of(call), asked, timeout_ms=CALL_MS)
    except (InvalidReceiptHandleError, ReceiptExpiredError) as error:
        answer = refused_rows(wire.Receipts, error)
    row = answer.receipts[0]
    if row.code is not None or row.handle is None:
        code = row.code or InvalidReceiptHandleError.code
        return call.request.answer(ResponseCode.NO_MESSAGE, remark=f"{code}: {why_refused(code)}")
    receipt = parse_handle(row.handle, call.user.cluster.cluster.namespace.full_group(group))
    return call.ok(
        {
            "popTime": str(receipt.position),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(receipt.attempt),
        }
    )


def _client_id(call: Call) -> str:
    """As its heartbeats say; of a client without any, its connection, which is nobody else's."""
    return broker_id(call.peer.client_id or f"remoting-{call.peer.address}")


def _handle(call: Call) -> tuple[str, str]:
    """Consumer group and handle of a request. BadRequestError, InvalidReceiptHandleError."""
    request = call.request
    group = fields.text(request, "consumerGroup")
    words = fields.text(request, "extraInfo").split(" ")
    if len(words) > _WORDS:
        return group, words[_WORDS]
    if len(words) < _WORDS or not all(word.isdigit() for word in (words[1], words[3], words[6])):
        raise BadRequestError("extraInfo is none that a receive has given", field="extraInfo")
    topic = call.user.cluster.cluster.topic(fields.text(request, "topic"))
    if topic is None:
        raise InvalidReceiptHandleError("the topic of this receipt is not there any more")
    receipt = Receipt(
        words[5],
        topic.topic_id,
        int(words[6]) & 0xFFFF,
        fields.integer(request, "offset"),
        int(words[1]) & (2**63 - 1),
        int(words[3]) & 0xFFFF,
    )
    return group, format_handle(receipt, call.user.cluster.cluster.namespace.full_group(group))
