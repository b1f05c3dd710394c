"""Pure: what a master knows of one accepted connection, owned by `MasterReplication`, and whose
connection it does not accept."""

from collections.abc import Mapping

from paceline.types import MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.cluster import ReplicaView
from paceline_broker.replication.handshake import ConnectionId, Introduction, divergence_point
from paceline_broker.replication.master.events import ReplicaAcked, ReplicaIntroduced
from paceline_broker.replication.messages import Refused


class Peer:
    """One accepted connection; its fields only ever grow."""

    __slots__ = (
        "appended", "flushed", "incarnation", "is_joined", "is_learner", "is_ready", "position",
        "replica", "round", "truncate_to",
    )  # fmt: skip

    def __init__(self, *, view: ReplicaView, truncate_to: PhysicalOffset) -> None:
        self.replica = view.replica_id
        self.incarnation = view.incarnation
        self.is_learner = view.is_learner
        self.truncate_to = truncate_to
        self.is_joined = False
        self.is_ready = False
        self.appended = PhysicalOffset(0)
        self.flushed = PhysicalOffset(0)
        self.position = PhysicalOffset(0)
        """What counts for confirm: flushed or appended, by the group's durability."""
        self.round = 0

    def can_say(
        self, event: ReplicaAcked, *, epoch: MasterEpoch, end: PhysicalOffset, round_sent: int
    ) -> bool:
        """Whether a replica of `epoch` may acknowledge that, of a log that ends at `end` (R2)."""
        return (
            event.epoch == epoch
            and self.appended <= event.appended <= end
            and self.flushed <= event.flushed <= event.appended
            and self.round <= event.round <= round_sent
        )

    def acknowledged(self, event: ReplicaAcked, *, counts_flushed: bool) -> None:
        """Take over the positions; the round is the master's to take."""
        self.appended = event.appended
        self.flushed = event.flushed
        self.position = event.flushed if counts_flushed else event.appended  # R11
        self.is_ready = event.is_ready


def refusal_of(
    introduction: Introduction,
    master: ReplicaId,
    epoch: MasterEpoch,
    replicas: Mapping[ReplicaId, ReplicaView],
) -> Refused | None:
    """Only the registered start of a replica in this epoch may join `master` (R2, R9, R10).

    The news of a registration may still be on the way to the master: the replica tries again.
    """
    replica = introduction.replica_id
    view = replicas.get(replica)
    if introduction.epoch < epoch:
        return Refused(code="OLDER_EPOCH", detail=f"the master is in epoch {epoch}")
    if view is None or replica == master:
        return Refused(code="UNKNOWN_REPLICA", detail=f"replica {replica} is not registered")
    if (view.store_id, view.incarnation) != (introduction.store_id, introduction.incarnation):
        detail = f"incarnation {view.incarnation} of store {view.store_id} is registered"
        return Refused(code="OTHER_INCARNATION", detail=detail)
    return None


def divergence_of(event: ReplicaIntroduced, *, end: PhysicalOffset) -> PhysicalOffset | None:
    """Where the two logs part; None if they have no epoch in common. `end`: of the log here."""
    _, introduction, start, epochs = event
    return divergence_point(
        here=epochs,
        here_start=start,
        here_end=end,
        there=introduction.epochs,
        there_start=introduction.start,
        there_end=introduction.end,
    )


def why_lossy(
    event: ReplicaIntroduced,
    *,
    end: PhysicalOffset,
    confirm: PhysicalOffset,
    members: frozenset[ReplicaId],
) -> str | None:
    """Why a master of this log lacks what was confirmed, as an old copy does (R16), or None.

    An old copy that was elected appends, and soon is as long as what it lacks. But a member that
    confirmed what follows the divergence point has acknowledged nothing of this epoch, and without
    it nothing here was confirmed; unless more was confirmed here too, in epochs before: which of
    the two is right a person decides, and the replica stops by itself.
    """
    introduction = event.introduction
    said = f"LOSSY: replica {introduction.replica_id} has confirmed {introduction.confirm}, "
    if introduction.confirm > end:
        return said + f"the log here ends at {end}"
    point = divergence_of(event, end=end)
    is_lacking = point is not None and confirm <= point < introduction.confirm
    if is_lacking and introduction.replica_id in members:
        return said + f"the log here is another from {point} on"
    return None


def outdated(
    peers: Mapping[ConnectionId, Peer], replicas: Mapping[ReplicaId, ReplicaView]
) -> list[ConnectionId]:
    """Connections of starts that are registered no more (R9)."""
    return [
        connection
        for connection, peer in peers.items()
        if (known := replicas.get(peer.replica)) is None or known.incarnation != peer.incarnation
    ]
