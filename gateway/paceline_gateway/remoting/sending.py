"""Messages that clients send: codes 10, 310, 320, and halves of transactions.

A send is a plain function: no task, no future. The producer puts what is sent in one turn of the
loop into one batch of each queue, and calls back.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from paceline.errors import BadRequestError, PacelineError
from paceline.message import Message
from paceline.producer.producer import send_library, send_library_batch
from paceline.producer.results import SendResult
from paceline.producer.validation import is_delayed
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire import properties as names
from paceline.wire.calls.groups import EnsureTopic
from paceline.wire.calls.messages import LEVEL_MAX
from paceline.wire.names import RETRY_PREFIX
from paceline_gateway.recall_handles import make_recall_handle
from paceline_gateway.remoting.call import Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.bodies import plain_body
from paceline_gateway.remoting.codec.codes import (
    TRANSACTION_BITS,
    TRANSACTION_PREPARED,
    RequestCode,
)
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.message_ids import message_id, physical_offset
from paceline_gateway.remoting.codec.properties import parse_properties
from paceline_gateway.remoting.codec.store_format import FLAG, decode_batch
from paceline_gateway.remoting.requests import ask, wants_reply
from paceline_gateway.remoting.retries import Failed, send_retry
from paceline_gateway.remoting.state.queue_of import QueueOf
from paceline_gateway.remoting.state.users import RemotingUser

_LONG = {
    "a": "producerGroup",
    "b": "topic",
    "e": "queueId",
    "f": "sysFlag",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
"""Names of version 2, which are letters, in version 1."""
_FIRST_SENDS_MAX = 64
_ENSURE_MS = 4_000
"""Above what a broker waits for the controllers."""
_SHORT = {long: short for short, long in _LONG.items()}
_OF_MESSAGE = frozenset({"TAGS", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
"""Properties that are fields of a message here."""


class Sent(NamedTuple):
    """What a request asks to be stored."""

    messages: list[Message]
    is_half: bool
    is_unit: bool
    """All of them or none."""
    failed: Failed | None = None
    """They are not stored: a message that was received comes back."""


def read_send(request: Command, group: GroupName, queue_of: QueueOf) -> Sent:
    """The messages in a request. BadRequestError, TooLargeError, NotFoundError."""
    of = request.fields
    is_short = request.code in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    name: dict[str, str] = _SHORT if is_short and "b" in of else {}
    topic = fields.text(request, name.get("topic", "topic"))
    queue_id = fields.integer(request, name.get("queueId", "queueId"), -1)
    sys_flag = fields.integer(request, name.get("sysFlag", "sysFlag"), 0)
    flag = fields.integer(request, name.get("flag", "flag"), 0)
    properties = parse_properties(of.get(name.get("properties", "properties"), ""))
    if topic.startswith(RETRY_PREFIX):
        failed = _read_failed(request, topic.removeprefix(RETRY_PREFIX), properties, name)
        return Sent([], is_half=False, is_unit=False, failed=failed)
    queue = QueueName(TopicName(topic), group, QueueId(queue_of(topic, queue_id)))
    body = bytes(request.body)
    if request.code == RequestCode.SEND_BATCH_MESSAGE or fields.flag(
        request, name.get("batch", "batch")
    ):
        messages = [
            message_of(topic, queue, member.body, {**properties, **member.properties}, member.flag)
            for member in decode_batch(body)
        ]
        return Sent(messages, is_half=False, is_unit=True)
    is_half = (
        sys_flag & TRANSACTION_BITS == TRANSACTION_PREPARED or properties.get("TRAN_MSG") == "true"
    )
    if is_half:
        properties.setdefault(
            names.PRODUCER_GROUP, of.get(name.get("producerGroup", "producerGroup"), "")
        )
    message = message_of(topic, queue, plain_body(body, sys_flag), properties, flag)
    if is_half and is_delayed(message):
        raise BadRequestError("a transactional message cannot be delayed", field="properties")
    return Sent([message], is_half=is_half, is_unit=False)


def _read_failed(
    request: Command, group: str, properties: dict[str, str], name: dict[str, str]
) -> Failed:
    topic, unique_key = properties.get(names.RETRY_TOPIC), properties.get(names.UNIQ_KEY)
    if not topic or not unique_key:
        raise BadRequestError(
            f"a send to a retry topic gives a message back: it needs {names.RETRY_TOPIC} and"
            f" {names.UNIQ_KEY}, which say which one",
            field="properties",
        )
    times_max = fields.integer(request, name.get("maxReconsumeTimes", "maxReconsumeTimes"), -1)
    return Failed(
        group=group,
        topic=topic,
        unique_key=unique_key,
        times=fields.integer(request, name.get("reconsumeTimes", "reconsumeTimes"), 0),
        times_max=None if times_max < 0 else times_max,
        delay_level=min(_number(properties, "DELAY") or 0, LEVEL_MAX),
    )


def message_of(
    topic: str, queue: QueueName, body: bytes, properties: dict[str, str], flag: int
) -> Message:
    """A message with the properties that its client gave it. BadRequestError."""
    keys = properties.get(names.KEYS)
    kept = {
        name: value
        for name, value in properties.items()
        if name
        and name not in _OF_MESSAGE
        and (name not in names.RESERVED or name in names.LIBRARY)
    }
    message = Message(
        topic,
        body,
        keys.split()[0] if keys and not keys.isspace() else None,
        properties.get("TAGS") or None,
        kept,
        queue=queue,
    )
    if flag:
        kept[FLAG] = str(flag)
    if not _OF_MESSAGE.isdisjoint(properties):
        _delay(message, properties)
    return message


def _delay(message: Message, properties: dict[str, str]) -> None:
    level = _number(properties, "DELAY")
    if level:
        message.delay_level = level
    elif (seconds := _number(properties, "TIMER_DELAY_SEC")) is not None:
        message.delay_ms = seconds * 1000
    elif (milliseconds := _number(properties, "TIMER_DELAY_MS")) is not None:
        message.delay_ms = milliseconds
    elif (due := _number(properties, "TIMER_DELIVER_MS")) is not None:
        message.delivery_unix_ms = due


def _number(properties: dict[str, str], name: str) -> int | None:
    found = properties.get(name)
    if not found:
        return None
    if not (found.isascii() and found.isdigit() and len(found) <= 18):
        raise BadRequestError(f"{name} must be a number, not {found[:32]}", field=name)
    return int(found)


def send(call: Call) -> None:
    """Carry out a request to send; the peer is answered when the outcome is known."""
    user, group = call.user, group_of(call)
    try:
        sent = read_send(call.request, group, user.queue_of(group))
        if sent.failed is not None:
            user.spawn(_send_retry(call, sent.failed), name="send-retry")
        elif _is_first(user, sent.messages[0].topic):
            user.spawn(_send_first(call, group, sent), name="send-first")
        else:
            _begin(call, sent)
    except PacelineError as error:
        call.peer.fail(call.request, error)


def _is_first(user: RemotingUser, topic: str) -> bool:
    """No more are held beside the producer, whose buffer is bounded: there the others wait."""
    return (
        user.cluster.cluster.topic(topic) is None
        and topic not in user.first_sends
        and len(user.first_sends) < _FIRST_SENDS_MAX
    )


async def _send_retry(call: Call, failed: Failed) -> None:
    try:
        answer = await send_retry(call, failed)
    except PacelineError as error:
        call.peer.fail(call.request, error)
    else:
        call.peer.answer(call.request, answer)


async def _send_first(call: Call, group: GroupName, sent: Sent) -> None:
    """Where the view has no such topic: a broker makes it, or says at once that it does not."""
    topic = sent.messages[0].topic
    request = EnsureTopic(topic=topic)
    call.user.first_sends.add(topic)
    try:
        connection = await call.user.links.link(group).wait_up(timeout_ms=_ENSURE_MS)
        await connection.call(request, timeout_ms=_ENSURE_MS)
        _begin(call, sent)
    except PacelineError as error:
        call.peer.fail(call.request, error)
    finally:
        call.user.first_sends.discard(topic)


def _begin(call: Call, sent: Sent) -> None:
    user, messages = call.user, sent.messages
    if sent.is_unit:
        user.spawn(_send_unit(call, messages), name="send-batch")
        return
    on_sent = partial(_sent, call, messages, is_half=sent.is_half)
    if wants_reply(messages[0]):
        user.spawn(ask(call, messages[0], on_sent), name="request")
        return
    producer = user.halves if sent.is_half else user.cluster.producer
    send_library(producer, messages[0]).on_sent(on_sent)


async def _send_unit(call: Call, messages: list[Message]) -> None:
    try:
        results = await send_library_batch(call.user.cluster.producer, messages, _as_asked)
    except PacelineError as error:
        call.peer.fail(call.request, error)
        return
    call.peer.answer(call.request, sent_answer(call, messages, list(results)))


def _as_asked(queues: Sequence[QueueName], message: Message, arg: object) -> QueueName:
    """One queue for all, whatever their keys are."""
    assert message.queue is not None
    return message.queue


def _sent(
    call: Call,
    messages: list[Message],
    result: SendResult | None,
    error: PacelineError | None,
    *,
    is_half: bool = False,
) -> None:
    if error is not None:
        call.peer.fail(call.request, error)
    else:
        assert result is not None
        call.peer.answer(call.request, sent_answer(call, messages, [result], is_half=is_half))


def sent_answer(
    call: Call, messages: Iterable[Message], results: list[SendResult], *, is_half: bool = False
) -> Command:
    """SendMessageResponseHeader."""
    first = results[0]
    call.user.cluster.traffic.stored.add(len(results))
    host = call.peer.store_host
    answer = {
        "msgId": ",".join(
            message_id(host, physical_of(result, is_half=is_half)) for result in results
        ),
        "queueId": str(first.queue_id),
        "queueOffset": str(max(0, first.queue_offset)),
    }
    message = next(iter(messages))
    unique_key = (message.properties or {}).get(names.UNIQ_KEY, "")
    if unique_key:
        answer["transactionId"] = unique_key
    if first.recall_handle is not None:
        answer["recallHandle"] = make_recall_handle(message.topic, first.recall_handle, unique_key)
    return call.ok(answer)


def physical_of(result: SendResult, *, is_half: bool) -> int:
    """Where it is stored, as far as that was told. A half's offset is its place: that of one which
    a retry has found stored is told by nothing else, and its transaction is ended by it."""
    at = result.stored_at
    position = 0 if at is None else at.position
    return physical_offset(
        result.queue_offset - result.number if is_half else position, result.number
    )
