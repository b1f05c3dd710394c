"""What the calls of the gRPC door took, for the metrics of its gateway."""

import asyncio
from collections import Counter

from paceline.platform.telemetry import Metrics
from paceline_gateway.grpc.stubs.resources_pb2 import Code

_GOOD = (Code.OK, Code.MULTIPLE_RESULTS, Code.MESSAGE_NOT_FOUND)
"""A receive that nothing came for has not failed; entries have statuses of their own."""
_NAMES = {number: name for name, number in Code.items()}


class CallCounts:
    """Owned by one gateway's gRPC door."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.failed: Counter[tuple[str, int]] = Counter()
        """By call and code."""
        self.seconds: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        """To be handed to `ended`."""
        return self._loop.time()

    def ended(self, name: str, since: float, code: int) -> None:
        """A call has been answered, with that status."""
        self.calls[name] += 1
        self.seconds[name] = self.seconds.get(name, 0.0) + self._loop.time() - since
        if code not in _GOOD:
            self.failed[name, code] += 1

    def register(self, metrics: Metrics) -> None:
        metrics.sampled(
            "paceline_gateway_grpc_calls_total",
            "Calls of RocketMQ's gRPC clients that were answered, by name.",
            lambda: {(name,): count for name, count in self.calls.items()},
            labels=("call",),
        )
        metrics.sampled(
            "paceline_gateway_grpc_call_errors_total",
            "Those that were answered with a status other than OK, by its name; alert when"
            " INTERNAL_SERVER_ERROR grows.",
            self._errors,
            labels=("call", "status"),
        )
        metrics.sampled(
            "paceline_gateway_grpc_call_seconds_total",
            "Time from a call to its answer; ReceiveMessage and Telemetry wait in it.",
            lambda: {(name,): seconds for name, seconds in self.seconds.items()},
            labels=("call",),
        )

    def _errors(self) -> dict[tuple[str, ...], float]:
        return {(call, _NAMES[code]): count for (call, code), count in self.failed.items()}
