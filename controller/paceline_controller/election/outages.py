"""Pure: how long groups were without a master, and how regularly brokers are heard.

For metrics only: nothing that decides reads it. Times are the process's monotonic milliseconds.
Owner: the supervisor.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline.types import GroupName
from paceline_controller.election.contacts import ReplicaKey
from paceline_controller.state.model import Group

JITTER_SHARE = 16
"""A beat counts for a sixteenth: the smoothing of RFC 3550, section 6.4.1."""


class Outages:
    """Time without a master, of each group that ever had one, while this controller leads.

    What lies before the leader knows of a death is not in it, some milliseconds after a kill; nor
    is what another leader has counted.
    """

    def __init__(self) -> None:
        self.total_ms: dict[GroupName, int] = {}
        self.is_served: dict[GroupName, bool] = {}
        """As looked at last; empty on a follower."""
        self._looked_ms: int | None = None

    def look(
        self, groups: Iterable[Group], is_served: Callable[[Group], bool], now_ms: int
    ) -> None:
        """At every moment at which it may have changed, and by the clock."""
        elapsed_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        self._looked_ms = now_ms
        before, self.is_served = self.is_served, {}
        for group in groups:
            if group.master_epoch == 0:
                continue  # it waits for its first replicas
            name = group.group
            self.is_served[name] = is_served(group)
            lost_ms = 0 if before.get(name, True) else elapsed_ms
            self.total_ms[name] = self.total_ms.get(name, 0) + lost_ms

    def stop(self) -> None:
        """This controller leads no more."""
        self._looked_ms = None
        self.is_served = {}


@dataclass(slots=True, kw_only=True)
class _Beat:
    heard_ms: int
    interval_ms: int | None = None
    jitter_ms: float = 0.0


class Beats:
    """When each replica was heard last, and how much its intervals differ from each other."""

    def __init__(self) -> None:
        self._beats: dict[ReplicaKey, _Beat] = {}

    def heard(self, key: ReplicaKey, now_ms: int) -> None:
        """A heartbeat. Those that are sent early, for news, make a little jitter too."""
        beat = self._beats.get(key)
        if beat is None:
            self._beats[key] = _Beat(heard_ms=now_ms)
            return
        interval_ms = now_ms - beat.heard_ms
        if beat.interval_ms is not None:
            difference_ms = abs(interval_ms - beat.interval_ms)
            beat.jitter_ms += (difference_ms - beat.jitter_ms) / JITTER_SHARE
        beat.heard_ms, beat.interval_ms = now_ms, interval_ms

    def jitter_ms(self) -> dict[tuple[str, ...], float]:
        """(group, replica) -> smoothed difference between neighbouring intervals."""
        return {_labels(key): round(beat.jitter_ms, 3) for key, beat in self._beats.items()}

    def age_ms(self, now_ms: int) -> dict[tuple[str, ...], float]:
        """(group, replica) -> time since it was heard."""
        return {_labels(key): now_ms - beat.heard_ms for key, beat in self._beats.items()}

    def keep(self, known: Callable[[ReplicaKey], bool]) -> None:
        """Forget replicas that are registered no more."""
        for key in [key for key in self._beats if not known(key)]:
            del self._beats[key]


def _labels(key: ReplicaKey) -> tuple[str, ...]:
    return (str(key.group), str(key.replica_id))
