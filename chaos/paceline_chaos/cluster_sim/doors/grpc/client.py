"""A client of RocketMQ's gRPC protocol: its id, the gateway that it is at, its Telemetry stream.

It gives a call up after 3 s, as RocketMQ's clients do, and tells of itself again wherever it goes.
Messages of the protocol pass as bytes, both ways. Some answers are lost.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from paceline.errors import BY_CODE, DeadlineError, OutcomeUnknownError, PacelineError
from paceline.net.connect import Credentials
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_chaos.cluster_sim.doors.gateways import Gateways
from paceline_chaos.cluster_sim.doors.grpc.gateway import GrpcGateway
from paceline_chaos.cluster_sim.doors.who import GatewayRefusesError
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_gateway.grpc.codec.statuses import Refused
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.clients_pb2 import UA, ClientType, Language, Publishing, Settings
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Resource, Status
from paceline_gateway.signatures import ALGORITHM

AnswerT = TypeVar("AnswerT")

DEADLINE_MS = 3_000
"""Of a call; RocketMQ's clients have this by default."""
_WAY_MS_MAX = 2.0
_LOST_SHARE = 0.03
"""Calls that are carried out, and whose answers do not come."""
_KINDS = {**BY_CODE, GatewayRefusesError.code: GatewayRefusesError}
_MAYBE = (Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT)


class GrpcClient:
    """Used by one program; `close` when done."""

    def __init__(
        self,
        around: Around,
        gateways: Gateways[GrpcGateway],
        name: str,
        settings: Settings,
    ) -> None:
        self.around = around
        self.name = name
        self._gateways = gateways
        self._gateway: GrpcGateway | None = None
        self._settings = settings
        self._settings.user_agent.CopyFrom(UA(language=Language.JAVA, version="5.2.0"))
        self.on_half: Callable[[wire.RecoverOrphanedTransactionCommand], None] = lambda _: None
        """Told of transactions that somebody has to end."""
        self._stream: asyncio.Task[None] | None = None
        self._is_left = asyncio.Event()
        self._watching = spawn(self._watch(), name=f"{name}-telemetry")

    async def close(self) -> None:
        """It goes, and tells nobody."""
        await cancel_and_wait(self._watching)
        await cancel_and_wait(self._stream)

    def gateway(self) -> GrpcGateway:
        """Where it is; another one if that is gone."""
        if self._gateway is None or self._gateway.is_gone:
            self.leave()
        assert self._gateway is not None
        return self._gateway

    def leave(self) -> None:
        """Go to another gateway."""
        self._gateway = self._gateways.other_than(self._gateway)
        self._is_left.set()

    async def call(
        self, name: str, request: Any, answer: type[AnswerT], *, deadline_ms: int = DEADLINE_MS
    ) -> list[AnswerT]:
        """The answers of one attempt. DeadlineError, OutcomeUnknownError."""
        around, gateway = self.around, self.gateway()
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_ms / 1000
        is_lost = around.happens(_LOST_SHARE)
        await pause(around.random.uniform(0, _WAY_MS_MAX))
        encoded = request.SerializeToString(deterministic=True)
        left_ms = max(1, int((end - loop.time()) * 1000))
        answers = await gateway.call(
            name, encoded, self._headers(), source=around.address, deadline_ms=left_ms
        )
        await pause(around.random.uniform(0, _WAY_MS_MAX))
        if is_lost:
            await pause(max(0.0, (end - loop.time()) * 1000))
            raise DeadlineError(f"the answer of {name} was lost")
        decode: Callable[[bytes], AnswerT] = answer.FromString  # type: ignore[attr-defined]
        return [decode(each) for each in answers]

    def _headers(self) -> dict[str, str]:
        """Signed, if its user has a key."""
        headers = {"x-mq-client-id": self.name, "x-mq-language": "JAVA"}
        credentials = self.around.credentials
        if isinstance(credentials, Credentials):
            date = datetime.fromtimestamp(self.around.clock.unix_ms() / 1000, UTC)
            text = date.strftime("%Y%m%dT%H%M%SZ")
            signature = hmac.digest(credentials.secret_key.encode(), text.encode(), "sha1").hex()
            headers["x-mq-date-time"] = text
            headers["authorization"] = (
                f"{ALGORITHM} Credential={credentials.access_key}, Signature={signature}"
            )
        return headers

    # -- telemetry ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Have a stream open where it is."""
        while True:
            gateway = self.gateway()
            self._is_left.clear()
            self._stream = gateway.converse(
                self._commands(), self._headers(), self.around.address, self._told
            )
            leaving = spawn(self._left(), name=f"{self.name}-leaves")
            await asyncio.wait({self._stream, leaving}, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(self._stream, leaving)
            await pause(self.around.random.uniform(20, 200))

    async def _left(self) -> None:
        await self._is_left.wait()

    async def _commands(self) -> AsyncIterator[bytes]:
        command = wire.TelemetryCommand(settings=self._settings)
        yield command.SerializeToString(deterministic=True)
        await asyncio.get_running_loop().create_future()  # the stream stays open

    def _told(self, encoded: bytes) -> None:
        command = wire.TelemetryCommand.FromString(encoded)
        if command.HasField("recover_orphaned_transaction_command"):
            self.on_half(command.recover_orphaned_transaction_command)


def topic_of(around: Around) -> Resource:
    """The topic that clients use."""
    return Resource(name=around.topic)


def publishing(around: Around) -> Settings:
    """Settings of a producer."""
    return Settings(
        client_type=ClientType.PRODUCER, publishing=Publishing(topics=[topic_of(around)])
    )


def error_of(status: Status) -> PacelineError | None:
    """What a status says, as the error that it was made of; None: it went well."""
    if status.code == Code.OK:
        return None
    if status.code in _MAYBE:
        return OutcomeUnknownError(status.message)
    kind = _KINDS.get(status.message.partition(":")[0])
    return Refused(status.code, status.message) if kind is None else kind(status.message)
