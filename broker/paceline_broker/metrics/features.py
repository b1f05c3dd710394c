"""Metrics of connected clients, transactions and delayed messages."""

from paceline.platform.telemetry import Metrics, Samples
from paceline_broker.ports import Role, RoleState
from paceline_broker.service.delays.delivery import Delivery, Lateness
from paceline_broker.service.routes import Routes
from paceline_broker.service.service import Service


def register_transactions(metrics: Metrics, service: Service) -> None:
    """Name the counts of one broker."""
    counters = service.transactions.counters

    def open_halves() -> Samples:
        """By target topic; on a master only (others would count them again)."""
        role = service.role
        if role.state is not RoleState.MASTER:
            return {}
        counts = role.projections.transactions.open_by_topic()
        return {
            (service.routes.topic_name(topic_id), "transaction", "false"): count
            for topic_id, count in counts.items()
        }

    metrics.sampled(
        "rocketmq_half_messages", "Undecided transactions; alert when it grows.", open_halves
    )
    metrics.sampled(
        "paceline_transactions_ended_total",
        "Transactions ended at this master, by outcome; alert: checked_out moves.",
        lambda: {
            ("committed",): counters.committed,
            ("rolled_back",): counters.rolled_back,
            ("checked_out",): counters.checked_out,
        },
        labels=("outcome",),
    )
    metrics.sampled(
        "paceline_transactions_checks_total",
        "Questions to producers about half messages that nobody ended.",
        lambda: counters.checks,
    )


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


def register_delays(metrics: Metrics, delivery: Delivery, role: Role, routes: Routes) -> None:
    """Name what waits on this master, and what it has delivered since the process started."""
    lateness = delivery.lateness

    def pending() -> Samples:
        """On a master only: others would count it again."""
        if role.state is not RoleState.MASTER:
            return {}
        by_topic = role.projections.timers.by_topic
        return {(routes.topic_name(topic),): float(count) for topic, count in by_topic.items()}

    metrics.sampled(
        "paceline_delay_pending_messages",
        "Delayed messages that wait for their time (RocketMQ's timing_messages); alert near "
        "timer_pending_max.",
        pending,
        labels=("topic",),
    )
    metrics.sampled(
        "paceline_delay_delivered_total",
        "Delayed messages put into their queues, or among the dead letters.",
        lambda: lateness.delivered,
    )
    metrics.sampled(
        "paceline_delay_late_total",
        "The same by how many ms late, from the bound before up to this one; alert: those above "
        "1000 rise while the group has a master.",
        lambda: late_samples(lateness),
        labels=("le_ms",),
    )
    metrics.sampled(
        "paceline_delay_dead_letters_total",
        "Delayed messages whose topic or queue was gone when they were due; alert on any.",
        lambda: lateness.dead_letters,
    )


def late_samples(lateness: Lateness) -> Samples:
    """Messages by the bound of how late they were."""
    bounds = [*map(str, Lateness.BOUNDS_MS), "+Inf"]
    return {(bound,): float(count) for bound, count in zip(bounds, lateness.buckets, strict=True)}
