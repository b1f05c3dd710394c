"""The hooks of a replication client, passed on to the role that made it."""

from typing import Protocol

from paceline.errors import CorruptLogError, StorageError
from paceline.types import PhysicalOffset
from paceline_broker.log.flusher import Flusher
from paceline_broker.replication.install import CheckpointTarget, Reception
from paceline_broker.role.context import RoleContext
from paceline_broker.storage.checkpoints import ReceivedCheckpoint
from paceline_broker.storage.store import Store


class FollowingOwner(Protocol):
    """What a replica that follows a master asks of its role."""

    @property
    def flusher(self) -> Flusher: ...

    def replica_confirmed(self, confirm: PhysicalOffset) -> None: ...

    def replica_truncating(self, truncate_to: PhysicalOffset) -> None: ...

    def replica_installing(self, reception: Reception, start: PhysicalOffset) -> None: ...

    def replica_stopped(self, reason: str) -> None: ...

    def replica_failed(self, error: StorageError) -> None: ...


def install(store: Store, reception: Reception, start: PhysicalOffset) -> None:
    """Make what was received the state of `store`, and let its log begin anew at `start` (R14)."""
    target = reception.target
    assert isinstance(target, ReceivedCheckpoint), target
    if target.position != reception.install.position:
        raise CorruptLogError(f"a checkpoint of {target.position}, not of the position announced")
    store.install(target, start=start, epochs=reception.epochs)


class RoleReplicaHooks:
    """ReplicaHooks."""

    def __init__(self, role: FollowingOwner, around: RoleContext) -> None:
        self._role = role
        self._around = around
        self._store = around.store

    def wrote(self) -> None:
        self._role.flusher.poke()

    def confirmed(self, confirm: PhysicalOffset) -> None:
        self._role.replica_confirmed(confirm)
        withheld = self._store.projections.locks.withheld
        if withheld.leases_ms:
            self._around.withheld.look(withheld, now_ms=self._around.clock.monotonic_ms())

    def truncating(self, truncate_to: PhysicalOffset) -> None:
        self._role.replica_truncating(truncate_to)

    def checkpoint_target(self, position: PhysicalOffset) -> CheckpointTarget:
        return self._store.begin_receiving(position)

    def install(self, reception: Reception, start: PhysicalOffset) -> None:
        self._role.replica_installing(reception, start)

    def stopped(self, reason: str) -> None:
        self._role.replica_stopped(reason)

    def failed(self, error: StorageError) -> None:
        self._role.replica_failed(error)
