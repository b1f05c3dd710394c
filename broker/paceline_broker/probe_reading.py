"""Metrics of receipts, and of what consumers read from replicas."""

from paceline.telemetry import Metrics, Samples
from paceline.wire.names import RETRY_PREFIX
from paceline_broker.service.ports import RoleState
from paceline_broker.service.service import Service


def register_reading(metrics: Metrics, service: Service) -> None:
    """Name the counts of one broker."""
    receipts, counters = service.receipts.counters, service.counters
    metrics.sampled(
        "paceline_receipts_given_total",
        "Messages given to simple consumers.",
        lambda: receipts.given,
    )
    metrics.sampled(
        "paceline_receipts_given_again_total",
        "Those of them whose time had run out, or that were given back after a look; alert when it "
        "grows like the whole: consumers are too slow for their invisible time.",
        lambda: receipts.given_again,
    )
    metrics.sampled(
        "paceline_receipts_acknowledged_total",
        "Messages that simple consumers are done with.",
        lambda: receipts.acknowledged,
    )
    metrics.sampled(
        "paceline_receipts_changed_total",
        "Messages whose invisible time was changed, or that were given back.",
        lambda: receipts.changed,
    )
    metrics.sampled(
        "paceline_receipts_waiting_count",
        "Receivers that wait for a message; alert near max_pop_polling_size (100,000).",
        lambda: service.receipts.waiting_count,
    )
    metrics.sampled(
        "rocketmq_consumer_inflight_messages",
        "Delivered, not yet acknowledged.",
        lambda: _in_flight(service),
    )
    metrics.sampled(
        "paceline_replica_reads_messages_total",
        "Messages read from this broker while it was a replica.",
        lambda: counters.replica_messages_out,
    )
    metrics.sampled(
        "paceline_replica_reads_bytes_total",
        "Bytes read from this broker while it was a replica.",
        lambda: counters.replica_bytes_out,
    )
    metrics.sampled(
        "paceline_replica_reads_named_total",
        "Answers of this master to readers far behind that named a replica; alert when it grows "
        "and paceline_replica_reads_messages_total of the replicas does not.",
        lambda: service.fetcher.slow.named_count,
    )


def _in_flight(service: Service) -> Samples:
    """On a master only (others would count them again)."""
    role = service.role
    if role.state is not RoleState.MASTER:
        return {}
    counts: dict[tuple[str, ...], float] = {}
    receipts = role.projections.receipts
    for group in receipts.groups():
        for key, queue in receipts.of_group(group).items():
            topic = service.routes.topic_name(key >> 16)
            is_retry = "true" if topic.startswith(RETRY_PREFIX) else "false"
            at = (topic, group, is_retry, "false")
            counts[at] = counts.get(at, 0) + len(queue.in_flight)
    return counts
