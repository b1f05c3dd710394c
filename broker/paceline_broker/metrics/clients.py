"""Metrics of connected clients, under RocketMQ's names."""

from paceline.platform.telemetry import Metrics, Samples
from paceline_broker.service.service import Service


def register_clients(metrics: Metrics, service: Service) -> None:
    """Name the counts of one broker."""

    def counts(kind: str) -> dict[str, int]:
        table = service.client_calls.clients
        table.expire(service.clock.monotonic_ms())
        return {group: count for (each, group), count in table.counts().items() if each == kind}

    def consumers() -> Samples:
        return {(group,): count for group, count in counts("consumer").items()}

    metrics.sampled(
        "rocketmq_producer_connections",
        "Connected producers.",
        lambda: sum(counts("producer").values()),
    )
    metrics.sampled("rocketmq_consumer_connections", "Connected consumers.", consumers)
