"""Producers of RocketMQ's gRPC protocol: messages of all types, repeated under their ids.

What a client was not told about, or was refused, it sends again, up to three times in all. At the
same gateway a message id is one message, so it is judged as what an idempotent producer sends (S5);
at another one, or after a gateway has answered that nobody knows, a message may be stored twice.
"""

import asyncio
from dataclasses import dataclass, field

from paceline.errors import PacelineError
from paceline.platform.runtime import pause
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.doors.attempts import ATTEMPTS, Attempted, recall_group, value_for
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.grpc.client import (
    GrpcClient,
    error_of,
    publishing,
    topic_of,
)
from paceline_chaos.cluster_sim.doors.grpc.gateway import GrpcGateway
from paceline_chaos.cluster_sim.doors.grpc.transacting import TransactionEnds
from paceline_chaos.cluster_sim.doors.members import DELAYS_MS
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send
from paceline_chaos.history.model import Queue, Recall
from paceline_gateway.grpc.codec.values import timestamp_of
from paceline_gateway.grpc.stubs import messages_pb2
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import MessageType

WORKERS = 2
_BATCH_MAX = 4
_GROUP_SHARE, _BATCH_SHARE, _DELAY_SHARE = 0.4, 0.2, 0.15
_ELSEWHERE_SHARE = 0.3
_RECALLED = 0.3


@dataclass(slots=True, eq=False, kw_only=True)
class _Sending(Attempted):
    """One message on its way."""

    message: messages_pb2.Message
    tried_at: set[int] = field(default_factory=set)
    """Gateways that it was given to."""
    is_sent_anew: bool = False
    """A gateway has answered that nobody knows: what is repeated there is another message to it."""

    @property
    def is_once(self) -> bool:
        """Whether it is stored once at most."""
        return len(self.tried_at) == 1 and not self.is_sent_anew

    def give_to(self, gateway: int) -> None:
        """It is about to be sent to a gateway."""
        self.tried_at.add(gateway)
        self.asking.knows(is_idempotent=self.is_once)

    def sent(self, entry: wire.SendResultEntry) -> None:
        """It was acknowledged. What waits has no place yet; of others the queue is not told, and 0
        is also what a gateway says of a place that it does not know."""
        queue = None
        if self.delay_ms and entry.recall_handle:
            group = recall_group(entry.recall_handle)
            queue = Queue(self.message.topic.name, group, -1)
        offset = -1 if self.delay_ms else entry.offset or -1
        self.asking.ok(queue=queue, offset=offset)


class GrpcProducer:
    """One producer client. Some of its workers' messages are of a message group each."""

    def __init__(self, around: Around, gateways: Gateways[GrpcGateway], name: str) -> None:
        self._around = around
        self._name = name
        self._client = GrpcClient(around, gateways, name, publishing(around))
        self._ends = TransactionEnds(around, self._client)
        self._numbers = 0

    async def run(self) -> None:
        """Send until it is over."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(number), name=f"{self._name}-{number}")

    async def close(self) -> None:
        await self._client.close()
        await self._ends.close()

    async def _work(self, number: int) -> None:
        around = self._around
        message_group = f"{around.client}-group-{number}"
        while not around.is_over():
            drawn = around.random.uniform(0, 1)
            if drawn < _GROUP_SHARE:
                # One after the other, as RocketMQ's clients send what has an order.
                await self._send([self._next(message_group=message_group)])
            elif drawn < _GROUP_SHARE + _BATCH_SHARE:
                count = around.whole(2, _BATCH_MAX)
                await self._send([self._next() for _ in range(count)])
            elif drawn < _GROUP_SHARE + _BATCH_SHARE + _DELAY_SHARE:
                await self._send([self._next(delay_ms=around.choice(DELAYS_MS))])
            else:
                await self._send([self._next()])
            await around.think()

    def _next(self, *, message_group: str | None = None, delay_ms: int = 0) -> _Sending:
        around = self._around
        self._numbers += 1
        value = value_for(self._name, self._numbers)
        body = make_body(value, around.whole(8, around.body_bytes_max))
        asking = asking_to_send(
            around, value, body, self._name, key=message_group, delay_ms=delay_ms
        )
        message = messages_pb2.Message(
            topic=topic_of(around),
            body=body,
            system_properties=messages_pb2.SystemProperties(message_id=f"01-{value}"),
        )
        system = message.system_properties
        system.message_type = MessageType.NORMAL
        if message_group is not None:
            system.message_type = MessageType.FIFO
            system.message_group = message_group
            system.keys.append(message_group)
        elif delay_ms:
            system.message_type = MessageType.DELAY
            due_ms = around.clock.unix_ms() + delay_ms
            system.delivery_timestamp.CopyFrom(timestamp_of(due_ms))
        return _Sending(asking=asking, value=value, delay_ms=delay_ms, message=message)

    async def _send(self, left: list[_Sending]) -> None:
        """Messages of one request, which are sent again together as long as some have failed."""
        around, client = self._around, self._client
        failures: dict[_Sending, PacelineError] = {}
        for attempt in range(ATTEMPTS):
            if attempt:
                await pause(around.random.uniform(10, 300))
                if around.happens(_ELSEWHERE_SHARE):
                    client.leave()
            gateway = client.gateway()
            for sending in left:
                sending.give_to(gateway.number)
            request = wire.SendMessageRequest(messages=[sending.message for sending in left])
            try:
                [answer] = await client.call("SendMessage", request, wire.SendMessageResponse)
            except PacelineError as error:
                for sending in left:
                    sending.is_maybe = True
                    failures[sending] = error
                continue
            left = await self._settled(left, answer, failures)
            if not left:
                return
        for sending in left:
            sending.failed(failures[sending])

    async def _settled(
        self,
        asked: list[_Sending],
        answer: wire.SendMessageResponse,
        failures: dict[_Sending, PacelineError],
    ) -> list[_Sending]:
        """Those that are to be sent again."""
        left = []
        for place, sending in enumerate(asked):
            entry = answer.entries[place] if answer.entries else None
            error = error_of(answer.status if entry is None else entry.status)
            if error is not None:
                failures[sending] = error
                sending.is_maybe |= not error.is_definite
                sending.is_sent_anew |= not error.is_definite
                left.append(sending)
                continue
            assert entry is not None, answer
            assert entry.message_id == sending.message.system_properties.message_id, entry
            sending.sent(entry)
            is_recalled = sending.is_once and self._around.happens(_RECALLED)
            if entry.recall_handle and is_recalled:
                await self._recall(sending, entry.recall_handle)
        return left

    async def _recall(self, sending: _Sending, handle: str) -> None:
        around = self._around
        request = wire.RecallMessageRequest(topic=topic_of(around), recall_handle=handle)
        with around.recorder.asking(
            Recall, client=around.client, topic=around.topic, value=sending.value
        ) as asking:
            try:
                [answer] = await self._client.call(
                    "RecallMessage", request, wire.RecallMessageResponse
                )
            except PacelineError as error:
                asking.raised(error)
                return
            failure = error_of(answer.status)
            if failure is None:
                asking.ok()
            else:
                asking.raised(failure)
