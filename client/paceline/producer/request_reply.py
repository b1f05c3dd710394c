"""Request and reply over topics (RocketMQ's request-reply, RIP-16).

A request is an ordinary message that names, in properties of the system, a correlation id and where
its sender waits for the reply. The reply is a message too: in one queue of the reply topic, which
the requester reads from the moment of its first request. So a reply is replicated and survives a
failover like every message, and a producer stores it once. Requesters share queues; each takes the
replies that name it and a request that still waits, and counts the others.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from crc32c import crc32c

from paceline.consumer.pull import LAST, PullConsumer
from paceline.errors import (
    BadRequestError,
    NotAuthorizedError,
    NotMasterError,
    OffsetOutOfRangeError,
    PacelineError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from paceline.message import Message, ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.results import OnSent, Sending, SendResult
from paceline.queues import QueueName, master_address
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.cluster import ClusterView
from paceline.wire.names import REPLY_TOPIC, check_name
from paceline.wire.properties import CORRELATION_ID, REPLY_TO_CLIENT, TTL

log = logging.getLogger("paceline.client")

REQUEST_TIMEOUT_DEFAULT_MS = 3_000
"""RocketMQ's sendMsgTimeout, which its users give here."""
_POLL_MS = 1_000
_TROUBLE_WAIT_MS = 200
_REPLY = TopicName(REPLY_TOPIC)


class ReplyAddress(NamedTuple):
    """Where a requester waits: a queue of the reply topic, and its name there."""

    group: GroupName
    queue: QueueId
    client: str

    def to_text(self) -> str:
        """The value of property REPLY_TO_CLIENT."""
        return f"{self.group}/{self.queue}/{self.client}"

    @classmethod
    def from_text(cls, text: str) -> "ReplyAddress":
        """BadRequestError for anything but what `to_text` gives."""
        group, _, rest = text.partition("/")
        queue, _, client = rest.partition("/")
        if not queue.isascii() or not queue.isdigit() or len(queue) > 5 or not client:
            raise BadRequestError(
                f"{REPLY_TO_CLIENT} {text!r} is no reply address: no requester of paceline made it",
                field=REPLY_TO_CLIENT,
            )
        check_name(group, REPLY_TO_CLIENT)
        return cls(GroupName(group), QueueId(int(queue)), client)


def reply_message(request: ReceivedMessage, body: bytes) -> Message:
    """The reply to a request, for its sender alone. BadRequestError if nobody waits for one."""
    correlation_id = request.properties.get(CORRELATION_ID)
    address = request.properties.get(REPLY_TO_CLIENT)
    if not correlation_id or not address:
        raise BadRequestError(
            f"message {request.queue_offset} of {request.topic} {request.group}/{request.queue_id}"
            " is no request: its sender waits for no reply",
            field=CORRELATION_ID,
        )
    to = ReplyAddress.from_text(address)
    return Message(
        REPLY_TOPIC,
        body,
        properties={CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: address},
        queue=QueueName(_REPLY, to.group, to.queue),
    )


class RequesterCounts:
    """What a requester has seen beside the replies it waited for."""

    __slots__ = ("foreign", "late")

    def __init__(self) -> None:
        self.foreign = 0
        """Replies to others who read the same queue."""
        self.late = 0
        """Replies to requests that no longer wait: too late, or a second one."""


class Requester:
    """Sends requests and hands out their replies; owned by a `Producer`, on its event loop."""

    def __init__(self, cluster: Cluster, send: Callable[[Message], Sending]) -> None:
        """`send` takes messages with properties of the system."""
        self.counts = RequesterCounts()
        self._cluster = cluster
        self._send = send
        self._client = cluster.random.token(8).hex()
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._places: dict[GroupName, ReplyAddress] = {}
        self._consumer: PullConsumer | None = None
        self._opening = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._trouble: PacelineError | None = None
        """Why replies cannot be read now."""

    @property
    def waiting_count(self) -> int:
        """Requests that wait for their replies."""
        return len(self._waiting)

    async def request(
        self, message: Message, *, timeout_ms: int, on_sent: OnSent | None = None
    ) -> ReceivedMessage:
        """See `Producer.request`. `on_sent`: called with what became of the request itself, unless
        this raises before it is sent."""
        correlation_id = self._cluster.random.token(16).hex()
        waiter: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = waiter
        address: ReplyAddress | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                address = await self._address(timeout_ms)
                if isinstance(self._trouble, NotAuthorizedError):
                    raise _no_replies("not sent", self._trouble)
                properties = {
                    **(message.properties or {}),
                    CORRELATION_ID: correlation_id,
                    REPLY_TO_CLIENT: address.to_text(),
                    TTL: str(timeout_ms),
                }
                sending = self._send(replace(message, properties=properties))
                sending.on_sent(lambda result, error: _on_sent(waiter, result, error))
                if on_sent is not None:
                    sending.on_sent(on_sent)
                return await waiter
        except TimeoutError:
            if address is None:
                raise self._no_address(timeout_ms) from None
            raise RequestTimeoutError(
                f"no reply to a request in topic {message.topic} within {timeout_ms} ms:"
                f" {self._why_no_reply()}; it may have been acted upon"
            ) from None
        finally:
            del self._waiting[correlation_id]

    async def close(self) -> None:
        """Stop reading replies; requests that still wait fail by their own time limit."""
        await cancel_and_wait(self._task)
        if self._consumer is not None:
            await self._consumer.close()

    async def _address(self, timeout_ms: int) -> ReplyAddress:
        """Where replies are to go: a queue that is read from now on; waits for one."""
        self._cluster.use(topics=[REPLY_TOPIC])
        async with self._opening:
            while True:
                await self._cluster.watch.wait_for(
                    lambda view: any(_takes_replies(view, group) for group in view.groups),
                    timeout_ms=timeout_ms,
                )
                known = next((a for group, a in self._places.items() if self._takes(group)), None)
                address = known or await self._open()
                if address is not None:
                    return address

    def _no_address(self, timeout_ms: int) -> NotMasterError | NotAuthorizedError:
        """Why a request was not even sent."""
        view = self._cluster.view
        if view is not None and view.groups and self._cluster.lacks(REPLY_TOPIC):
            return NotAuthorizedError(
                f"not sent: nothing that this user may read is called {REPLY_TOPIC}, where replies"
                " go; a super user can allow it by its full name (paceline acl set USER"
                f" --resource Topic:{REPLY_TOPIC} --actions Sub)",
                resource=f"Topic:{REPLY_TOPIC}",
            )
        if self._cluster.view is None:
            last = self._cluster.watch.last_error
            why = "no node of the cluster answered" + ("" if last is None else f": {last.message}")
        else:
            why = "no broker group that has a master takes messages (paceline cluster status)"
        return NotMasterError(
            f"not sent: nowhere within {timeout_ms} ms for the reply to go: {why}", master=None
        )

    def _takes(self, group: GroupName) -> bool:
        view = self._cluster.view
        return view is not None and _takes_replies(view, group)

    def _why_no_reply(self) -> str:
        if self._trouble is not None:
            return f"replies cannot be read: {self._trouble.message}"
        return "nobody consumes it, or whoever does was too slow"

    async def _open(self) -> ReplyAddress | None:
        """Read one more queue, of a group that takes replies and is not read yet."""
        if self._consumer is None:
            self._consumer = PullConsumer(self._cluster)
            await self._consumer.start()
        consumer = self._consumer
        queues = [queue for queue in await consumer.queues(REPLY_TOPIC) if self._takes(queue.group)]
        if not queues:
            return None  # the view has just changed
        chosen = queues[crc32c(self._client.encode()) % len(queues)]
        positions: dict[QueueName, int | str] = {
            name: consumer.position(name)
            for name in (QueueName(_REPLY, a.group, a.queue) for a in self._places.values())
        }
        await consumer.assign({**positions, chosen: LAST})
        address = ReplyAddress(chosen.group, chosen.queue_id, self._client)
        self._places[chosen.group] = address
        if self._task is None:
            self._task = spawn(self._read(consumer), name="replies")
        return address

    async def _read(self, consumer: PullConsumer) -> None:
        while True:
            try:
                replies = await consumer.poll(timeout_ms=_POLL_MS)
                self._trouble = None
            except TopicNotFoundError:
                raise  # the system's topic is never deleted: a bug
            except PacelineError as error:  # retention has overtaken us, or damaged bytes
                self._trouble = error
                if isinstance(error, NotAuthorizedError):
                    self._end_waiting(_no_replies("it may have been acted upon", error))
                log.warning("replies_interrupted", extra={"error": error.message})
                if isinstance(error, OffsetOutOfRangeError) and "goes_on_at" not in error.details:
                    await _go_on_at_end(consumer, error)
                await pause(_TROUBLE_WAIT_MS)
                continue
            for reply in replies:
                self._take(reply)

    def _end_waiting(self, error: PacelineError) -> None:
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(error)

    def _take(self, reply: ReceivedMessage) -> None:
        """Hand a reply to whoever waits for it. Late and foreign ones change nothing."""
        address = self._places.get(GroupName(reply.group))
        if address is None or reply.properties.get(REPLY_TO_CLIENT) != address.to_text():
            self.counts.foreign += 1
            return
        waiter = self._waiting.get(reply.properties.get(CORRELATION_ID, ""))
        if waiter is None or waiter.done():
            self.counts.late += 1
            return
        waiter.set_result(reply)


def _no_replies(what: str, error: NotAuthorizedError) -> NotAuthorizedError:
    """Of a request whose reply nobody would let us read."""
    return NotAuthorizedError(
        f"no reply to a request can be read, {what}: {error.message}", **error.details
    )


async def _go_on_at_end(consumer: PullConsumer, error: OffsetOutOfRangeError) -> None:
    """An unclean election (R21) has cut the queue below where we were: its replies are lost."""
    queue, end = error.details["queue"], error.details["end"]
    assert isinstance(queue, list), error.details
    assert isinstance(end, int), error.details
    await consumer.seek(QueueName(*queue), end)


def _takes_replies(view: ClusterView, group: GroupName) -> bool:
    """Whether a reply to be sent there would be stored, as far as anybody knows."""
    topic = view.topics.get(_REPLY)
    has_room = topic is not None and topic.write_queues.get(group, 0) > 0
    return has_room and master_address(view, group) is not None


def _on_sent(
    waiter: "asyncio.Future[ReceivedMessage]",
    result: SendResult | None,
    error: PacelineError | None,
) -> None:
    """A request that certainly is not stored has no reply to wait for."""
    if error is not None and error.is_definite and not waiter.done():
        waiter.set_exception(error)
