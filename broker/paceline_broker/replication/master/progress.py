"""Pure: how far each replica is, and how fast: what RocketMQ's haStatus shows, and more.

Sampled with the term's tick, never on the path of a batch. What a replica had when its connection
ended is remembered, so a dead one keeps a lag that grows: an alert must not end with the process
that it is about. A member that never had a connection in this epoch had, as a member, everything
that was confirmed when the epoch began (INV-1). Owner: the term.
"""

from collections.abc import Mapping

from paceline.types import PhysicalOffset, ReplicaId
from paceline_broker.replication.master.facts import MasterFacts

RATE_WINDOW_MS = 1_000
"""RocketMQ counts transferredByteInSecond over a second."""

Row = dict[str, object]


class Rate:
    """Bytes a second, over the last whole window."""

    __slots__ = ("_began_bytes", "_began_ms", "per_second")

    def __init__(self, position: int, now_ms: int) -> None:
        self._began_bytes, self._began_ms = position, now_ms
        self.per_second = 0

    def sample(self, position: int, now_ms: int) -> None:
        """A position that was reached by now; one that fell (a truncation) starts the window."""
        elapsed_ms = now_ms - self._began_ms
        if position >= self._began_bytes and elapsed_ms < RATE_WINDOW_MS:
            return
        moved = max(0, position - self._began_bytes)
        self.per_second = moved * 1000 // elapsed_ms if elapsed_ms > 0 else 0
        self._began_bytes, self._began_ms = position, now_ms


class Progress:
    """Last known positions of the replicas of one epoch."""

    def __init__(self, facts: MasterFacts) -> None:
        """When the epoch begins."""
        members = facts.sync_state_set - {facts.replica_id}
        self._known: dict[ReplicaId, tuple[PhysicalOffset, PhysicalOffset]] = {
            replica: (facts.confirm, facts.confirm) for replica in members
        }
        self._rates: dict[ReplicaId, Rate] = {}

    def sample(self, facts: MasterFacts, now_ms: int) -> None:
        """With every tick, and before a row is made."""
        for replica, peer in facts.peers.items():
            self._known[replica] = (peer.appended, peer.flushed)
            rate = self._rates.get(replica)
            if rate is None:
                rate = self._rates[replica] = Rate(peer.appended, now_ms)
            rate.sample(peer.appended, now_ms)
        for replica in self._rates.keys() - facts.peers.keys():
            del self._rates[replica]
        for replica in self._known.keys() - facts.replicas.keys():
            del self._known[replica]

    def rows(
        self, facts: MasterFacts, now_ms: int, *, sent: Mapping[ReplicaId, PhysicalOffset]
    ) -> list[Row]:
        """One for each registered replica but the master, in order of ids; JSON values.

        `sent`: how far the connection of a replica has been written to. Positions and lag are None
        for a replica that is no member and was never connected in this epoch.
        """
        self.sample(facts, now_ms)
        return [
            self._row(facts, replica, sent)
            for replica in sorted(facts.replicas)
            if replica != facts.replica_id
        ]

    def _row(
        self, facts: MasterFacts, replica: ReplicaId, sent: Mapping[ReplicaId, PhysicalOffset]
    ) -> Row:
        view = facts.replicas[replica]
        appended, flushed = self._known.get(replica, (None, None))
        rate = self._rates.get(replica)
        return {
            "replica": replica,
            "address": view.replication_address,
            "in_set": replica in facts.sync_state_set,
            "is_learner": view.is_learner,
            "connected": replica in sent,
            "joined": replica in facts.peers,
            "sent": sent.get(replica),
            "appended": appended,
            "flushed": flushed,
            # After a cut towards an unclean epoch a replica may still be beyond the master's end.
            "lag_bytes": None if appended is None else max(0, facts.end - appended),
            "lag_ms": facts.paces.lag_ms(replica),
            "bytes_per_second": 0 if rate is None else rate.per_second,
        }
