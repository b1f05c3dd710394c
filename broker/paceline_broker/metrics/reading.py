"""Metrics of receipts, of what consumers read from replicas, and of long work."""

from paceline.platform.telemetry import Metrics, Samples
from paceline.wire.names import RETRY_PREFIX
from paceline_broker.ports import RoleState
from paceline_broker.projections.consume_queues import topic_of
from paceline_broker.projections.cursors import group_of
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.service import Service


def register_reading(metrics: Metrics, service: Service) -> None:
    """Name the counts of one broker."""
    _work_metrics(metrics, service.work)
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
        "paceline_receipts_cursors_count",
        "Clients of broadcasting groups that stand somewhere here; alert near 5,000.",
        lambda: service.cursors.count,
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


def _work_metrics(metrics: Metrics, work: LongWork) -> None:
    metrics.sampled(
        "paceline_long_work_waiting_count",
        "Requests whose work takes several turns of the loop and has not begun; alert when it "
        "stays above 100: batches, filters or searches cost more than this broker has time for.",
        lambda: work.waiting_count,
    )
    metrics.sampled(
        "paceline_long_work_steps_total",
        "Steps of such work, one each turn of the loop.",
        lambda: work.steps,
    )
    metrics.sampled(
        "paceline_long_work_refused_total",
        "Requests refused with OVERLOADED as too much such work waits, or as there is no memory to "
        "unpack their batch; alert when it grows.",
        lambda: work.refused,
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
            topic = service.routes.topic_name(topic_of(key))
            is_retry = "true" if topic.startswith(RETRY_PREFIX) else "false"
            at = (topic, group_of(group), is_retry, "false")
            counts[at] = counts.get(at, 0) + len(queue.in_flight)
    return counts
