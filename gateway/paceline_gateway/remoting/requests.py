"""Messages that ask for a reply (RIP-16): it is read out of the reply topic, and pushed (326).

So a reply may come from whoever consumes the request: a client at another gateway, or a native one.
The request names this gateway's place in the reply topic instead of the client, which gets the
reply over the connection that it asked by, or another one of its own.
"""

import logging

from paceline.errors import OverloadedError, PacelineError
from paceline.message import Message, ReceivedMessage
from paceline.producer.results import OnSent, SendResult
from paceline.wire.properties import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec.codes import RequestCode
from paceline_gateway.remoting.codec.properties import properties_text

log = logging.getLogger("paceline.gateway")

_TTL_MS, _TTL_MS_MAX = 3_000, 60_000
_SECONDS_BELOW = 1_000
_WAITING_MAX = 10_000
"""Requests of one user that wait for their replies."""


def wants_reply(message: Message) -> bool:
    """A client of this door waits for a reply to the message. One that names a place in the reply
    topic already is sent back."""
    properties = message.properties or {}
    return CORRELATION_ID in properties and "/" not in properties.get(REPLY_TO_CLIENT, "/")


async def ask(call: Call, message: Message, on_sent: OnSent) -> None:
    """Send a request, whose peer `on_sent` answers, and push its reply."""
    asked = message.properties or {}
    is_answered = False

    def sent(result: SendResult | None, error: PacelineError | None) -> None:
        nonlocal is_answered
        if not is_answered:
            is_answered = True
            on_sent(result, error)

    requester = call.user.requester
    try:
        if requester.waiting_count >= _WAITING_MAX:
            raise OverloadedError(f"{_WAITING_MAX} requests of this user wait for replies here")
        reply = await requester.request(
            message, timeout_ms=_ttl_ms(asked.get(TTL, "")), on_sent=sent
        )
    except PacelineError as error:
        log.debug("no_reply", extra={"topic": message.topic, "error": error.message})
        sent(None, error)
        return
    _push(call, reply, asked[CORRELATION_ID], asked[REPLY_TO_CLIENT])


def _ttl_ms(text: str) -> int:
    """For how long a client waits. Go's client writes seconds, the others milliseconds; to wait too
    long costs a place in a table."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return _TTL_MS
    told = int(text)
    return max(1, min(told if told >= _SECONDS_BELOW else told * 1000, _TTL_MS_MAX))


def _push(call: Call, reply: ReceivedMessage, correlation_id: str, client_id: str) -> None:
    peer = call.peer if call.peer.is_open else call.user.groups.peer_of(client_id)
    if peer is None:
        log.info("requester_gone", extra={"client": client_id})
        return
    names = {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id}
    header = {
        "producerGroup": "",
        "topic": reply.topic,
        "defaultTopic": "",
        "defaultTopicQueueNums": "0",
        "queueId": str(reply.queue_id),
        "sysFlag": "0",
        "bornTimestamp": str(reply.born_unix_ms),
        "flag": "0",
        "properties": properties_text({**reply.properties, **names}).decode(),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "127.0.0.1:0",
        "storeHost": f"{peer.place.host}:{peer.place.port}",
        "storeTimestamp": str(reply.store_unix_ms),
    }
    peer.tell(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, reply.body)
