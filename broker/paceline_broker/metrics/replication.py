"""Metrics of replication, read at each scrape from the role's status.

Of the replicas only a master tells: theirs would be counted twice. Dead ones stay in it.
"""

from collections.abc import Callable
from typing import Any

from paceline.platform.telemetry import Metrics, Samples
from paceline_broker.ports import Role


def register_replication(metrics: Metrics, role: Role) -> None:
    """Name it; `role.status()` is cheap enough for a few calls a scrape."""

    def of_status(name: str) -> Callable[[], float]:
        return lambda: float(role.status()[name])

    def lag_of(name: str) -> Callable[[], float]:
        return lambda: float(role.status()["end"] - role.status()[name])

    def of_master(read: Callable[[dict[str, Any]], float]) -> Callable[[], float | Samples]:
        def sample() -> float | Samples:
            replication = role.status()["replication"]
            return {} if replication is None else read(replication)

        return sample

    def of_replicas(name: str) -> Callable[[], Samples]:
        def sample() -> Samples:
            replication = role.status()["replication"]
            rows = () if replication is None else replication["replicas"]
            return {
                (str(row["replica"]),): float(row[name]) for row in rows if row[name] is not None
            }

        return sample

    gauge = metrics.sampled
    gauge(
        "paceline_replication_epoch_count",
        "Master epoch this broker acts in; alert: differs within a group for long.",
        of_status("epoch"),
    )
    gauge(
        "paceline_replication_confirm_lag_bytes",
        "Appended here and not confirmed; alert: stays above 0 on a master, or grows.",
        lag_of("confirm"),
    )
    gauge(
        "paceline_replication_flush_lag_bytes",
        "Appended here and not on this disk; alert: grows, the disk is too slow.",
        lag_of("flushed"),
    )
    gauge(
        "paceline_replication_sync_state_set_count",
        "Members of the sync state set, from its master; alert: below total_replicas.",
        of_master(lambda replication: float(len(replication["sync_state_set"]))),
    )
    gauge(
        "paceline_replication_waiting_requests",
        "Requests that wait for confirm on a master; alert: grows.",
        of_master(lambda replication: float(replication["waiting"])),
    )
    gauge(
        "paceline_replication_send_window_bytes",
        "Bytes that may wait for confirm on a master; alert: at 8 MiB for long, a disk is slow.",
        of_master(lambda replication: float(replication["send_window_bytes"])),
    )
    _of_each_replica(metrics, of_replicas)


def _of_each_replica(metrics: Metrics, of_replicas: Callable[[str], Callable[[], Samples]]) -> None:
    for name, column, help_line in (
        (
            "paceline_replication_in_set_count",
            "in_set",
            "1 for a member of the sync state set; alert: 0 for long.",
        ),
        (
            "paceline_replication_connected_count",
            "connected",
            "1 for a replica with a connection to this master; alert: 0 for long.",
        ),
        (
            "paceline_replication_lag_bytes",
            "lag_bytes",
            "Log bytes a replica lacks, also of a dead one; alert: grows.",
        ),
        (
            "paceline_replication_lag_ms",
            "lag_ms",
            "Time since a replica had everything, also of a dead one; alert: above 2,000.",
        ),
        (
            "paceline_replication_throughput_bytes",
            "bytes_per_second",
            "Bytes a replica took in the last second; alert: low while its lag is high.",
        ),
    ):
        metrics.sampled(name, help_line, of_replicas(column), labels=("replica",))
