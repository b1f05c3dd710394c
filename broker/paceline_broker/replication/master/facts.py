"""Pure: what a master knows of its replication at one moment, for status, metrics and words.

`MasterReplication.facts` makes it; nothing that decides reads it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from paceline.types import PhysicalOffset, ReplicaId, SetEpoch
from paceline.wire.cluster import ReplicaView
from paceline_broker.replication.master.events import AlterSyncStateSet
from paceline_broker.replication.master.lag import Paces
from paceline_broker.replication.master.peer import Peer


class MasterFacts(NamedTuple):
    """A snapshot but for `peers` and `paces`, which go on: read it in the step that made it."""

    replica_id: ReplicaId
    start_end: PhysicalOffset
    """The end of the epoch's start record."""
    end: PhysicalOffset
    own: PhysicalOffset
    """The master's own position: what counts for confirm (R11)."""
    confirm: PhysicalOffset
    sync_state_set: frozenset[ReplicaId]
    """As committed last."""
    set_epoch: SetEpoch
    minimum: int
    """`required_in_sync_replicas`."""
    acknowledging: int
    """Members that acknowledge now, the master among them (R8)."""
    others: tuple[ReplicaId, ...]
    """Who must acknowledge beside the master: of the committed set, and of the proposed one."""
    proposal: AlterSyncStateSet | None
    replicas: Mapping[ReplicaId, ReplicaView]
    """All that are registered, the master too."""
    peers: Mapping[ReplicaId, Peer]
    """The one live connection of each, after its handshake and truncation (R10)."""
    paces: Paces

    @property
    def is_open(self) -> bool:
        return self.confirm >= self.start_end

    def is_slow(self, member: ReplicaId) -> bool:
        """Whether it is behind for too long, although it acknowledges over its connection."""
        return member in self.peers and self.paces.is_slow(member)
