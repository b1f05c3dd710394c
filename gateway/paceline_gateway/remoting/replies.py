"""Replies to requests (324, 325): stored where the requester waits, whoever that is."""

from paceline.errors import BadRequestError
from paceline.message import Message
from paceline.producer.producer import send_library
from paceline.producer.request_reply import ReplyAddress
from paceline.queues import QueueName
from paceline.types import TopicName
from paceline.wire.names import REPLY_TOPIC
from paceline.wire.properties import CORRELATION_ID, REPLY_TO_CLIENT
from paceline_gateway.remoting.call import Call, group_of
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.sending import read_send, sent_answer


async def reply(call: Call) -> Command:
    """324, 325."""
    sent = read_send(call.request, group_of(call), call.user.queue_of(group_of(call)))
    if sent.failed is not None:
        raise BadRequestError("a reply goes to no retry topic", field="topic")
    message = sent.messages[0]
    properties = message.properties or {}
    if CORRELATION_ID not in properties:
        raise BadRequestError(f"a reply needs property {CORRELATION_ID}", field=CORRELATION_ID)
    address = ReplyAddress.from_text(properties.get(REPLY_TO_CLIENT, ""))
    stored = Message(
        REPLY_TOPIC,
        message.body,
        tag=message.tag,
        properties=properties,
        queue=QueueName(TopicName(REPLY_TOPIC), address.group, address.queue),
    )
    result = await send_library(call.user.cluster.producer, stored)
    return sent_answer(call, [stored], [result])
