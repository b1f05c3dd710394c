"""All requests of RocketMQ's gRPC protocol, by name; errors become statuses.

It knows no socket, so a simulated world can make the same calls.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from paceline.errors import PacelineError
from paceline.platform.telemetry import Metrics
from paceline.server.byte_budget import ByteBudget
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.codec.statuses import Refused, status_of
from paceline_gateway.grpc.service.admin import AdminCalls
from paceline_gateway.grpc.service.call import Answer, AnswerStream, Call
from paceline_gateway.grpc.service.counts import CallCounts
from paceline_gateway.grpc.service.questions import QuestionCalls
from paceline_gateway.grpc.service.receiving import ReceiveCalls
from paceline_gateway.grpc.service.routes import RouteCalls
from paceline_gateway.grpc.service.sending import SendCalls
from paceline_gateway.grpc.service.telemetry import TelemetryCalls
from paceline_gateway.grpc.service.transactions import Transactions
from paceline_gateway.grpc.stubs import admin_pb2
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Status

log = logging.getLogger("paceline.gateway")

SERVICE = wire.DESCRIPTOR.services_by_name["MessagingService"]
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
METHODS: dict[str, Any] = {
    method.name: method
    for service in (SERVICE, ADMIN)
    for method in service.methods
    if "status" in method.output_type.fields_by_name
}
"""By name. One has no status to answer by, ChangeLogLevel: gRPC itself says that it is not here."""
_LITE = "lite topics are not served here: use topics"
_PULL = "receive messages with ReceiveMessage, which no queue has to be chosen for"
_ADMIN = "use the command paceline, or mqadmin"
_NOT_HERE = {
    "PullMessage": _PULL,
    "UpdateOffset": _PULL,
    "GetOffset": _PULL,
    "QueryOffset": _PULL,
    "SyncLiteSubscription": _LITE,
}


class GrpcService:
    """The MessagingService of one gateway, and what it has of Admin."""

    def __init__(
        self,
        clients: ConnectedClients,
        *,
        name: str = "",
        budget: ByteBudget | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`name`: the gateway's. `budget`: for messages on their way through. Must be made on the
        running event loop."""
        budget = budget or ByteBudget()
        self._counts = CallCounts()
        if metrics is not None:
            self._counts.register(metrics)
        self._transactions = Transactions(clients)
        self._telemetry = TelemetryCalls(clients, self._transactions, budget)
        self._sending = SendCalls(clients, self._transactions, budget)
        self._receiving = ReceiveCalls(clients, budget)
        self._answers: dict[str, Answer] = {
            **RouteCalls().handlers(),
            **self._sending.handlers(),
            **self._receiving.handlers(),
            **self._telemetry.handlers(),
            **self._transactions.handlers(),
            **AdminCalls(clients, name).handlers(),
            **QuestionCalls(clients, self._telemetry).handlers(),
        }
        self._streams: dict[str, AnswerStream] = self._receiving.stream_handlers()

    async def leave(self) -> None:
        """End the streams of clients, which would not end by themselves: they go to another
        gateway. Calls are answered still."""
        await self._telemetry.close()

    async def close(self) -> None:
        """After the last call: give back what was received, disconnect."""
        await self._sending.close()
        await self._receiving.close()
        await self._transactions.close()

    async def answer(self, name: str, request: Any, call: Call) -> Any:
        """The answer of a call with one answer, also where it fails."""
        since = self._counts.now()
        found = await self._answer(name, request, call)
        self._counts.ended(name, since, found.status.code)
        return found

    async def _answer(self, name: str, request: Any, call: Call) -> Any:
        try:
            answer = self._answers.get(name)
            if answer is None:
                raise _not_here(name)
            return await answer(request, call)
        except PacelineError as error:
            return failed(name, status_of(error))
        except Exception:
            log.exception("grpc_call_failed", extra={"call": name})
            return failed(name, _BUG)

    async def answers(self, name: str, request: Any, call: Call) -> AsyncIterator[Any]:
        """The answers of a call with many; the last one tells the status."""
        since, code = self._counts.now(), int(Code.OK)
        try:
            answers = self._streams.get(name)
            if answers is None:
                raise _not_here(name)
            async for answer in answers(request, call):
                code = answer.status.code or code
                yield answer
        except PacelineError as error:
            status = status_of(error)
            code = status.code
            yield failed(name, status)
        except Exception:
            log.exception("grpc_call_failed", extra={"call": name})
            code = _BUG.code
            yield failed(name, _BUG)
        finally:
            self._counts.ended(name, since, code)

    async def telemetry(
        self, commands: AsyncIterator[wire.TelemetryCommand], call: Call
    ) -> AsyncIterator[wire.TelemetryCommand]:
        """Both ways on one stream."""
        since, code = self._counts.now(), int(Code.OK)
        try:
            async for command in self._telemetry.telemetry(commands, call):
                yield command
        except PacelineError as error:
            status = status_of(error)
            code = status.code
            yield failed("Telemetry", status)
        finally:
            self._counts.ended("Telemetry", since, code)


_BUG = Status(
    code=Code.INTERNAL_SERVER_ERROR,
    message="the gateway failed: its log says why; a message may have been stored",
)


def failed(name: str, status: Status) -> Any:
    """The answer of a call that says only that."""
    return GetMessageClass(METHODS[name].output_type)(status=status)


def _not_here(name: str) -> Refused:
    return Refused(Code.NOT_IMPLEMENTED, f"{name} is not served: {_NOT_HERE.get(name, _ADMIN)}")
