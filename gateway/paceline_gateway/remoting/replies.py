"""Replies to requests (324, 325): to the requester who is connected here, or through the log."""

from paceline.errors import BadRequestError, NotFoundError
from paceline.message import Message
from paceline.producer.producer import send_library
from paceline.producer.request_reply import ReplyAddress
from paceline.queues import QueueName
from paceline.types import TopicName
from paceline.wire.names import REPLY_TOPIC
from paceline.wire.properties import CORRELATION_ID, REPLY_TO_CLIENT
from paceline_gateway.remoting.call import Call, group_of
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.message_ids import message_id
from paceline_gateway.remoting.codec.properties import properties_text
from paceline_gateway.remoting.sending import read_send
from paceline_gateway.remoting.state.clients import Clients

_ASK_MS = 3_000


class Replies:
    """Handlers that know who is connected."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def reply(self, call: Call) -> Command:
        """324, 325. NotFoundError: the requester is not here; the replier may try again."""
        sent = read_send(call.request, group_of(call), call.user.queue_of(group_of(call)))
        message = sent.messages[0]
        properties = dict(message.properties or {})
        to = properties.get(REPLY_TO_CLIENT, "")
        if not to or CORRELATION_ID not in properties:
            raise BadRequestError(f"a reply needs properties {REPLY_TO_CLIENT}, {CORRELATION_ID}")
        if to.count("/") >= 2:  # a requester of paceline
            return await self._through_log(call, message, properties)
        peer = self._clients.peer_of(to, call.user)
        if peer is None:
            raise NotFoundError(f"client {to}, who has asked, is not connected to this gateway")
        clock = call.user.cluster.cluster.clock
        header = {
            "producerGroup": "",
            "topic": message.topic,
            "defaultTopic": "",
            "defaultTopicQueueNums": "0",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(clock.unix_ms()),
            "flag": "0",
            "properties": properties_text(properties).decode(),
            "reconsumeTimes": "0",
            "unitMode": "false",
            "bornHost": "127.0.0.1:0",
            "storeHost": f"{peer.place.host}:{peer.place.port}",
            "storeTimestamp": str(clock.unix_ms()),
        }
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        answer = await peer.ask(code, header, message.body, timeout_ms=_ASK_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise NotFoundError(f"client {to} did not take the reply: {answer.remark}")
        return call.ok(
            {"msgId": message_id(call.peer.store_host, 0), "queueId": "0", "queueOffset": "0"}
        )

    async def _through_log(
        self, call: Call, message: Message, properties: dict[str, str]
    ) -> Command:
        address = ReplyAddress.from_text(properties[REPLY_TO_CLIENT])
        reply = Message(
            REPLY_TOPIC,
            message.body,
            properties={name: properties[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT)},
            queue=QueueName(TopicName(REPLY_TOPIC), address.group, address.queue),
        )
        result = await send_library(call.user.cluster.producer, reply)
        return call.ok(
            {
                "msgId": message_id(call.peer.store_host, 0),
                "queueId": str(result.queue_id),
                "queueOffset": str(max(0, result.queue_offset)),
            }
        )
