"""Transactions: half messages, their ends, and questions about those that nobody has ended.

The producer group of a topic's transactions is the topic's full name: any client that sends to the
topic may be asked, as a client does not say which group it is of. While a client that has named the
topic has a stream here, this gateway waits for brokers' questions about it and passes each to one
such client; brokers repeat a question until the transaction has ended. A gateway that waited longer
would take questions from the others to which its clients have gone.
"""

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary
from zlib import crc32

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.transaction import (
    HalfMessage,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from paceline.producer.transaction_ends import TransactionEndSender
from paceline.wire.topics import MIXED, TRANSACTION
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import ConnectedClient, ConnectedClients
from paceline_gateway.grpc.codec.received import half_of
from paceline_gateway.grpc.codec.sent import Sent
from paceline_gateway.grpc.codec.statuses import OK, Refused
from paceline_gateway.grpc.codec.values import topic_of
from paceline_gateway.grpc.service.call import Answer, Call
from paceline_gateway.grpc.stubs import messages_pb2
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Resource

log = logging.getLogger("paceline.gateway")

IMMUNITY_S_MAX = 3600
"""RocketMQ's bound of what a client may ask for."""
_END_TIMEOUT_MS = 10_000
_ATTEMPT_MS = 3_000


class Transactions:
    """Owned by one gateway's gRPC door."""

    def __init__(self, clients: ConnectedClients) -> None:
        self._clients = clients
        self.ask: Callable[[ConnectedClient, wire.TelemetryCommand], bool] = lambda *_: False
        """Passes a question on; whether the client has a stream."""
        self.has_stream: Callable[[ConnectedClient], bool] = lambda _: False
        self._producers: dict[tuple[UserCluster, str], _OfTopic] = {}
        self._ends: WeakKeyDictionary[UserCluster, TransactionEndSender] = WeakKeyDictionary()
        self._closing: set[asyncio.Task[None]] = set()
        clients.on_gone(self.left)

    def handlers(self) -> dict[str, Answer]:
        return {"EndTransaction": self.end}

    async def close(self) -> None:
        await cancel_and_wait(*self._closing)
        for of_topic in self._producers.values():
            await of_topic.close()
        for ends in list(self._ends.values()):
            await ends.close()

    # -- halves and ends --------------------------------------------------------------------------

    async def begin(self, sent: Sent, cluster: UserCluster) -> Transaction:
        """Store a half message; errors as of `TransactionProducer.begin`. A client without a stream
        could not be asked about it here, so nothing waits here for that."""
        topic = sent.message.topic
        of_topic = self._of(cluster, topic)
        immunity_s = min(IMMUNITY_S_MAX, -(-sent.recovery_ms // 1000)) or None
        of_topic.begins += 1
        try:
            return await of_topic.producer.begin(
                sent.message, check_immunity_s=immunity_s, is_library=True
            )
        finally:
            of_topic.begins -= 1
            if not of_topic.begins and not of_topic.is_serving:
                self._end(cluster, topic, of_topic)

    async def end(
        self, request: wire.EndTransactionRequest, call: Call
    ) -> wire.EndTransactionResponse:
        """Commit or roll back; the same end again is answered the same (R34)."""
        topic_of(request.topic, call.namespace)
        if request.resolution == messages_pb2.TransactionResolution.COMMIT:
            is_commit = True
        elif request.resolution == messages_pb2.TransactionResolution.ROLLBACK:
            is_commit = False
        else:
            return wire.EndTransactionResponse(status=OK)  # not known yet: it is asked again
        if not request.transaction_id:
            raise Refused(Code.INVALID_TRANSACTION_ID, "the request has no transaction_id")
        cluster = await call.cluster()
        try:
            await self._ends_of(cluster).end(request.transaction_id, is_commit=is_commit)
        except PacelineError as error:
            if error.code == "BAD_REQUEST":  # the id was cut or made up
                raise Refused(Code.INVALID_TRANSACTION_ID, error.message) from error
            raise
        return wire.EndTransactionResponse(status=OK)

    def _ends_of(self, cluster: UserCluster) -> TransactionEndSender:
        found = self._ends.get(cluster)
        if found is None:
            found = self._ends[cluster] = TransactionEndSender(
                cluster.links, timeout_ms=_END_TIMEOUT_MS, attempt_ms=_ATTEMPT_MS
            )
        return found

    # -- questions --------------------------------------------------------------------------------

    def serve(self, client: ConnectedClient) -> None:
        """Wait for questions about the topics that a producer sends to, if they have any."""
        cluster = client.cluster
        if cluster is None or client.kind != "producer" or not self.has_stream(client):
            return
        for name in client.topics:
            topic = cluster.cluster.topic(name)
            if topic is not None and topic.message_type in (TRANSACTION, MIXED):
                self._of(cluster, name).start()

    def _of(self, cluster: UserCluster, topic: str) -> "_OfTopic":
        found = self._producers.get((cluster, topic))
        if found is None:
            found = self._producers[cluster, topic] = _OfTopic(cluster, topic, self._check)
        return found

    def _check(self, cluster: UserCluster, half: HalfMessage) -> TransactionState:
        """Ask one producer, another one each time; it answers by ending the transaction."""
        full = cluster.cluster.namespace.full_topic  # clients may say less than the full name
        topic = full(half.topic)
        able = [
            client
            for client in self._clients
            if client.cluster is cluster
            and client.kind == "producer"
            and topic in map(full, client.topics)
        ]
        # Clients are kept in the order in which they were heard, which changes between two checks.
        able.sort(key=lambda client: client.key)
        first = crc32(half.transaction_id.encode()) + half.checks
        for step in range(len(able)):
            client = able[(first + step) % len(able)]
            command = wire.RecoverOrphanedTransactionCommand(
                message=half_of(half, Resource(name=half.topic)),
                transaction_id=half.transaction_id,
            )
            if self.ask(
                client,
                wire.TelemetryCommand(status=OK, recover_orphaned_transaction_command=command),
            ):
                break
        else:
            log.info("nobody_to_ask", extra={"topic": half.topic, "id": half.transaction_id})
        return TransactionState.UNKNOWN

    def left(self, client: ConnectedClient) -> None:
        """A client has gone, or its stream has ended: wait no more for questions that nobody here
        would answer."""
        cluster = client.cluster
        if cluster is None:
            return
        for topic in client.topics:
            of_topic = self._producers.get((cluster, topic))
            if of_topic is None:
                continue
            others = (each for each in self._clients if each.cluster is cluster)
            if not any(
                topic in each.topics and each.kind == "producer" and self.has_stream(each)
                for each in others
            ):
                self._end(cluster, topic, of_topic)

    def _end(self, cluster: UserCluster, topic: str, of_topic: "_OfTopic") -> None:
        if self._producers.get((cluster, topic)) is of_topic:
            del self._producers[cluster, topic]
            task = spawn(of_topic.close(), name="grpc-transactions-end")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class _OfTopic:
    """The producer of halves of one topic, for one user; once started, it waits for questions."""

    def __init__(
        self,
        cluster: UserCluster,
        topic: str,
        check: Callable[[UserCluster, HalfMessage], TransactionState],
    ) -> None:
        self.producer = TransactionProducer(
            cluster.cluster, group=topic, check=lambda half: check(cluster, half)
        )
        self.begins = 0
        """Halves that are being stored."""
        self._starting: asyncio.Task[None] | None = None
        self._release = cluster.hold()

    @property
    def is_serving(self) -> bool:
        return self._starting is not None

    def start(self) -> None:
        if self._starting is None:
            self._starting = spawn(self._start(), name="grpc-transactions")

    async def _start(self) -> None:
        try:
            await self.producer.start()
        except PacelineError as error:  # the next settings or heartbeat starts it again
            log.info("transactions_not_started", extra={"error": error.message})
            self._starting = None

    async def close(self) -> None:
        await cancel_and_wait(self._starting)
        try:
            await self.producer.close()
        finally:
            self._release()
