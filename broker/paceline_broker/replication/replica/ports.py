"""The seams of a replica's connection: who it is, its timing, and the role behind it."""

from dataclasses import dataclass
from typing import Protocol

from paceline.errors import StorageError
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline_broker.replication.install import CheckpointTarget, Reception


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """Who this replica is, in the epoch it has adopted and fsynced."""

    cluster_id: str
    group: GroupName
    replica_id: ReplicaId
    store_id: str
    incarnation: Incarnation
    epoch: MasterEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Timing of the replica's side."""

    connect_timeout_ms: int = 1000
    master_idle_ms_max: int = 2000
    """A connection without a frame for this long is closed; heartbeats come every 200 ms."""
    reconnect_ms_min: int = 50
    reconnect_ms_max: int = 1000


class ReplicaHooks(Protocol):
    """What the role gives to a replica. Called on the loop, never to raise."""

    def wrote(self) -> None:
        """Bytes were written: poke the flusher."""
        ...

    def confirmed(self, confirm: PhysicalOffset) -> None:
        """Confirm moved on this replica; the log knows. Fold up to it."""
        ...

    def truncating(self, truncate_to: PhysicalOffset) -> None:
        """The log is about to be cut here: drop what was folded beyond (R28)."""
        ...

    def checkpoint_target(self, position: PhysicalOffset) -> CheckpointTarget:
        """Where the master's checkpoint of `position` is written to while it comes in (R14)."""
        ...

    def install(self, reception: Reception, start: PhysicalOffset) -> None:
        """It is on the disk: make it the state, and the log begin anew at `start`, durably.

        CorruptLogError if it is not what it says; StorageError if the disk fails.
        """
        ...

    def stopped(self, reason: str) -> None:
        """Nothing more comes over this client: see `role/exclusion.py` (R16)."""
        ...

    def failed(self, error: StorageError) -> None:
        """The log failed: this process never acknowledges again (R22)."""
        ...
