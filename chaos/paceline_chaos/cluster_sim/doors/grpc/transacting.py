"""Transactions of RocketMQ's gRPC protocol: halves, their ends, and questions by Telemetry."""

import asyncio

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.transaction_ends import HANDLE_KIND
from paceline.wire.message_ids import parse_handle
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.doors.attempts import (
    asked_about,
    beginning,
    end,
    is_committed,
    value_for,
)
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.grpc.client import (
    GrpcClient,
    error_of,
    publishing,
    topic_of,
)
from paceline_chaos.cluster_sim.doors.grpc.gateway import GrpcGateway
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_gateway.grpc.codec.values import duration_of
from paceline_gateway.grpc.stubs import messages_pb2
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import MessageType

_LEFT_SHARE = 0.3
"""Transactions that nobody ends before a question."""
_AGAIN_SHARE = 0.2


class TransactionEnds:
    """Of one client: ends what it has begun, and whatever its gateway asks it about."""

    def __init__(self, around: Around, client: GrpcClient) -> None:
        self._around = around
        self._client = client
        self._answering: dict[asyncio.Task[None], None] = {}
        client.on_half = self.asked_about

    async def close(self) -> None:
        await cancel_and_wait(*self._answering)

    async def end(self, value: str, transaction_id: str, *, is_check: bool) -> None:
        """Commit or roll back, until somebody has said what became of it."""
        kinds = messages_pb2.TransactionResolution
        source = messages_pb2.TransactionSource
        request = wire.EndTransactionRequest(
            topic=topic_of(self._around),
            message_id=f"01-{value}",
            transaction_id=transaction_id,
            resolution=kinds.COMMIT if is_committed(value) else kinds.ROLLBACK,
            source=source.SOURCE_SERVER_CHECK if is_check else source.SOURCE_CLIENT,
        )

        async def ask() -> PacelineError | None:
            try:
                [answer] = await self._client.call(
                    "EndTransaction", request, wire.EndTransactionResponse
                )
            except PacelineError as error:
                return error
            return error_of(answer.status)

        await end(self._around, value, ask)

    def asked_about(self, command: wire.RecoverOrphanedTransactionCommand) -> None:
        value = asked_about(self._around, command.message.body)
        ending = spawn(
            self.end(value, command.transaction_id, is_check=True), name=f"{self._client.name}-end"
        )
        self._answering[ending] = None
        ending.add_done_callback(lambda done: self._answering.pop(done, None))


class GrpcTransactor:
    """One producer client that transacts, one transaction after the other."""

    def __init__(self, around: Around, gateways: Gateways[GrpcGateway], name: str) -> None:
        self._around = around
        self._name = name
        self._client = GrpcClient(around, gateways, name, publishing(around))
        self._ends = TransactionEnds(around, self._client)
        self._numbers = 0

    async def close(self) -> None:
        await self._client.close()
        await self._ends.close()

    async def run(self) -> None:
        """Transact until it is over."""
        while not self._around.is_over():
            await self._transact()
            await self._around.think()

    async def _transact(self) -> None:
        around = self._around
        self._numbers += 1
        value = value_for(self._name, self._numbers)
        transaction_id = await self._begin(value)
        if transaction_id is None or around.happens(_LEFT_SHARE):
            return
        await self._ends.end(value, transaction_id, is_check=False)
        if around.happens(_AGAIN_SHARE):
            await self._ends.end(value, transaction_id, is_check=False)

    async def _begin(self, value: str) -> str | None:
        """Send the half, once: clients do not repeat it. Its transaction; None: not begun."""
        around = self._around
        body = make_body(value, around.whole(8, around.body_bytes_max))
        message = messages_pb2.Message(
            topic=topic_of(around),
            body=body,
            system_properties=messages_pb2.SystemProperties(
                message_id=f"01-{value}",
                message_type=MessageType.TRANSACTION,
                orphaned_transaction_recovery_duration=duration_of(around.choice((0, 1_000))),
            ),
        )
        with beginning(around, value, body, producer_group=around.topic) as asking:
            request = wire.SendMessageRequest(messages=[message])
            try:
                [answer] = await self._client.call("SendMessage", request, wire.SendMessageResponse)
            except PacelineError as error:
                asking.raised(error)
                return None
            entry = answer.entries[0] if answer.entries else None
            failure = error_of(answer.status if entry is None else entry.status)
            if failure is not None:
                asking.raised(failure)
                return None
            assert entry is not None, answer
            asking.ok(group=parse_handle(HANDLE_KIND, entry.transaction_id).group)
            return entry.transaction_id
