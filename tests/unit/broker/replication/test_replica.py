"""Truncation, frames and acknowledgements as a replica decides them."""

import pytest
from tests.support.replication.builders import EPOCH
from tests.support.replication.replica import a_frame, a_replica, a_welcome

from paceline.types import PhysicalOffset
from paceline_broker.replication.frames import Acknowledgement
from paceline_broker.replication.replica.replica import (
    NOTHING,
    FrameReceived,
    ProjectionsReady,
    ReplicaAppended,
    ReplicaFlushed,
    ReplicaReplication,
    Truncated,
)


def a_joined_replica(*, fsync: bool = True) -> ReplicaReplication:
    """Cut to 400, everything flushed, first acknowledgement sent."""
    replica = a_replica(fsync=fsync)
    replica.step(a_welcome(400))
    assert replica.step(Truncated(PhysicalOffset(400), PhysicalOffset(400))).acknowledge
    return replica


def an_ack(appended: int, flushed: int, *, round: int = 0) -> Acknowledgement:
    return Acknowledgement(EPOCH, PhysicalOffset(appended), PhysicalOffset(flushed), round, True)


def test_replica_is_told_to_cut_where_the_logs_part_and_acknowledges_after_it() -> None:
    replica = a_replica()

    assert replica.step(a_welcome(400)).truncate_to == 400
    ready = replica.step(Truncated(PhysicalOffset(400), PhysicalOffset(400)))

    assert ready.acknowledge == an_ack(400, 400)


def test_replica_never_truncates_below_its_own_confirm() -> None:
    """R16."""
    ready = a_replica(confirm=401).step(a_welcome(400))

    assert ready.stop is not None
    assert ready.truncate_to is None


def test_replica_truncates_below_confirm_towards_an_unclean_epoch() -> None:
    """R16, R21."""
    replica = a_replica(confirm=450)

    ready = replica.step(a_welcome(400, is_unclean=True))

    assert ready.truncate_to == 400
    assert replica.confirm == 400


def test_truncation_point_that_the_replica_does_not_find_itself_closes() -> None:
    for welcome in (a_welcome(399), a_welcome(0), a_welcome(450)):
        ready = a_replica().step(welcome)
        assert ready.close is not None
        assert ready.truncate_to is None


def test_welcome_of_another_epoch_closes() -> None:
    """R2."""
    assert a_replica().step(a_welcome(400, epoch=4)).close is not None


@pytest.mark.parametrize(
    "frame",
    [a_frame(400, epoch=2), a_frame(400, epoch=4), a_frame(300), a_frame(500)],
    ids=["older-epoch", "newer-epoch", "overlap", "gap"],
)
def test_frame_that_does_not_fit_closes_and_appends_nothing(frame: FrameReceived) -> None:
    """R2."""
    ready = a_joined_replica().step(frame)

    assert ready.close is not None
    assert not ready.append


def test_frame_before_the_handshake_is_over_closes() -> None:
    """R10."""
    replica = a_replica()
    replica.step(a_welcome(400))

    assert replica.step(a_frame(400, confirm=300)).close is not None
    assert replica.confirm == 0


def test_frame_is_acknowledged_when_it_is_flushed() -> None:
    """R11."""
    replica = a_joined_replica()

    assert replica.step(a_frame(400)).append
    assert replica.step(ReplicaAppended(PhysicalOffset(500))) == NOTHING
    ready = replica.step(ReplicaFlushed(PhysicalOffset(500)))

    assert ready.acknowledge == an_ack(500, 500)


def test_with_memory_durability_a_frame_is_acknowledged_when_it_is_written() -> None:
    replica = a_joined_replica(fsync=False)
    replica.step(a_frame(400))

    ready = replica.step(ReplicaAppended(PhysicalOffset(500)))

    assert ready.acknowledge == an_ack(500, 400)
    assert replica.step(ReplicaFlushed(PhysicalOffset(500))) == NOTHING


def test_confirm_is_never_above_what_the_replica_has_itself() -> None:
    """R10, INV-2."""
    replica = a_joined_replica()
    replica.step(a_frame(400, confirm=900))
    replica.step(ReplicaAppended(PhysicalOffset(500)))
    assert replica.confirm == 400

    ready = replica.step(ReplicaFlushed(PhysicalOffset(500)))

    assert ready.confirm == 500


def test_empty_frame_brings_confirm_and_is_answered_only_for_its_round() -> None:
    """R4."""
    replica = a_joined_replica()

    ready = replica.step(a_frame(400, size=0, confirm=350))
    assert ready.confirm == 350
    assert ready.acknowledge is None
    ready = replica.step(a_frame(400, size=0, confirm=350, round=4))

    assert ready.confirm is None
    assert ready.acknowledge == an_ack(400, 400, round=4)


def test_frame_that_takes_back_confirm_closes() -> None:
    replica = a_joined_replica()
    replica.step(a_frame(400, size=0, confirm=350, round=4))

    assert replica.step(a_frame(400, size=0, confirm=349, round=4)).close is not None
    assert replica.step(a_frame(400, size=0, confirm=350, round=3)).close is not None


def test_readiness_of_projections_is_told_when_it_changes() -> None:
    """R10."""
    replica = a_joined_replica()

    ready = replica.step(ProjectionsReady(False))

    assert ready.acknowledge is not None
    assert not ready.acknowledge.is_ready
    assert replica.step(ProjectionsReady(False)) == NOTHING
