"""Values for the tests of replication: whatever a test does not care about is filled in."""

from collections.abc import Mapping

from paceline.types import (
    GroupName,
    Incarnation,
    MasterEpoch,
    PhysicalOffset,
    ReplicaId,
    SetEpoch,
)
from paceline.wire.cluster import GroupSettings, GroupView, ReplicaView
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import ConnectionId, Introduction
from paceline_broker.replication.master.events import (
    Appended,
    Flushed,
    MasterReady,
    MasterSettings,
    ReplicaAcked,
    ReplicaIntroduced,
)
from paceline_broker.replication.master.master import MasterReplication

EPOCH = MasterEpoch(3)
TABLE = EpochTable.of([(3, 0)])
START_END = PhysicalOffset(96)
"""End of the epoch-start record in these tests."""


def a_view(
    *,
    sync_state_set: frozenset[int] = frozenset({1, 2, 3}),
    set_epoch: int = 5,
    minimum: int = 2,
    durability: str = "fsync",
    epoch: int = EPOCH,
    incarnations: Mapping[int, int] | None = None,
    learners: frozenset[int] = frozenset(),
    master: int | None = 1,
    is_unclean: bool = False,
    settings: GroupSettings | None = None,
) -> GroupView:
    """A group of replicas 1, 2, 3 with incarnation 1 each, replica 1 its master."""
    known = {1: 1, 2: 1, 3: 1, **(incarnations or {})}
    replicas = {
        ReplicaId(replica): ReplicaView(
            replica_id=ReplicaId(replica),
            store_id=f"store-{replica}",
            incarnation=Incarnation(incarnation),
            client_address=f"127.0.0.{replica}:1",
            replication_address=f"127.0.0.{replica}:2",
            is_learner=replica in learners,
        )
        for replica, incarnation in known.items()
    }
    return GroupView(
        group=GroupName("g1"),
        master=None if master is None else ReplicaId(master),
        master_incarnation=None if master is None else Incarnation(known[master]),
        master_epoch=MasterEpoch(epoch),
        sync_state_set=frozenset(ReplicaId(replica) for replica in sync_state_set),
        set_epoch=SetEpoch(set_epoch),
        settings=settings
        or GroupSettings(total_replicas=3, min_in_sync_replicas=minimum, durability=durability),
        replicas=replicas,
        is_unclean=is_unclean,
    )


def a_master(view: GroupView | None = None, *, known_confirm: int = 0) -> MasterReplication:
    """Replica 1, just elected: its log holds the epoch-start record, nothing is flushed."""
    return MasterReplication(
        replica_id=ReplicaId(1),
        incarnation=Incarnation(1),
        view=view or a_view(),
        epoch_start_end=START_END,
        end=START_END,
        flushed=PhysicalOffset(0),
        known_confirm=PhysicalOffset(known_confirm),
        settings=MasterSettings(),
    )


def an_introduction(
    replica: int,
    *,
    incarnation: int = 1,
    epoch: int = EPOCH,
    end: int = 0,
    confirm: int = 0,
    epochs: EpochTable | None = None,
    store_id: str | None = None,
) -> Introduction:
    return Introduction(
        replica_id=ReplicaId(replica),
        store_id=f"store-{replica}" if store_id is None else store_id,
        incarnation=Incarnation(incarnation),
        epoch=MasterEpoch(epoch),
        start=PhysicalOffset(0),
        end=PhysicalOffset(end),
        confirm=PhysicalOffset(confirm),
        epochs=(TABLE if end else EpochTable()) if epochs is None else epochs,
    )


def introduced(
    connection: int, introduction: Introduction, *, epochs: EpochTable = TABLE
) -> ReplicaIntroduced:
    return ReplicaIntroduced(ConnectionId(connection), introduction, PhysicalOffset(0), epochs)


def acked(
    connection: int,
    flushed: int,
    *,
    appended: int | None = None,
    round: int = 0,
    epoch: int = EPOCH,
    is_ready: bool = True,
) -> ReplicaAcked:
    return ReplicaAcked(
        connection=ConnectionId(connection),
        epoch=MasterEpoch(epoch),
        appended=PhysicalOffset(flushed if appended is None else appended),
        flushed=PhysicalOffset(flushed),
        round=round,
        is_ready=is_ready,
    )


def join(
    master: MasterReplication, replica: int, *, connection: int, incarnation: int = 1
) -> MasterReady:
    """An empty replica goes through the handshake; the answer to its first acknowledgement."""
    ready = master.step(introduced(connection, an_introduction(replica, incarnation=incarnation)))
    assert ready.welcome is not None, ready
    ready = master.step(acked(connection, 0))
    assert ready.joined == connection
    return ready


def write(master: MasterReplication, end: int) -> MasterReady:
    """The master appends and flushes up to `end`."""
    master.step(Appended(PhysicalOffset(end)))
    return master.step(Flushed(PhysicalOffset(end)))


def an_open_master(view: GroupView | None = None) -> MasterReplication:
    """Replicas 2 and 3 have joined over connections 2 and 3; the epoch start is confirmed."""
    master = a_master(view)
    join(master, 2, connection=2)
    join(master, 3, connection=3)
    master.step(Flushed(START_END))
    for connection in (2, 3):
        master.step(acked(connection, START_END))
    assert master.is_open
    assert master.confirm == START_END
    return master
