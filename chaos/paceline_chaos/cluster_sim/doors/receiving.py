"""Simple consumers of RocketMQ's gRPC protocol: what they receive, acknowledge, forget, give back.

Two clients are members of one group, at gateways that die. A receive that nobody has answered is
repeated under its attempt id. Handles say to the history which message it was; to clients they say
nothing.
"""

from typing import NamedTuple

from paceline.errors import PacelineError
from paceline.wire.receipts import parse_handle
from paceline_chaos.cluster_sim.doors.client import (
    DEADLINE_MS,
    GrpcClient,
    error_of,
    topic_of,
)
from paceline_chaos.cluster_sim.doors.gateways import Gateway, Gateways
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.reading import seen
from paceline_chaos.history.model import Ack, Pop, Queue, Seen
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
INVISIBLE_MS = 10_000
"""The least that gateways take."""
_BATCH_MAX = 16
_ATTEMPTS = 2
_FORGET_SHARE, _BACK_SHARE, _LONGER_SHARE = 0.1, 0.1, 0.1


class _Received(NamedTuple):
    """A message in the hands of a consumer."""

    message_id: str
    handle: str
    queue: Queue
    seen: Seen


class GrpcConsumer:
    """One simple consumer, one receive after the other."""

    def __init__(self, around: Around, gateways: Gateways, name: str) -> None:
        self._around = around
        self._name = name
        settings = Settings(
            client_type=ClientType.SIMPLE_CONSUMER,
            subscription=Subscription(
                group=Resource(name=GROUP),
                subscriptions=[SubscriptionEntry(topic=topic_of(around), expression=_ALL)],
            ),
        )
        self._client = GrpcClient(around, gateways, name, settings)
        self._attempts = 0
        self._since: tuple[Gateway, int] | None = None
        """Where it receives, and since when what it is given may have been asked for there."""

    async def close(self) -> None:
        await self._client.close()

    async def run(self) -> None:
        """Receive until it is over."""
        around = self._around
        while not around.is_over():
            for received in await self._receive():
                if around.is_over():
                    return
                await self._settle(received)
            await around.think()

    # -- receiving ---------------------------------------------------------------------------------

    async def _receive(self) -> list[_Received]:
        """What one receive gives; entered as it comes."""
        around = self._around
        self._attempts += 1
        request = wire.ReceiveMessageRequest(
            group=Resource(name=GROUP),
            message_queue=MessageQueue(topic=topic_of(around)),
            filter_expression=_ALL,
            batch_size=around.whole(1, _BATCH_MAX),
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
            return [self._enter(each, asked_us) for each in answers if each.HasField("message")]
        return []

    def _asked_us(self, gateway: Gateway) -> int:
        """When what comes was asked for, at the earliest: a gateway keeps what came too late for
        the receive before. With one broker group nothing does if that receive was answered."""
        now_us = self._around.recorder.now_us()
        if self._since is None or self._since[0] is not gateway:
            self._since = gateway, now_us
        return self._since[1]

    def _enter(self, answer: wire.ReceiveMessageResponse, asked_us: int) -> _Received:
        around, message = self._around, answer.message
        system = message.system_properties
        receipt = parse_handle(system.receipt_handle, GROUP)
        assert system.queue_offset == receipt.offset, (system, receipt)
        queue = Queue(message.topic.name, receipt.broker_group, receipt.queue_id)
        received = _Received(
            system.message_id, system.receipt_handle, queue, seen(receipt.offset, message.body)
        )
        with around.recorder.asking(
            Pop,
            asked_us=asked_us,
            client=around.client,
            consumer_group=GROUP,
            member=self._name,
            queue=queue,
            message=received.seen,
            attempt=system.delivery_attempt,
            invisible_ms=INVISIBLE_MS,
        ) as asking:
            asking.ok()
        return received

    # -- receipts ----------------------------------------------------------------------------------

    async def _settle(self, received: _Received) -> None:
        drawn = self._around.random.uniform(0, 1)
        if drawn < _FORGET_SHARE:
            return  # it comes again
        if drawn < _FORGET_SHARE + _BACK_SHARE:
            await self._ack(received, is_back=True)
            return
        if drawn < _FORGET_SHARE + _BACK_SHARE + _LONGER_SHARE:
            answer = await self._change(received, INVISIBLE_MS)
            if isinstance(answer, PacelineError):
                return
            received = received._replace(handle=answer)
        await self._ack(received)

    async def _ack(self, received: _Received, *, is_back: bool = False) -> None:
        """It is done, or given back."""
        with self._around.recorder.asking(
            Ack,
            client=self._around.client,
            consumer_group=GROUP,
            member=self._name,
            queue=received.queue,
            offset=received.seen.offset,
            is_back=is_back,
        ) as asking:
            if is_back:
                answer = await self._change(received, 0)
                error = answer if isinstance(answer, PacelineError) else None
            else:
                error = await self._done(received)
            if error is None:
                asking.ok()
            else:
                asking.raised(error)

    async def _done(self, received: _Received) -> PacelineError | None:
        entry = wire.AckMessageEntry(message_id=received.message_id, receipt_handle=received.handle)
        request = wire.AckMessageRequest(
            group=Resource(name=GROUP), topic=topic_of(self._around), entries=[entry]
        )
        try:
            [answer] = await self._client.call("AckMessage", request, wire.AckMessageResponse)
        except PacelineError as error:
            return error
        return error_of(answer.entries[0].status if answer.entries else answer.status)

    async def _change(self, received: _Received, invisible_ms: int) -> str | PacelineError:
        """The new handle."""
        request = wire.ChangeInvisibleDurationRequest(
            group=Resource(name=GROUP),
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


_ALL = FilterExpression(type=FilterType.TAG, expression="*")
