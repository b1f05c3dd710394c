"""ReceiveMessage, and what clients say of messages that they have received."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.consumer.simple import SimpleConsumer, give_back
from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.server.byte_budget import ByteBudget, no_room
from paceline.types import GroupName
from paceline.wire.calls.messages import SendBack, SendBackRow
from paceline.wire.receipts import Receipt, parse_handle
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.codec import limits
from paceline_gateway.grpc.codec.received import Handed, received_of
from paceline_gateway.grpc.codec.statuses import OK, Refused, common_status, status_of
from paceline_gateway.grpc.codec.values import (
    Named,
    group_of,
    milliseconds,
    subscription_of,
    timestamp_of,
    topic_of,
)
from paceline_gateway.grpc.service.call import Answer, AnswerStream, Call
from paceline_gateway.grpc.service.receivers import Receivers, Wanted, bytes_of
from paceline_gateway.grpc.service.routes import is_ordered, known_topic, queue_numbers
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Status
from paceline_gateway.shares import POLLS_MAX, Shares

log = logging.getLogger("paceline.gateway")

RECEIVED_BYTES_MAX = 16 * 1024 * 1024
"""Of one receive; at least one message. What is over goes back at once."""
_DEAD = -1
_DEAD_LETTER_TIMEOUT_MS = 10_000


class ReceiveCalls:
    """Owned by one gateway's gRPC door."""

    def __init__(self, clients: ConnectedClients, budget: ByteBudget) -> None:
        self._clients = clients
        self._budget = budget
        self._receivers = Receivers(clients, budget)
        self._polls = Shares(POLLS_MAX, "calls that wait for messages")
        self._giving: set[asyncio.Task[None]] = set()
        """Messages that are soon given back."""

    def handlers(self) -> dict[str, Answer]:
        return {
            "AckMessage": self.ack,
            "ChangeInvisibleDuration": self.change_invisible,
            "ForwardMessageToDeadLetterQueue": self.forward,
        }

    def stream_handlers(self) -> dict[str, AnswerStream]:
        return {"ReceiveMessage": self.receive}

    async def close(self) -> None:
        await cancel_and_wait(*self._giving)
        await self._receivers.close()

    # -- receiving --------------------------------------------------------------------------------

    async def receive(
        self, request: wire.ReceiveMessageRequest, call: Call
    ) -> AsyncIterator[wire.ReceiveMessageResponse]:
        """Messages from any queue of the topic, or the status that there are none. The queue that
        the client names is no matter: clients ask one at a time, and would miss the others."""
        key = call.key
        group = group_of(request.group, call.namespace)
        topic = topic_of(request.message_queue.topic, call.namespace)
        subscription = subscription_of(topic, request.filter_expression)
        asked_ms = None
        if request.HasField("long_polling_timeout"):
            asked_ms = milliseconds(request.long_polling_timeout)
        wait_ms = limits.poll_ms(asked_ms, call.deadline_ms)
        invisible_ms = limits.INVISIBLE_MS
        if request.HasField("invisible_duration") and not request.auto_renew:
            invisible_ms = limits.check_invisible(milliseconds(request.invisible_duration))
        cluster = await call.cluster()
        heard = self._clients.hear(key, "grpc")
        heard.cluster, heard.kind = cluster, "consumer"
        heard.works_for(group.full)
        numbers = queue_numbers(await known_topic(cluster, topic.full))
        kind = subscription.filter.type, subscription.filter.expression
        ordered = is_ordered(cluster, group.full)
        wanted = Wanted(cluster, key, group.full, topic.full, kind, request.auto_renew, ordered)
        count = max(1, min(limits.MESSAGES_MAX, request.batch_size))
        receiver = self._receivers.receiver(wanted, subscription)
        receive = partial(self._receive, receiver.consumer, call, count, invisible_ms, wait_ms)
        async with receiver.receive(request.attempt_id, receive, invisible_ms) as messages:
            if not messages:
                nothing = Status(code=Code.MESSAGE_NOT_FOUND, message="no message came in the time")
                yield wire.ReceiveMessageResponse(status=nothing)
                return
            now_ms = cluster.cluster.clock.unix_ms()
            holder = self._budget.holder(call.principal.source)
            cluster.traffic.given.add(len(messages))
            holder.hold(bytes_of(messages))  # until the client, which may be slow, has read them
            try:
                yield wire.ReceiveMessageResponse(delivery_timestamp=timestamp_of(now_ms))
                for message in messages:
                    handed = Handed(topic.resource, _number(numbers, message), invisible_ms)
                    yield wire.ReceiveMessageResponse(message=received_of(message, handed))
                yield wire.ReceiveMessageResponse(status=OK)
            finally:
                holder.close()

    async def _receive(
        self, consumer: SimpleConsumer, call: Call, count: int, invisible_ms: int, wait_ms: int
    ) -> list[PoppedMessage]:
        ended = self._polls.take(call.owner)
        try:
            found = await consumer.receive(count, invisible_ms=invisible_ms, wait_ms=wait_ms)
        finally:
            ended()
        kept = _within(found)
        if not self._has_room(call.principal.source, found[:kept]):
            give_back(consumer, found)
            raise no_room("what this receive found")
        give_back(consumer, found[kept:])
        return found[:kept]

    def _has_room(self, source: str, messages: list[PoppedMessage]) -> bool:
        holder = self._budget.holder(source)
        try:
            return holder.take(bytes_of(messages))
        finally:
            holder.close()

    # -- receipts ---------------------------------------------------------------------------------

    async def ack(self, request: wire.AckMessageRequest, call: Call) -> wire.AckMessageResponse:
        """Messages are done; a status for each."""
        limits.check_count(len(request.entries), "entries")
        group = group_of(request.group, call.namespace)
        topic_of(request.topic, call.namespace)
        cluster = await call.cluster()
        statuses = await asyncio.gather(
            *(self._ack(entry.receipt_handle, group, cluster, call) for entry in request.entries)
        )
        entries = [
            wire.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
            for entry, status in zip(request.entries, statuses, strict=True)
        ]
        return wire.AckMessageResponse(status=common_status(statuses), entries=entries)

    async def _ack(self, handle: str, group: Named, cluster: UserCluster, call: Call) -> Status:
        try:
            _receipt(handle, group, cluster)
            consumer = self._receivers.consumer_of(call.key, group.full, cluster, handle)
            await consumer.ack(handle)
        except PacelineError as error:
            return status_of(error)
        return OK

    async def change_invisible(
        self, request: wire.ChangeInvisibleDurationRequest, call: Call
    ) -> wire.ChangeInvisibleDurationResponse:
        """Nobody else is given the message for so long from now on; 0 gives it back."""
        if request.HasField("lite_topic") or request.suspend:
            raise Refused(Code.NOT_IMPLEMENTED, "lite topics are not served here")
        group = group_of(request.group, call.namespace)
        topic_of(request.topic, call.namespace)
        invisible_ms = limits.check_changed_invisible(milliseconds(request.invisible_duration))
        handle = request.receipt_handle
        cluster = await call.cluster()
        _receipt(handle, group, cluster)
        consumer = self._receivers.consumer_of(call.key, group.full, cluster, handle)
        if 0 < invisible_ms < limits.INVISIBLE_MS_MIN:
            changed, _ = await consumer.change_handle(handle, limits.INVISIBLE_MS_MIN)
            self._give_back_after(invisible_ms, changed, consumer)
        else:
            changed, _ = await consumer.change_handle(handle, invisible_ms)
        return wire.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed)

    def _give_back_after(self, ms: int, handle: str, consumer: SimpleConsumer) -> None:
        """Retries of push consumers may be sooner than brokers make a message invisible for."""

        async def give() -> None:
            await pause(ms)
            try:
                await consumer.change_handle(handle, 0)
            except PacelineError as error:  # it comes back by itself
                log.info("not_given_back", extra={"error": error.message})

        task = spawn(give(), name="grpc-give-back")
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def forward(
        self, request: wire.ForwardMessageToDeadLetterQueueRequest, call: Call
    ) -> wire.ForwardMessageToDeadLetterQueueResponse:
        """The message becomes a dead letter of the group, and is done."""
        group = group_of(request.group, call.namespace)
        topic_of(request.topic, call.namespace)
        handle = request.receipt_handle
        cluster = await call.cluster()
        receipt = _receipt(handle, group, cluster)
        consumer = self._receivers.consumer_of(call.key, group.full, cluster, handle)
        # First of all it must be this client's still: it is nobody else's meanwhile.
        handle, _ = await consumer.change_handle(handle, limits.INVISIBLE_MS)
        row = SendBackRow(
            topic_id=receipt.topic_id,
            queue=receipt.queue_id,
            offset=receipt.offset,
            delay_level=_DEAD,
        )
        await cluster.links.call(
            GroupName(receipt.broker_group),
            SendBack(group=group.full, messages=[row]),
            timeout_ms=_DEAD_LETTER_TIMEOUT_MS,
        )
        await consumer.ack(handle)
        return wire.ForwardMessageToDeadLetterQueueResponse(status=OK)


def _receipt(handle: str, group: Named, cluster: UserCluster) -> Receipt:
    """Of a message that the group was given; InvalidReceiptHandleError. Receipts are of the group's
    full name, also where the user says less, as in its default namespace."""
    return parse_handle(handle, cluster.cluster.namespace.full_group(group.full))


def _number(numbers: dict[tuple[str, int], int], message: PoppedMessage) -> int:
    """Of its queue in the route; retries come from a queue of their own."""
    return numbers.get((message.group, message.queue_id), 0)


def _within(messages: list[PoppedMessage]) -> int:
    """How many of the messages are within the bytes of one receive."""
    size = 0
    for number, message in enumerate(messages):
        size += len(message.body)
        if number and size > RECEIVED_BYTES_MAX:
            return number
    return len(messages)
