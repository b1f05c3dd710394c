"""A client of RocketMQ's gRPC protocol, on our own messages, and a door in the test's process.

The official client of Python has the same messages in the same registry of protobuf, so it runs in
a process of its own.
"""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from tests.support.gateway.authenticators import an_authenticator

from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap, Credentials
from paceline.platform.runtime import SystemClock, cancel_and_wait, spawn
from paceline_gateway.clusters import UserClusters
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.server import GrpcServer
from paceline_gateway.grpc.service.service import METHODS, GrpcService
from paceline_gateway.grpc.stubs import clients_pb2 as clients
from paceline_gateway.grpc.stubs import messages_pb2 as messages
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import (
    Code,
    FilterExpression,
    FilterType,
    MessageQueue,
    MessageType,
    Resource,
    SubscriptionEntry,
)


@contextlib.asynccontextmanager
async def a_door(bootstrap: Bootstrap, **options: Any) -> AsyncIterator[int]:
    """The port of a door to that cluster."""
    clusters = UserClusters(lambda principal: Cluster(bootstrap))
    connected = ConnectedClients(SystemClock())
    sweeping = spawn(connected.run(), name="connected-clients")
    options = {"authenticator": an_authenticator(), "tls": None, **options}
    own = {name: options.pop(name) for name in ("budget", "metrics") if name in options}
    server = GrpcServer(GrpcService(connected, **own), clusters=clusters, **options)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.close()
        await cancel_and_wait(sweeping)
        await clusters.close()


class RawClient:
    """Calls of one client id. `await client.call("QueryRoute", request)`."""

    def __init__(
        self, port: int, client_id: str = "host@1@0@a", *, credentials: Any = None, **headers: str
    ) -> None:
        """Has a connection of its own."""
        address = f"127.0.0.1:{port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            name = ("grpc.ssl_target_name_override", "localhost")
            self._channel = grpc.aio.secure_channel(address, credentials, options=[*options, name])
        self.metadata = [
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
            *((name.replace("_", "-"), value) for name, value in headers.items()),
        ]
        self._number = 0

    async def __aenter__(self) -> "RawClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def _of(self, name: str) -> Any:
        method = METHODS[name]
        kind = "stream" if method.client_streaming else "unary"
        kind += "_stream" if method.server_streaming else "_unary"
        return getattr(self._channel, kind)(
            f"/{method.containing_service.full_name}/{name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

    async def call(self, name: str, request: Any, *, timeout_s: float = 20) -> Any:
        """The answer; the list of answers if there are many."""
        made = self._of(name)(request, timeout=timeout_s, metadata=self.metadata)
        if METHODS[name].server_streaming:
            return [answer async for answer in made]
        return await made

    def telemetry(self, client_id: str | None = None) -> Any:
        """A stream with `write` and `read`, of this client or another one on the connection."""
        metadata = dict(self.metadata)
        if client_id is not None:
            metadata["x-mq-client-id"] = client_id
        return self._of("Telemetry")(metadata=list(metadata.items()))

    # -- what clients usually ask -----------------------------------------------------------------

    def message(
        self, topic: str, body: bytes, *, user: dict[str, str] | None = None, **system: Any
    ) -> messages.Message:
        self._number += 1
        properties = {"message_id": f"01{self._number:032X}", "born_host": "here", **system}
        return messages.Message(
            topic=Resource(name=topic),
            body=body,
            user_properties=user or {},
            system_properties=messages.SystemProperties(**properties),
        )

    async def send(self, *sent: messages.Message) -> Any:
        return await self.call("SendMessage", wire.SendMessageRequest(messages=sent))

    async def receive(
        self, topic: str, group: str, *, tags: str = "*", timeout_s: float = 20, **more: Any
    ) -> list[messages.Message]:
        """Messages; [] if there are none. AssertionError for other statuses."""
        more.setdefault("batch_size", 32)
        request = wire.ReceiveMessageRequest(
            group=Resource(name=group),
            message_queue=MessageQueue(topic=Resource(name=topic), id=0),
            filter_expression=FilterExpression(type=FilterType.TAG, expression=tags),
            **more,
        )
        answers = await self.call("ReceiveMessage", request, timeout_s=timeout_s)
        statuses = [each.status.code for each in answers if each.HasField("status")]
        assert len(statuses) == 1, answers
        assert statuses[0] in (20000, 40401), answers
        return [each.message for each in answers if each.HasField("message")]

    async def ack(self, topic: str, group: str, *received: messages.Message) -> Any:
        entries = [
            wire.AckMessageEntry(
                message_id=each.system_properties.message_id,
                receipt_handle=each.system_properties.receipt_handle,
            )
            for each in received
        ]
        return await self.call(
            "AckMessage",
            wire.AckMessageRequest(
                group=Resource(name=group), topic=Resource(name=topic), entries=entries
            ),
        )


def producer_settings(*topics: str) -> wire.TelemetryCommand:
    return wire.TelemetryCommand(
        settings=clients.Settings(
            client_type=clients.ClientType.PRODUCER,
            publishing=clients.Publishing(
                topics=[Resource(name=topic) for topic in topics], max_body_size=1 << 27
            ),
            user_agent=clients.UA(language=clients.Language.GOLANG, version="5.1.4"),
        )
    )


def consumer_settings(group: str, topic: str) -> wire.TelemetryCommand:
    expression = FilterExpression(type=FilterType.TAG, expression="*")
    entry = SubscriptionEntry(topic=Resource(name=topic), expression=expression)
    return wire.TelemetryCommand(
        settings=clients.Settings(
            client_type=clients.ClientType.PUSH_CONSUMER,
            subscription=clients.Subscription(group=Resource(name=group), subscriptions=[entry]),
            user_agent=clients.UA(language=clients.Language.JAVA, version="5.2.0"),
        )
    )


def signed_by(key: Credentials, *, secret_key: str | None = None) -> tuple[str, str]:
    """The headers `authorization` and `x-mq-date-time` of a call."""
    date = datetime.fromtimestamp(SystemClock().unix_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    made = hmac.digest((secret_key or key.secret_key).encode(), date.encode(), "sha1").hex()
    shown = f"MQv2-HMAC-SHA1 Credential={key.access_key}, SignedHeaders=x-mq-date-time"
    return f"{shown}, Signature={made}", date


TRANSACTION = MessageType.TRANSACTION


async def within(work: Any, timeout_s: float = 20) -> Any:
    """A read of a stream that must not hang."""
    async with asyncio.timeout(timeout_s):
        return await work


def bodies(received: list[messages.Message]) -> list[bytes]:
    return [each.body for each in received]


async def drained(client: RawClient, topic: str, group: str, count: int) -> list[Any]:
    """So many messages, acknowledged."""
    found: list[Any] = []
    while len(found) < count:
        received = await client.receive(topic, group)
        found += received
        if received:
            assert (await client.ack(topic, group, *received)).status.code == Code.OK
    return found


async def first_of(client: RawClient, topic: str, group: str) -> list[Any]:
    """Messages, not acknowledged."""
    while not (received := await client.receive(topic, group)):
        pass
    return received
