"""How far one replica has been sent: the term's state of one connection."""

from paceline.types import PhysicalOffset, ReplicaId
from paceline_broker.replication.master.ports import ReplicaLink


class Push:
    """Owned by the term."""

    __slots__ = (
        "acked", "confirm", "heard_ms", "is_far", "is_installing", "is_joined", "is_live",
        "is_pumping", "link", "replica", "round", "sent",
    )  # fmt: skip

    def __init__(self, link: ReplicaLink, replica: ReplicaId, now_ms: int) -> None:
        self.link = link
        self.replica = replica
        self.is_installing = False
        """A checkpoint is under way to it: the server's deadline bounds its silence."""
        self.is_joined = False
        self.is_live = False
        """It was sent everything that is written: the next turn can be pushed from memory."""
        self.is_far = False
        """More than a window behind, and not at the end since: it keeps to the pace."""
        self.is_pumping = False
        self.sent = PhysicalOffset(0)
        self.acked = PhysicalOffset(0)
        self.confirm = -1
        self.round = -1
        self.heard_ms = now_ms
