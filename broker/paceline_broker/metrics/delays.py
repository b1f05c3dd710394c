"""The metrics of delayed messages: how many wait, how many were delivered, how late."""

from paceline.platform.telemetry import Metrics, Samples
from paceline_broker.ports import Role, RoleState
from paceline_broker.service.delays.delivery import Delivery, Lateness
from paceline_broker.service.routes import Routes


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
