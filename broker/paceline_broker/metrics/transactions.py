"""Metrics of transactions: what is open, how they ended, how often producers were asked."""

from paceline.platform.telemetry import Metrics, Samples
from paceline_broker.ports import RoleState
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
