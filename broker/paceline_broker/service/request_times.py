"""A watcher of requests that comes with paceline: how many there are and how long they take.

Named in a broker's configuration: hooks = ["paceline_broker.service.request_times:register"].
"""

from collections import Counter

from paceline.platform.telemetry import Metrics, Samples
from paceline_broker.service.hooks import Hooks, RequestContext


class RequestTimes:
    """Counts and sums, by endpoint, operation and outcome."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.took_ms: Counter[tuple[str, str]] = Counter()

    def before_request(self, request: RequestContext) -> None:
        """Nothing: all is known afterwards."""

    def after_request(self, request: RequestContext) -> None:
        self.counts[(request.endpoint, request.operation, request.code or "OK")] += 1
        self.took_ms[(request.endpoint, request.operation)] += request.took_ms

    def register_metrics(self, metrics: Metrics) -> None:
        metrics.sampled(
            "paceline_service_operations_total",
            "Requests answered, by endpoint, operation and code.",
            lambda: {labels: float(count) for labels, count in self.counts.items()},
            labels=("endpoint", "operation", "code"),
        )
        metrics.sampled(
            "paceline_service_operation_seconds_total",
            "Time that requests took, long polls included; by operations it is their mean.",
            self._seconds,
            labels=("endpoint", "operation"),
        )

    def _seconds(self) -> Samples:
        return {labels: took_ms / 1000 for labels, took_ms in self.took_ms.items()}


def register(hooks: Hooks) -> None:
    """For the configuration."""
    times = RequestTimes()
    hooks.around_requests(times)
    hooks.on_metrics(times.register_metrics)
