"""Confirm, rounds and acceptance as the master decides them."""

import pytest
from tests.support.replication.builders import (
    START_END,
    a_master,
    a_view,
    acked,
    an_introduction,
    an_open_master,
    introduced,
    join,
    write,
)

from paceline.types import Incarnation, PhysicalOffset, ReplicaId
from paceline.wire.cluster import GroupView
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import ConnectionId
from paceline_broker.replication.master.events import (
    NOTHING,
    Appended,
    Failed,
    Flushed,
    GroupCommitted,
    Ran,
    ReplicaLeft,
    RoundRequested,
)


def test_confirm_is_the_smallest_flushed_position_of_the_whole_set() -> None:
    master = an_open_master()
    write(master, 1000)

    assert master.step(acked(2, 800)) == NOTHING
    ready = master.step(acked(3, 600))

    assert ready.confirm == 600
    assert master.confirm == 600


def test_with_fsync_durability_appended_bytes_do_not_count() -> None:
    """R11."""
    master = an_open_master()
    write(master, 1000)

    master.step(acked(2, START_END, appended=1000))
    ready = master.step(acked(3, START_END, appended=1000))

    assert ready == NOTHING
    assert master.confirm == START_END


def test_own_position_counts_only_when_flushed() -> None:
    """R11."""
    master = an_open_master()
    master.step(Appended(PhysicalOffset(1000)))
    master.step(acked(2, 1000))

    assert master.step(acked(3, 1000)) == NOTHING
    ready = master.step(Flushed(PhysicalOffset(900)))

    assert ready.confirm == 900


def test_with_memory_durability_appended_bytes_count() -> None:
    master = a_master(a_view(durability="memory"))
    join(master, 2, connection=2)
    join(master, 3, connection=3)

    master.step(acked(2, 0, appended=96))
    ready = master.step(acked(3, 0, appended=96))

    assert ready.confirm == 96
    assert ready.opened


def test_epoch_opens_once_when_its_start_record_is_confirmed() -> None:
    """R3, R6."""
    master = a_master()
    join(master, 2, connection=2)
    join(master, 3, connection=3)
    master.step(Flushed(START_END))
    master.step(acked(2, START_END))
    assert not master.is_open

    ready = master.step(acked(3, START_END))

    assert ready.opened
    assert master.is_open
    write(master, 200)
    master.step(acked(2, 200))
    assert not master.step(acked(3, 200)).opened


def test_confirm_stands_still_while_a_member_has_no_connection() -> None:
    """R10."""
    master = an_open_master()
    master.step(ReplicaLeft(ConnectionId(3)))
    write(master, 1000)

    ready = master.step(acked(2, 1000))

    assert ready == NOTHING


def test_confirm_stands_still_while_the_committed_set_is_smaller_than_min() -> None:
    """R8."""
    master = an_open_master()
    master.step(GroupCommitted(a_view(sync_state_set=frozenset({1}), set_epoch=6)))

    ready = write(master, 1000)

    assert ready == NOTHING
    assert not master.can_accept()


def test_connection_that_was_replaced_counts_no_longer() -> None:
    """R10: a replica never counts twice."""
    master = an_open_master()
    write(master, 1000)
    ready = master.step(introduced(4, an_introduction(2, end=96)))

    assert ready.close == (2,)
    assert master.step(acked(2, 1000)) == NOTHING
    master.step(acked(3, 1000))
    assert master.confirm == START_END


def test_new_connection_counts_only_after_its_first_acknowledgement() -> None:
    """R10: not before its truncation is durable."""
    master = an_open_master()
    write(master, 1000)
    master.step(acked(3, 1000))
    master.step(introduced(4, an_introduction(2, end=500)))
    assert master.confirm == START_END

    ready = master.step(acked(4, 500))

    assert ready.joined == 4
    assert ready.confirm == 500


def test_first_acknowledgement_elsewhere_than_the_truncation_point_closes() -> None:
    master = an_open_master()
    master.step(introduced(4, an_introduction(2, end=90)))

    ready = master.step(acked(4, 40))

    assert ready.close == (4,)


@pytest.mark.parametrize(
    "ack",
    [
        acked(2, 100, epoch=2),
        acked(2, 100, epoch=4),
        acked(2, 5000),
        acked(2, 100, appended=99),
        acked(2, 50),
        acked(2, 100, round=7),
    ],
    ids=["older-epoch", "newer-epoch", "beyond-end", "flushed-over-appended", "back", "round"],
)
def test_acknowledgement_that_cannot_be_closes_its_connection(ack: object) -> None:
    """R2 and the protocol."""
    master = an_open_master()
    write(master, 1000)

    ready = master.step(ack)  # type: ignore[arg-type]

    assert ready.close == (2,)
    master.step(acked(3, 1000))
    assert master.confirm == START_END


def test_start_of_a_replica_that_is_not_registered_is_refused() -> None:
    """R9, R10: the higher incarnation replaces, never the lower."""
    master = a_master(a_view(incarnations={2: 7}))

    for introduction in (
        an_introduction(2, incarnation=6),
        an_introduction(2, incarnation=8),
        an_introduction(2, incarnation=7, store_id="another"),
    ):
        ready = master.step(introduced(9, introduction))
        assert ready.refuse is not None
        assert ready.refuse[1].code == "OTHER_INCARNATION"
    assert master.step(introduced(9, an_introduction(2, incarnation=7))).welcome is not None


def test_replica_that_has_not_adopted_the_epoch_is_refused() -> None:
    """R2."""
    ready = a_master().step(introduced(9, an_introduction(2, epoch=2)))

    assert ready.refuse is not None
    assert ready.refuse[1].code == "OLDER_EPOCH"


def test_replica_of_a_higher_epoch_fences_the_master() -> None:
    """R5."""
    master = an_open_master()

    ready = master.step(introduced(9, an_introduction(2, epoch=4)))

    assert ready.fence is not None
    assert set(ready.close) == {2, 3}
    assert not master.can_accept()
    write_after = master.step(acked(2, 96))
    assert write_after == NOTHING


def test_log_of_a_higher_epoch_fences_the_master() -> None:
    """R5."""
    epochs = EpochTable.of([(3, 0), (4, 960)])

    ready = a_master().step(introduced(9, an_introduction(2, end=2000, epochs=epochs)))

    assert ready.fence is not None


def test_replica_that_confirmed_more_than_the_master_has_fences_it_as_lossy() -> None:
    """R16."""
    ready = a_master().step(introduced(9, an_introduction(2, end=200, confirm=200)))

    assert ready.fence is not None
    assert ready.is_lossy


WENT_ON = EpochTable.of([(1, 0), (3, 64)])
"""Of an old copy that was elected: as long as what was confirmed without it, and other bytes."""
CONFIRMED = an_introduction(2, end=88, confirm=88, epochs=EpochTable.of([(1, 0)]))


def test_member_that_confirmed_what_another_epoch_has_here_fences_it_as_lossy() -> None:
    """R16: without that member nothing is confirmed in this epoch, so nothing is lost with it."""
    ready = a_master(known_confirm=64).step(introduced(9, CONFIRMED, epochs=WENT_ON))

    assert ready.fence is not None
    assert ready.is_lossy


@pytest.mark.parametrize(
    ("view", "known_confirm"),
    [
        (a_view(is_unclean=True), 64),
        (a_view(sync_state_set=frozenset({1, 3})), 64),
        (a_view(), 72),
    ],
    ids=["unclean", "no-member", "confirmed-on-both-sides"],
)
def test_else_the_replica_decides_what_its_own_confirm_is_worth(
    view: GroupView, known_confirm: int
) -> None:
    """R16."""
    master = a_master(view, known_confirm=known_confirm)

    ready = master.step(introduced(9, CONFIRMED, epochs=WENT_ON))

    assert ready.welcome is not None
    assert ready.welcome[1].truncate_to == 64


def test_unclean_epoch_takes_replicas_that_confirmed_more() -> None:
    """R16, R21."""
    master = a_master(a_view(is_unclean=True))

    ready = master.step(introduced(9, an_introduction(2, end=200, confirm=200)))

    assert ready.welcome is not None
    assert ready.welcome[1].is_unclean
    assert ready.welcome[1].truncate_to == START_END


def test_truncation_point_is_the_end_of_the_newest_common_epoch() -> None:
    master = a_master()
    epochs = EpochTable.of([(1, 0), (3, 48)])
    theirs = EpochTable.of([(1, 0), (2, 60)])

    ready = master.step(introduced(9, an_introduction(2, end=80, epochs=theirs), epochs=epochs))

    assert ready.welcome is not None
    assert ready.welcome[1].truncate_to == 48


def test_logs_from_offset_0_without_a_common_epoch_share_nothing() -> None:
    theirs = EpochTable.of([(2, 0)])

    ready = a_master().step(introduced(9, an_introduction(2, end=96, epochs=theirs)))

    assert ready.welcome is not None
    assert ready.welcome[1].truncate_to == 0


def test_master_whose_disk_failed_never_confirms_again() -> None:
    """R1, R22."""
    master = an_open_master()
    master.step(Appended(PhysicalOffset(1000)))

    ready = master.step(Failed("fsync failed"))

    assert ready.fence == "fsync failed"
    assert master.fenced == "fsync failed"
    assert master.step(Flushed(PhysicalOffset(1000))) == NOTHING
    assert master.step(acked(2, 1000)) == NOTHING
    assert master.confirm == START_END


def test_round_is_confirmed_when_every_other_member_echoed_it() -> None:
    """R4."""
    master = an_open_master()
    master.step(RoundRequested())
    number = master.next_round()

    assert master.step(acked(2, 96, round=number)).confirmed_round is None
    ready = master.step(acked(3, 96, round=number))

    assert ready.confirmed_round == number


def test_round_requested_after_frames_left_needs_a_new_number() -> None:
    """R4: the round must have been sent after the request arrived."""
    master = an_open_master()
    master.step(RoundRequested())
    first = master.round_wanted
    assert master.next_round() == first
    master.step(RoundRequested())

    assert master.round_wanted == first + 1
    master.step(RoundRequested())
    assert master.round_wanted == first + 1  # coalesced: it has not left yet


def test_round_of_a_master_alone_in_its_set_is_confirmed_at_once() -> None:
    master = a_master(a_view(sync_state_set=frozenset({1}), minimum=1))

    assert master.step(RoundRequested()).confirmed_round == 1


def test_sends_are_accepted_only_while_min_members_acknowledge_now() -> None:
    """R8: decided from who acknowledges, not from the size of the set."""
    master = a_master()
    assert not master.can_accept()
    join(master, 2, connection=2)
    assert master.can_accept()

    for _ in range(30):
        master.step(Ran(100))

    assert not master.can_accept()
    master.step(acked(2, 96))
    assert master.can_accept()
    master.step(ReplicaLeft(ConnectionId(2)))
    assert not master.can_accept()


def test_higher_epoch_or_a_vacated_mastership_fences() -> None:
    """R1, R19."""
    for view in (
        a_view(epoch=4, master=2),
        a_view(master=None, set_epoch=6),
        a_view(incarnations={1: 2}),
    ):
        assert an_open_master().step(GroupCommitted(view)).fence is not None
    assert an_open_master().step(GroupCommitted(a_view(epoch=2, master=2))) == NOTHING


def test_connection_of_a_start_that_was_replaced_ends_with_the_news() -> None:
    """R9."""
    master = an_open_master()

    ready = master.step(GroupCommitted(a_view(incarnations={2: 2})))

    assert ready.close == (2,)
    assert master.sync_state_set == {ReplicaId(1), ReplicaId(2), ReplicaId(3)}
    assert master.step(acked(2, 96)) == NOTHING
    assert join(master, 2, connection=8, incarnation=Incarnation(2)).joined == 8
