"""SendMessage and RecallMessage.

A message is sent by its user's producer, which retries over failovers on its own; when the client
stops waiting it goes on. The producer chooses the queue: by the message group, where there is one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.producer import send_library
from paceline.producer.results import SendResult
from paceline.server.byte_budget import ByteBudget, no_room
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import ClientKey, ConnectedClient, ConnectedClients
from paceline_gateway.grpc.codec.limits import check_count
from paceline_gateway.grpc.codec.sent import Sent, sent_of
from paceline_gateway.grpc.codec.statuses import (
    OK,
    Refused,
    common_status,
    status_of,
    status_of_send,
)
from paceline_gateway.grpc.codec.values import topic_of
from paceline_gateway.grpc.service.call import Answer, Call
from paceline_gateway.grpc.service.duplicates import Duplicates, Outcome
from paceline_gateway.grpc.service.transactions import Transactions
from paceline_gateway.grpc.stubs import messages_pb2
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code
from paceline_gateway.recall_handles import make_recall_handle, read_recall_handle
from paceline_gateway.traffic import Traffic

SENDS_MAX = 20_000
"""Under way in one gateway; 42900 beyond."""
SENDS_OF_CLIENT_MAX = 4_000


class SendCalls:
    """Owned by one gateway's gRPC door."""

    def __init__(
        self, clients: ConnectedClients, transactions: Transactions, budget: ByteBudget
    ) -> None:
        self._transactions = transactions
        self._budget = budget
        self._duplicates = Duplicates()
        self._counts: Counter[ClientKey] = Counter()
        """Messages under way of each client."""
        self._count = 0
        self._beginning: set[asyncio.Task[None]] = set()
        clients.on_gone(self._gone)

    def handlers(self) -> dict[str, Answer]:
        return {"SendMessage": self.send, "RecallMessage": self.recall}

    async def close(self) -> None:
        await cancel_and_wait(*self._beginning)

    async def send(self, request: wire.SendMessageRequest, call: Call) -> wire.SendMessageResponse:
        """A result for each message, in their order."""
        check_count(len(request.messages), "messages")
        cluster = await call.cluster()
        holder = self._budget.holder(call.principal.source)
        if not holder.take(request.ByteSize()):
            holder.close()
            raise no_room("this send")
        key = ClientKey(call.principal.user, call.client_id or call.principal.source)
        outcomes = [
            self._sent(message, cluster, key, call.namespace) for message in request.messages
        ]
        settled = Outcome.all_settled(outcomes)
        # Also if the client waits no more: what is being sent is in memory.
        settled.add_done_callback(lambda _: holder.close())
        await asyncio.shield(settled)
        entries = [outcome.result() for outcome in outcomes]
        return wire.SendMessageResponse(
            status=common_status([entry.status for entry in entries]), entries=entries
        )

    def _sent(
        self, message: messages_pb2.Message, cluster: UserCluster, key: ClientKey, namespace: str
    ) -> Outcome:
        """The fate of one message, which a retry of it shares."""
        try:
            topic = topic_of(message.topic, namespace).full
            sent = sent_of(message, topic)
            send = partial(self._send, sent, cluster, key)
            return self._duplicates.once(key, topic, sent.message_id, sent.message.body, send)
        except PacelineError as error:
            message_id = message.system_properties.message_id
            return Outcome(wire.SendResultEntry(status=status_of(error), message_id=message_id))

    def _send(self, sent: Sent, cluster: UserCluster, key: ClientKey) -> Outcome:
        if self._count >= SENDS_MAX or self._counts[key] >= SENDS_OF_CLIENT_MAX:
            busy = "too many messages are being sent; nothing was stored: send it again later"
            raise Refused(Code.TOO_MANY_REQUESTS, busy)
        outcome = Outcome()
        settle = self._under_way(outcome, sent.message_id, key, cluster.traffic)
        if sent.is_half:
            task = spawn(self._begin(sent, cluster, settle), name="grpc-half")
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
            return outcome
        try:
            sending = send_library(cluster.producer, sent.message)
        except PacelineError as error:
            settle(None, error, "")
            return outcome
        sending.on_sent(lambda result, error: settle(result, error, ""))
        return outcome

    async def _begin(self, sent: Sent, cluster: UserCluster, settle: "_Settle") -> None:
        """Store a half message."""
        try:
            begun = await self._transactions.begin(sent, cluster)
        except PacelineError as error:
            settle(None, error, "")
        except asyncio.CancelledError:
            settle(None, Refused(Code.HA_NOT_AVAILABLE, "the gateway stops"), "")
            raise
        else:
            settle(begun.taken, None, begun.transaction_id)

    def _under_way(
        self, outcome: Outcome, message_id: str, key: ClientKey, traffic: Traffic
    ) -> "_Settle":
        self._count += 1
        self._counts[key] += 1

        def settle(
            result: SendResult | None, error: PacelineError | None, transaction_id: str
        ) -> None:
            self._count -= 1
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
            if error is not None:
                entry = wire.SendResultEntry(status=status_of_send(error), message_id=message_id)
            else:
                traffic.stored.add(1)
                entry = wire.SendResultEntry(
                    status=OK,
                    message_id=message_id,
                    transaction_id=transaction_id,
                    offset=0 if result is None else max(0, result.queue_offset),
                    recall_handle=_recall_handle(result, message_id),
                )
            outcome.settle(entry)

        return settle

    def _gone(self, client: ConnectedClient) -> None:
        self._duplicates.forget(client.key)

    async def recall(
        self, request: wire.RecallMessageRequest, call: Call
    ) -> wire.RecallMessageResponse:
        """Take a delayed message back before it is due."""
        topic = topic_of(request.topic, call.namespace)
        cluster = await call.cluster()
        wanted = read_recall_handle(request.recall_handle)
        message_id = await cluster.producer.recall(topic.full, wanted.handle)
        return wire.RecallMessageResponse(status=OK, message_id=wanted.message_id or message_id)


_Settle = Callable[[SendResult | None, PacelineError | None, str], None]


def _recall_handle(result: SendResult | None, message_id: str) -> str:
    """Empty: the message is not delayed."""
    if result is None or result.recall_handle is None:
        return ""
    return make_recall_handle(result.topic, result.recall_handle, message_id)
