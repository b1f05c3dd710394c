"""Metrics of a controller."""

from collections.abc import Callable

from paceline.telemetry import Metrics
from paceline_controller.quorum import QuorumStatus


class ControllerMetrics:
    """Counters that the parts keep; figures of the quorum are read when somebody scrapes."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.leaderships = metrics.counter(
            "paceline_controller_leaderships_total",
            "Terms this controller has led; alert: rises more than a few times an hour.",
        )
        self.elections = metrics.counter(
            "paceline_controller_elections_total",
            "Master elections proposed here; alert: outcome unknown, or reason not_open.",
            labels=("outcome", "reason"),
        )
        self.probes = metrics.counter(
            "paceline_controller_probes_total",
            "Probes of brokers' ports after a closed session; alert: unclear rises.",
            labels=("outcome",),
        )
        self.commands = metrics.counter(
            "paceline_controller_commands_total",
            "Commands applied; alert: ok=false rises with the number of groups unchanged.",
            labels=("kind", "ok"),
        )

    def read_from(
        self,
        *,
        status: Callable[[], QuorumStatus],
        version: Callable[[], int],
        sessions: Callable[[], int],
        stalls: Callable[[], int],
    ) -> None:
        """Attach what is read at each scrape."""
        gauge = self.metrics.sampled
        gauge(
            "paceline_controller_is_leader_count",
            "1 on the leader; alert: the sum over controllers is not 1.",
            lambda: float(status().is_leader),
        )
        gauge(
            "paceline_controller_term_count",
            "Raft term; alert: rises steadily.",
            lambda: status().term,
        )
        gauge(
            "paceline_controller_applied_entries",
            "Applied log index; alert: one controller falls behind the others.",
            lambda: status().applied_index,
        )
        gauge(
            "paceline_controller_journal_entries",
            "Entries since the last snapshot; alert: grows without bound.",
            lambda: status().log_length,
        )
        gauge(
            "paceline_controller_view_version_count",
            "Version of the published view; alert: differs between controllers for long.",
            version,
        )
        gauge(
            "paceline_controller_sessions_count",
            "Broker sessions open here; alert: below the number of brokers.",
            sessions,
        )
        gauge(
            "paceline_controller_stalls_total",
            "Stalls of the event loop that restarted all deadlines; alert: rises.",
            stalls,
        )
