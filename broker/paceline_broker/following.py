"""The hooks of a replication client, passed on to the role that made it."""

from typing import Protocol

from paceline.errors import StorageError
from paceline.types import PhysicalOffset
from paceline_broker.log.flusher import Flusher


class FollowingOwner(Protocol):
    """What a replica that follows a master asks of its role."""

    @property
    def flusher(self) -> Flusher: ...

    def replica_confirmed(self, confirm: PhysicalOffset) -> None: ...

    def replica_truncating(self, truncate_to: PhysicalOffset) -> None: ...

    def replica_stopped(self, reason: str) -> None: ...

    def replica_failed(self, error: StorageError) -> None: ...


class Following:
    """ReplicaHooks."""

    def __init__(self, role: FollowingOwner) -> None:
        self._role = role

    def wrote(self) -> None:
        self._role.flusher.poke()

    def confirmed(self, confirm: PhysicalOffset) -> None:
        self._role.replica_confirmed(confirm)

    def truncating(self, truncate_to: PhysicalOffset) -> None:
        self._role.replica_truncating(truncate_to)

    def stopped(self, reason: str) -> None:
        self._role.replica_stopped(reason)

    def failed(self, error: StorageError) -> None:
        self._role.replica_failed(error)
