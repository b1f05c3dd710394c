"""A gateway's gRPC door without sockets: calls and answers are bytes."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from paceline.errors import PacelineError
from paceline_chaos.cluster_sim.doors.gateways import Gateway
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_gateway.grpc.codec.statuses import status_of
from paceline_gateway.grpc.service.call import Call, call_of
from paceline_gateway.grpc.service.service import SERVICE, GrpcService, failed
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Address, AddressScheme, Endpoints

_ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="127.0.0.1", port=8081)])


class GrpcGateway(Gateway):
    """One life of one gateway."""

    def __init__(self, around: Around, number: int) -> None:
        super().__init__(around, number)
        self._service = GrpcService(self.clients)

    @property
    def groups_count(self) -> int:
        """Broker groups that it knows of; 0: none yet."""
        return 0 if self.view is None else len(self.view.groups)

    def _call(self, headers: Mapping[str, str], source: str, deadline_ms: int | None) -> Call:
        """PacelineError: it is not carried out for whoever asks."""
        principal = self.who.authenticator.grpc(
            headers.get("authorization"), headers.get("x-mq-date-time"), source
        )
        return call_of(
            headers,
            principal,
            self.clusters,
            deadline_ms=deadline_ms,
            endpoints=_ENDPOINTS,
        )

    async def call(
        self,
        name: str,
        request: bytes,
        headers: Mapping[str, str],
        *,
        source: str,
        deadline_ms: int,
    ) -> list[bytes]:
        """The answers of a call. DeadlineError: none in time, and the call is given up;
        OutcomeUnknownError: the gateway is gone, or dies meanwhile."""
        method = SERVICE.methods_by_name[name]
        asked = getattr(wire, method.input_type.name).FromString(request)

        async def answer() -> list[bytes]:
            try:
                call = self._call(headers, source, deadline_ms)
            except PacelineError as error:
                return [_bytes(failed(name, status_of(error)))]
            if not method.server_streaming:
                return [_bytes(await self._service.answer(name, asked, call))]
            async with aclosing(self._service.answers(name, asked, call)) as answers:  # type: ignore[type-var]
                return [_bytes(each) async for each in answers]

        return await self.carry_out(answer, deadline_ms)

    def converse(
        self,
        commands: AsyncIterator[bytes],
        headers: Mapping[str, str],
        source: str,
        on_command: Callable[[bytes], None],
    ) -> Any:
        """A Telemetry stream, as a task; done when it has ended."""

        async def decoded() -> AsyncIterator[wire.TelemetryCommand]:
            async for command in commands:
                yield wire.TelemetryCommand.FromString(command)

        async def run() -> None:
            try:
                call = self._call(headers, source, None)
            except PacelineError:
                return  # who shows an old key has no stream; it is told so by each of its calls
            answers = self._service.telemetry(decoded(), call)
            async with aclosing(answers) as told:  # type: ignore[type-var]
                async for command in told:
                    on_command(_bytes(command))

        return self.begin(run(), "gateway-telemetry")

    def _hang_up(self) -> None:
        """Calls end as tasks."""

    async def _leave(self) -> None:
        await self._service.leave()

    async def _close_service(self) -> None:
        await self._service.close()


def _bytes(message: Any) -> bytes:
    """In one way only, whatever the order of a map's entries in memory."""
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded
