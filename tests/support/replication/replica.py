"""What tests of replica share with others."""

from tests.support.replication.builders import EPOCH, an_introduction

from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import Welcome
from paceline_broker.replication.replica.replica import (
    FrameReceived,
    ReplicaReplication,
    Welcomed,
)

MASTERS = EpochTable.of([(1, 0), (3, 400)])
OWN = EpochTable.of([(1, 0), (2, 450)])


def a_welcome(
    truncate_to: int, *, epoch: int = EPOCH, is_unclean: bool = False, end: int = 1000
) -> Welcomed:
    return Welcomed(
        Welcome(
            epoch=MasterEpoch(epoch),
            truncate_to=PhysicalOffset(truncate_to),
            is_unclean=is_unclean,
            end=PhysicalOffset(end),
            epochs=MASTERS,
        )
    )


def a_replica(*, end: int = 500, confirm: int = 0, fsync: bool = True) -> ReplicaReplication:
    return ReplicaReplication(
        introduction=an_introduction(2, end=end, confirm=confirm, epochs=OWN),
        flushed=PhysicalOffset(end),
        counts_flushed=fsync,
        is_ready=True,
    )


def a_frame(
    position: int, *, size: int = 100, confirm: int = 0, round: int = 0, epoch: int = EPOCH
) -> FrameReceived:
    return FrameReceived(
        MasterEpoch(epoch), PhysicalOffset(position), PhysicalOffset(confirm), round, size
    )
