"""Pure: how far behind each replica is, in the master's own running time (R12).

A replica is caught up as of the moment at which the master itself had what the replica has: bytes
that the master has yet to sync do not wait for replicas. So where all disks are slow, no member is
behind because of that. Silence and slowness are one number: the running time since that moment.
Time passes only by `ran`; a gap of the master's own loop restarts every clock, because then it was
the master that was away.
"""

from collections.abc import Container, Iterable

from paceline.types import PhysicalOffset, ReplicaId
from paceline_broker.replication.master.events import MasterSettings

PROBE_INTERVAL_MS = 500
"""As long as a probe may take. A connection that ends is probed at once and again with the next
tick: a process that is just dying may still have taken the first."""


class Pace:
    """One replica, over all its connections in one epoch."""

    __slots__ = (
        "acked_ms",
        "caught_up_ms",
        "has_room",
        "is_refused",
        "lag_removals",
        "mark",
        "mark_ms",
        "probe_ms",
        "rejoin_ms",
    )

    def __init__(self, now_ms: int) -> None:
        self.acked_ms = self.caught_up_ms = now_ms
        """Running time of its last acknowledgement; and at which it last had what the master had
        then."""
        self.mark = PhysicalOffset(0)
        """The master's own position at `mark_ms`: reaching it proves to be caught up as of then."""
        self.mark_ms = now_ms
        self.has_room = True
        """False: its disk is nearly full, as its last acknowledgement said (R26)."""
        self.is_refused = False
        """Its port refuses, so nobody needs to wait for it."""
        self.probe_ms = 0
        """Not probed before this running time."""
        self.lag_removals = 0
        self.rejoin_ms = 0
        """Not proposed as a member before this running time."""


class Paces:
    """All replicas a master has dealt with in its epoch. Owned by `MasterReplication`."""

    def __init__(self, settings: MasterSettings) -> None:
        self._settings = settings
        self._now_ms = 0
        self._paces: dict[ReplicaId, Pace] = {}

    @property
    def lag_ms_max(self) -> int:
        """`replica_lag_ms_max`."""
        return self._settings.replica_lag_ms_max

    def of(self, replica: ReplicaId) -> Pace:
        """The replica's pace; a new one counts as caught up now."""
        pace = self._paces.get(replica)
        if pace is None:
            pace = self._paces[replica] = Pace(self._now_ms)
        return pace

    def keep(self, replicas: Container[ReplicaId]) -> None:
        """Forget all others: they are registered no more."""
        self._paces = {key: pace for key, pace in self._paces.items() if key in replicas}

    def ran(self, elapsed_ms: int) -> None:
        """Let running time pass."""
        assert elapsed_ms >= 0, elapsed_ms
        self._now_ms += elapsed_ms
        if elapsed_ms > self._settings.stall_ms_max:
            for pace in self._paces.values():
                pace.acked_ms = pace.caught_up_ms = pace.mark_ms = self._now_ms

    def joined(self, replica: ReplicaId, *, own: PhysicalOffset) -> None:
        """A connection stands. What it lagged before is not forgiven, but can be worked off."""
        pace = self.of(replica)
        pace.is_refused = False
        pace.mark, pace.mark_ms = own, self._now_ms

    def acked(self, replica: ReplicaId, *, position: PhysicalOffset, own: PhysicalOffset) -> None:
        """The replica has `position`, the master `own`."""
        pace = self._paces[replica]
        pace.acked_ms = self._now_ms
        if position >= own:
            pace.caught_up_ms = self._now_ms
        elif position >= pace.mark:
            pace.caught_up_ms = pace.mark_ms
        else:
            return
        pace.mark, pace.mark_ms = own, self._now_ms

    def is_keeping_up(self, replica: ReplicaId) -> bool:
        """Neither refused nor silent or behind for longer than `replica_lag_ms_max`; and with room.

        One whose disk is full leaves the set before it fails (R26); a set that needs it takes no
        sends meanwhile (R8).
        """
        pace = self.of(replica)
        limit_ms = self._now_ms - self._settings.replica_lag_ms_max
        return pace.has_room and not pace.is_refused and pace.caught_up_ms >= limit_ms

    def is_slow(self, replica: ReplicaId) -> bool:
        """Behind for too long, but not silent: it acknowledges, and has room."""
        pace = self.of(replica)
        limit_ms = self._now_ms - self._settings.replica_lag_ms_max
        return pace.caught_up_ms < limit_ms <= pace.acked_ms and pace.has_room

    def why(self, leaving: Iterable[ReplicaId]) -> str:
        """Why these do not keep up, for the group's history: gone, disk_full or lag."""
        paces = [self.of(replica) for replica in leaving]
        if all(pace.is_refused for pace in paces):
            return "gone"
        return "disk_full" if all(not pace.has_room for pace in paces) else "lag"

    def lag_ms(self, replica: ReplicaId) -> int | None:
        """Running time since it was caught up; None for a replica never seen."""
        pace = self._paces.get(replica)
        return None if pace is None else self._now_ms - pace.caught_up_ms

    def to_probe(self, absent: Iterable[ReplicaId]) -> list[ReplicaId]:
        """Members without a connection of whom nobody has asked lately whether they are there.

        A member that died before this epoch began has no connection that could end.
        """
        due = [
            replica
            for replica in sorted(absent)
            if not self.of(replica).is_refused and self.of(replica).probe_ms <= self._now_ms
        ]
        for replica in due:
            self.of(replica).probe_ms = self._now_ms + PROBE_INTERVAL_MS
        return due

    def may_rejoin(self, replica: ReplicaId) -> bool:
        return self.of(replica).has_room and self.of(replica).rejoin_ms <= self._now_ms

    def removed(self, replica: ReplicaId) -> None:
        """It is proposed to leave; one that was slow (not restarted) waits longer each time."""
        pace = self.of(replica)
        if pace.is_refused or not pace.has_room:
            return
        pace.lag_removals += 1
        wait_ms = self._settings.replica_lag_ms_max << min(pace.lag_removals - 1, 10)
        pace.rejoin_ms = self._now_ms + min(wait_ms, self._settings.rejoin_backoff_ms_max)
