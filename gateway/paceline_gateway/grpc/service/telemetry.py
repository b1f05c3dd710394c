"""Telemetry, Heartbeat and NotifyClientTermination: who is there, and what it should work by.

A client's settings are answered by what is on record of its consumer group, as some clients read no
more than the first answer. Its user's connections may have to be made for that; whatever nodes do,
it is answered soon, since clients of some languages wait for the answer for ever. What was not
known then follows as changed settings. A client that loses its stream is the same client: its state
goes with its id.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from weakref import WeakKeyDictionary

from paceline.errors import DeadlineError, OverloadedError, PacelineError, PeerError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.server.byte_budget import ByteBudget, ByteHolder
from paceline.wire.cluster import ClusterView
from paceline.wire.consumer_groups import ConsumerGroupSettings
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import ClientKey, ConnectedClient, ConnectedClients
from paceline_gateway.grpc.codec.settings import (
    answer_to,
    check_settings,
    consumer_group_of,
    kind_of,
    topics_of,
)
from paceline_gateway.grpc.codec.statuses import OK, status_of
from paceline_gateway.grpc.codec.values import group_of
from paceline_gateway.grpc.service.call import Answer, Call
from paceline_gateway.grpc.service.concerned import Concerned
from paceline_gateway.grpc.service.transactions import Transactions
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.clients_pb2 import ClientType, Language, Settings
from paceline_gateway.grpc.stubs.resources_pb2 import Code
from paceline_gateway.shares import Shares

log = logging.getLogger("paceline.gateway")

COMMANDS_MAX = 64
"""That a client has not read yet. More questions to it are not put; settings replace older ones."""
STREAMS_MAX = 20_000
ANSWER_MS_MAX = 2_000
"""Java's clients wait 3 s for the answer to their settings."""
ASK_MS = 10_000
"""So long a client may take to answer a question."""


class Stream:
    """One Telemetry stream. Owner: its call."""

    def __init__(self, holder: ByteHolder, release: Callable[[], None] = lambda: None) -> None:
        """`holder`: of what the client has not read yet. `release`: it has its place no more."""
        self._holder, self._release = holder, release
        self.settings: Settings | None = None
        """The client's, as it told them last."""
        self.is_asked = False
        """They have no answer yet."""
        self.told: Settings | None = None
        """The answer."""
        self.group: str | None = None
        self.record: ConsumerGroupSettings | None = None
        """What the answer was made by."""
        self.is_open = True
        self._commands: deque[wire.TelemetryCommand] = deque()
        self._news = asyncio.Event()
        self._asked: dict[str, asyncio.Future[str]] = {}
        """By nonce: an answer on another stream is none."""
        self._last_nonce = 0

    def put(self, command: wire.TelemetryCommand) -> bool:
        """Have the client told; whether there was room."""
        if not self.is_open or len(self._commands) >= COMMANDS_MAX:
            return False
        if not self._holder.take(command.ByteSize()):
            return False
        self._commands.append(command)
        self._news.set()
        return True

    async def stacks(self) -> str:
        """Where the client's threads are: it is asked. PeerError, DeadlineError; OverloadedError:
        it does not read."""
        self._last_nonce += 1
        nonce = str(self._last_nonce)
        asking = wire.PrintThreadStackTraceCommand(nonce=nonce)
        if not self.is_open:
            raise PeerError("the client has gone")
        if not self.put(wire.TelemetryCommand(status=OK, print_thread_stack_trace_command=asking)):
            raise OverloadedError("the client does not read what it is told")
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[nonce] = waiter
        try:
            async with asyncio.timeout(ASK_MS / 1000):
                return await waiter
        except TimeoutError:
            raise DeadlineError(f"the client did not answer within {ASK_MS} ms") from None
        finally:
            del self._asked[nonce]

    def answered(self, command: wire.TelemetryCommand) -> None:
        """The client has told its stacks; what nobody waits for is passed over."""
        told, status = command.thread_stack_trace, command.status
        waiter = self._asked.get(told.nonce)
        if waiter is None or waiter.done():
            return
        if status.code in (Code.CODE_UNSPECIFIED, Code.OK):
            waiter.set_result(told.thread_stack_trace)
        else:
            why = f"the client answered {status.code}: {status.message[:255]}"
            waiter.set_exception(PeerError(why))

    def end(self) -> None:
        """After what was put before."""
        self.is_open = False
        self._release()
        for waiter in self._asked.values():
            if not waiter.done():
                waiter.set_exception(PeerError("the client's stream has ended"))
        self._news.set()

    async def commands(self) -> AsyncIterator[wire.TelemetryCommand]:
        """What to tell the client, until the end."""
        while self._commands or self.is_open:
            if not self._commands:
                await self._news.wait()
                self._news.clear()
                continue
            command = self._commands.popleft()
            yield command
            self._holder.give(command.ByteSize())


class TelemetryCalls:
    """Owned by one gateway's gRPC door."""

    def __init__(
        self, clients: ConnectedClients, transactions: Transactions, budget: ByteBudget
    ) -> None:
        self._clients, self._budget = clients, budget
        self._transactions = transactions
        self._shares = Shares(STREAMS_MAX, "Telemetry streams")
        self._streams: dict[ClientKey, Stream] = {}
        self._joining: dict[ClientKey, asyncio.Task[None]] = {}
        """One at a time of each client, however often it tells of itself."""
        self._views: WeakKeyDictionary[UserCluster, Concerned[ClientKey]] = WeakKeyDictionary()
        """Of each cluster whose views are listened to."""
        self._concerned: dict[ClientKey, Concerned[ClientKey]] = {}
        """Where a client with a stream is put."""
        transactions.ask = self._ask
        transactions.has_stream = lambda client: client.key in self._streams
        clients.on_gone(self._gone)

    def handlers(self) -> dict[str, Answer]:
        return {"Heartbeat": self.heartbeat, "NotifyClientTermination": self.terminate}

    async def close(self) -> None:
        for stream in self._streams.values():
            stream.end()
        await cancel_and_wait(*self._joining.values())

    # -- the stream -------------------------------------------------------------------------------

    async def telemetry(
        self, commands: AsyncIterator[wire.TelemetryCommand], call: Call
    ) -> AsyncIterator[wire.TelemetryCommand]:
        """What the client tells is read beside what it is told."""
        key = call.key
        former = self._streams.get(key)
        if former is not None:
            former.end()  # its client has opened another one
        release = self._shares.take(call.owner)
        holder = self._budget.holder(call.principal.source)
        stream = Stream(holder, release)
        self._streams[key] = stream
        reading = spawn(self._read(commands, stream, call), name="grpc-telemetry")
        try:
            async for command in stream.commands():
                yield command
        finally:
            stream.end()
            holder.close()
            if self._streams.get(key) is stream:
                del self._streams[key]
                self._unfollow(key)
                self._left(key)
            reading.cancel()

    async def _read(
        self, commands: AsyncIterator[wire.TelemetryCommand], stream: Stream, call: Call
    ) -> None:
        try:
            async for command in commands:
                if command.HasField("settings"):
                    self._settings(command.settings, stream, call)
                elif command.HasField("thread_stack_trace"):
                    stream.answered(command)
        finally:
            stream.end()

    def _settings(self, settings: Settings, stream: Stream, call: Call) -> None:
        """Answer a client's settings, and remember what they say of it."""
        try:
            check_settings(settings)
            stream.group = consumer_group_of(settings, call.namespace)
            topics = dict(topics_of(settings, call.namespace))
            client = self._clients.hear(call.key, "grpc", call.principal.source)
        except PacelineError as error:
            stream.put(wire.TelemetryCommand(status=status_of(error)))
            return
        client.kind = kind_of(settings.client_type)
        client.groups = set() if stream.group is None else {stream.group}
        client.topics = topics
        client.language, client.version = _agent(settings, call)
        client.told_ms = None
        stream.settings, stream.is_asked = settings, True
        if client.cluster is not None:
            self._follow(client, client.cluster, stream)
        if stream.group is None or client.cluster is not None:
            self._tell(stream, client)
        else:
            asyncio.get_running_loop().call_later(ANSWER_MS_MAX / 1000, self._tell, stream, client)
        self._join_soon(client, call)

    def _tell(self, stream: Stream, client: ConnectedClient) -> None:
        """The settings to work by, if it asks or they are others than it has."""
        cluster = None if client.cluster is None else client.cluster.cluster
        group = _record(cluster, stream.group)
        if stream.settings is None or not (stream.is_asked or group != stream.record):
            return
        stream.record = group
        answer = answer_to(stream.settings, group)
        if stream.is_asked or answer != stream.told:
            stream.told = answer
            stream.is_asked = False
            stream.put(wire.TelemetryCommand(status=OK, settings=answer))

    def _join_soon(self, client: ConnectedClient, call: Call) -> None:
        if client.key not in self._joining:
            task = spawn(self._join(client, call), name="grpc-client")
            self._joining[client.key] = task
            task.add_done_callback(lambda _: self._joining.pop(client.key, None))

    async def _join(self, client: ConnectedClient, call: Call) -> None:
        """What needs the cluster: the record of the group, questions about transactions."""
        try:
            cluster = client.cluster = await call.cluster()
        except PacelineError as error:  # its next settings or request will
            log.info("client_not_joined", extra={"error": error.message})
            return
        stream = self._streams.get(client.key)
        if stream is not None:
            self._follow(client, cluster, stream)
            self._tell(stream, client)
        self._transactions.serve(client)

    def _follow(self, client: ConnectedClient, cluster: UserCluster, stream: Stream) -> None:
        """Have it told when what it works by changes."""
        concerned = self._views.get(cluster)
        if concerned is None:
            # No value may hold its key, or neither would ever go.
            concerned = self._views[cluster] = Concerned(
                partial(_record, cluster.cluster), partial(_type_of, cluster.cluster)
            )
            cluster.cluster.watch.listen(partial(self._on_view, concerned))
        if self._concerned.get(client.key) is not concerned:
            self._unfollow(client.key)  # its user's connections were others
            self._concerned[client.key] = concerned
        concerned.put(client.key, stream.group, client.topics)

    def _unfollow(self, key: ClientKey) -> None:
        concerned = self._concerned.pop(key, None)
        if concerned is not None:
            concerned.drop(key)

    def _on_view(self, concerned: Concerned[ClientKey], _: ClusterView) -> None:
        """The records of groups may have changed; topics may have been made."""
        for key in concerned.changed():
            client, stream = self._clients.get(key), self._streams.get(key)
            if client is not None and stream is not None:
                self._tell(stream, client)
                self._transactions.serve(client)

    async def stacks(self, client: ConnectedClient) -> str:
        """As `Stream.stacks`, of a client that is connected here."""
        stream = self._streams.get(client.key)
        if stream is None:
            raise PeerError("the client has no Telemetry stream now, by which it could be asked")
        return await stream.stacks()

    def _ask(self, client: ConnectedClient, command: wire.TelemetryCommand) -> bool:
        stream = self._streams.get(client.key)
        return stream is not None and stream.put(command)

    def _left(self, key: ClientKey) -> None:
        client = self._clients.get(key)
        if client is not None:
            self._transactions.left(client)

    def _gone(self, client: ConnectedClient) -> None:
        stream = self._streams.get(client.key)
        if stream is not None:
            stream.end()

    # -- calls ------------------------------------------------------------------------------------

    async def heartbeat(self, request: wire.HeartbeatRequest, call: Call) -> wire.HeartbeatResponse:
        """A client is there. One that says nothing else is only trying whether we are."""
        if not call.client_id:
            return wire.HeartbeatResponse(status=OK)
        client = self._clients.hear(call.key, "grpc", call.principal.source)
        if request.client_type != ClientType.CLIENT_TYPE_UNSPECIFIED:
            client.kind = kind_of(request.client_type)
        if request.HasField("group") and request.group.name and client.kind == "consumer":
            client.works_for(group_of(request.group, call.namespace).full)
        if not client.language:
            client.language, client.version = call.language, call.version
        self._join_soon(client, call)
        return wire.HeartbeatResponse(status=OK)

    async def terminate(
        self, request: wire.NotifyClientTerminationRequest, call: Call
    ) -> wire.NotifyClientTerminationResponse:
        """A client goes."""
        self._clients.gone(call.key)
        return wire.NotifyClientTerminationResponse(status=OK)


def _record(cluster: Cluster | None, group: str | None) -> ConsumerGroupSettings | None:
    view = None if cluster is None else cluster.view
    if view is None or group is None:
        return None
    known = view.consumer_groups.get(group)  # type: ignore[call-overload]
    return None if known is None else known.settings


def _type_of(cluster: Cluster, name: str) -> str | None:
    """Of a topic's messages; None: there is no such topic."""
    topic = cluster.topic(name)
    return None if topic is None else topic.message_type


def _agent(settings: Settings, call: Call) -> tuple[str, str]:
    """Language and version."""
    agent = settings.user_agent
    is_known = agent.language in Language.values() and agent.language
    language = Language.Name(agent.language) if is_known else call.language
    return language, agent.version or call.version
