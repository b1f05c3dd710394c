"""Simple consumers of RocketMQ's gRPC protocol.

A receive that nobody has answered is repeated under its attempt id.
"""

from dataclasses import replace
from functools import partial

from paceline.errors import PacelineError
from paceline.wire.receipts import parse_handle
from paceline_chaos.cluster_sim.doors.fifo import FIFO_GROUP, FIFO_TOPICS
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.grpc.client import (
    DEADLINE_MS,
    GrpcClient,
    error_of,
    topic_of,
)
from paceline_chaos.cluster_sim.doors.grpc.gateway import GrpcGateway
from paceline_chaos.cluster_sim.doors.receipts import (
    BATCH_MAX,
    INVISIBLE_MS,
    Received,
    Receiver,
)
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.reading import seen
from paceline_chaos.history.model import Queue
from paceline_gateway.grpc.codec.values import duration_of
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.clients_pb2 import ClientType, Settings, Subscription
from paceline_gateway.grpc.stubs.resources_pb2 import (
    FilterExpression,
    FilterType,
    MessageQueue,
    Resource,
    SubscriptionEntry,
)

GROUP = "grpc-1"
_ATTEMPTS = 2
_MEMBER_MS = (1_000, 4_000)


class GrpcConsumer(Receiver):
    """One simple consumer."""

    def __init__(
        self,
        around: Around,
        gateways: Gateways[GrpcGateway],
        name: str,
        *,
        group: str = GROUP,
    ) -> None:
        super().__init__(around, name, group)
        settings = Settings(
            client_type=ClientType.SIMPLE_CONSUMER,
            subscription=Subscription(
                group=Resource(name=self.group),
                subscriptions=[SubscriptionEntry(topic=topic_of(around), expression=_ALL)],
            ),
        )
        self._client = GrpcClient(around, gateways, name, settings)
        self._attempts = 0
        self._since: tuple[GrpcGateway, int] | None = None
        """Where it receives, and since when what it is given may have been asked for there."""

    async def close(self) -> None:
        await self._client.close()

    async def _receive(self) -> list[Received]:
        """What one receive gives; entered as it comes."""
        around = self._around
        self._attempts += 1
        request = wire.ReceiveMessageRequest(
            group=Resource(name=self.group),
            message_queue=MessageQueue(topic=topic_of(around)),
            filter_expression=_ALL,
            batch_size=around.whole(1, BATCH_MAX),
            invisible_duration=duration_of(INVISIBLE_MS),
            attempt_id=f"{self._name}-{self._attempts}",
        )
        gateway = self._client.gateway()
        asked_us = self._asked_us(gateway)
        for _ in range(_ATTEMPTS):
            if self._client.gateway() is not gateway:
                return []  # what the other one gave there comes again in its time
            try:
                answers = await self._client.call(
                    "ReceiveMessage",
                    request,
                    wire.ReceiveMessageResponse,
                    deadline_ms=around.choice((1_000, DEADLINE_MS)),
                )
            except PacelineError:
                continue
            if gateway.groups_count == 1:
                self._since = None
            return [self._given(each, asked_us) for each in answers if each.HasField("message")]
        return []

    def _asked_us(self, gateway: GrpcGateway) -> int:
        """When what comes was asked for, at the earliest: a gateway keeps what came too late for
        the receive before. With one broker group nothing does if that receive was answered."""
        now_us = self._around.recorder.now_us()
        if self._since is None or self._since[0] is not gateway:
            self._since = gateway, now_us
        return self._since[1]

    def _given(self, answer: wire.ReceiveMessageResponse, asked_us: int) -> Received:
        message = answer.message
        system = message.system_properties
        receipt = parse_handle(system.receipt_handle, self.group)
        assert system.queue_offset == receipt.offset, (system, receipt)
        queue = Queue(self._around.topic, receipt.broker_group, receipt.queue_id)
        received = Received(
            system.message_id, system.receipt_handle, queue, seen(receipt.offset, message.body)
        )
        return self._enter(received, asked_us=asked_us, attempt=system.delivery_attempt)

    async def _done(self, received: Received) -> PacelineError | None:
        entry = wire.AckMessageEntry(message_id=received.message_id, receipt_handle=received.handle)
        request = wire.AckMessageRequest(
            group=Resource(name=self.group), topic=topic_of(self._around), entries=[entry]
        )
        try:
            [answer] = await self._client.call("AckMessage", request, wire.AckMessageResponse)
        except PacelineError as error:
            return error
        return error_of(answer.entries[0].status if answer.entries else answer.status)

    async def _change(self, received: Received, invisible_ms: int) -> str | PacelineError:
        """The new handle."""
        request = wire.ChangeInvisibleDurationRequest(
            group=Resource(name=self.group),
            topic=topic_of(self._around),
            receipt_handle=received.handle,
            invisible_duration=duration_of(invisible_ms),
            message_id=received.message_id,
        )
        try:
            [answer] = await self._client.call(
                "ChangeInvisibleDuration", request, wire.ChangeInvisibleDurationResponse
            )
        except PacelineError as error:
            return error
        return error_of(answer.status) or answer.receipt_handle


class FifoConsumer(GrpcConsumer):
    """A member of the group that receives in order; for some time, then another client comes."""

    is_ordered = True
    forget_share = 0.02  # its queue waits for the end of the invisible time


class FifoMembers:
    """One member after the other, each of another topic and under another client id."""

    def __init__(self, around: Around, gateways: Gateways[GrpcGateway], name: str) -> None:
        self._around = around
        self._gateways = gateways
        self._name = name

    async def close(self) -> None:
        """Each has ended with its time."""

    async def run(self) -> None:
        """Until it is over."""
        around, turn = self._around, 0
        while not around.is_over():
            turn += 1
            end_ms = around.clock.monotonic_ms() + around.whole(*_MEMBER_MS)
            mine = replace(
                around,
                topic=around.choice(FIFO_TOPICS),
                is_over=partial(_is_past, around, end_ms),
            )
            member = FifoConsumer(mine, self._gateways, f"{self._name}-{turn}", group=FIFO_GROUP)
            try:
                await member.run()
            finally:
                await member.close()


def _is_past(around: Around, end_ms: int) -> bool:
    return around.is_over() or around.clock.monotonic_ms() >= end_ms


_ALL = FilterExpression(type=FilterType.TAG, expression="*")
