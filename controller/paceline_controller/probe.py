"""Metrics of a controller."""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.platform.ports import Clock
from paceline.platform.telemetry import Metrics, Samples
from paceline.types import GroupName
from paceline_controller.election.outages import Beats, Outages
from paceline_controller.quorum import QuorumStatus
from paceline_controller.state.model import Group

_SET_EVENTS = frozenset({"set_changed", "member_removed"})


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

        self.set_changes = metrics.counter(
            "paceline_controller_set_changes_total",
            "Changes of sync state sets applied since the start, by reason; alert: lag rises.",
            labels=("group", "reason"),
        )
        self.masters = metrics.counter(
            "paceline_controller_masters_elected_total",
            "Master elections applied since the start, ordered ones too, by reason; alert: dead, "
            "silent, unhealthy or no_progress rises.",
            labels=("group", "reason"),
        )
        self._members: dict[str, int] = {}
        """Group -> size of its sync state set, as the last event had it."""

    def changed_set(self, event: Mapping[str, Any]) -> None:
        """An applied event, of whatever kind."""
        members = event.get("sync_state_set")
        if members is None:
            return
        group = str(event["group"])
        before, self._members[group] = self._members.get(group, 0), len(members)
        if event["kind"] == "master_elected":
            self.masters.labels(group=group, reason=str(event["reason"])).inc()
        if event["kind"] in _SET_EVENTS:
            reason = event.get("reason") or ("grew" if len(members) > before else "shrank")
            self.set_changes.labels(group=group, reason=str(reason)).inc()

    def read_watched(self, outages: Outages, beats: Callable[[], Beats], clock: Clock) -> None:
        """Attach what the supervisor has watched."""
        gauge = self.metrics.sampled
        gauge(
            "paceline_controller_without_master_ms_total",
            "Time in which a group had no open master that lives, as this leader counted; alert: "
            "rises without anybody's doing.",
            lambda: {(str(group),): float(ms) for group, ms in outages.total_ms.items()},
            labels=("group",),
        )
        gauge(
            "paceline_controller_has_master_count",
            "1 while a group has an open master that lives, told by the leader; alert: 0 for 3 s.",
            lambda: {(str(group),): float(is_so) for group, is_so in outages.is_served.items()},
            labels=("group",),
        )
        gauge(
            "paceline_controller_heartbeat_jitter_ms",
            "Smoothed difference between neighbouring intervals of a replica's heartbeats; alert: "
            "a quarter of heartbeat_timeout_ms.",
            lambda: beats().jitter_ms(),
            labels=("group", "replica"),
        )
        gauge(
            "paceline_controller_heartbeat_age_ms",
            "Time since a replica was heard here; alert: above heartbeat_timeout_ms.",
            lambda: beats().age_ms(clock.monotonic_ms()),
            labels=("group", "replica"),
        )

    def read_groups(self, groups: Callable[[], Mapping[GroupName, Group]]) -> None:
        """Attach what is recorded of broker groups: it is there without any master, too."""

        def of_group(read: Callable[[Group], int]) -> Callable[[], Samples]:
            return lambda: {(str(name),): read(group) for name, group in groups().items()}

        gauge = self.metrics.sampled
        gauge(
            "paceline_controller_sync_state_set_count",
            "Members of a group's sync state set, as committed; alert: below total_replicas.",
            of_group(lambda group: len(group.sync_state_set)),
            labels=("group",),
        )
        gauge(
            "paceline_controller_master_epoch_count",
            "A group's newest master epoch; alert: rises without anybody's doing.",
            of_group(lambda group: group.master_epoch),
            labels=("group",),
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
            "paceline_controller_commit_entries",
            "Log index known as committed; alert: stands while commands are proposed.",
            lambda: status().commit_index,
        )
        gauge(
            "paceline_controller_applied_entries",
            "Applied log index; alert: one controller falls behind the others.",
            lambda: status().applied_index,
        )
        self._read_quorum(status)
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

    def _read_quorum(self, status: Callable[[], QuorumStatus]) -> None:
        gauge = self.metrics.sampled
        gauge(
            "paceline_controller_sync_p99_seconds",
            "Journal fsync, p99 of the last 512; alert: above 0.2, commands and votes get slow.",
            lambda: status().sync_p99_ms / 1000,
        )
        gauge(
            "paceline_controller_sync_max_seconds",
            "Journal fsync, longest of the last 512; alert: above 1.5.",
            lambda: status().sync_max_ms / 1000,
        )
        gauge(
            "paceline_controller_leader_silent_ms",
            "Time since the leader of the quorum was heard here, 0 on the leader, and without a "
            "value if none ever was; alert: above 1000.",
            lambda: _unless_none(status().leader_silent_ms),
        )
        gauge(
            "paceline_controller_heartbeat_gap_ms",
            "Longest gap of 30 s between two signs of life of other controllers; alert: above 300, "
            "a busy machine.",
            lambda: status().heartbeat_gap_ms,
        )
        gauge(
            "paceline_controller_election_timeout_ms",
            "Shortest silence after which a leader is missed; alert: above 1000.",
            lambda: status().election_timeout_ms,
        )
        gauge(
            "paceline_controller_waiting_commands",
            "Commands appended here and not applied yet; alert: grows.",
            lambda: status().waiting_count,
        )
        gauge(
            "paceline_controller_follower_lag_entries",
            "Entries that the voter furthest behind lacks, on the leader; alert: grows.",
            lambda: _largest_lag(status()),
        )
        gauge(
            "paceline_controller_members_generation_count",
            "Generation of the member list in force; alert: differs between controllers for long.",
            lambda: _generation(status()),
        )


def _largest_lag(status: QuorumStatus) -> int:
    members = () if status.members is None else status.members.members
    return max((member.lag_entries or 0 for member in members if member.is_voter), default=0)


def _unless_none(value: int | None) -> Samples:
    return {} if value is None else {(): value}


def _generation(status: QuorumStatus) -> int:
    return 0 if status.members is None else status.members.generation
