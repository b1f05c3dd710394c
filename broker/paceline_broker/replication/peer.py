"""Pure: what a master knows of one accepted connection. Owned by `MasterReplication`."""

from paceline.types import PhysicalOffset
from paceline.wire.cluster import ReplicaView


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
