"""What a master shows of its replicas, dead ones too, and what it waits for in words."""

from dataclasses import replace

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

from paceline.types import PhysicalOffset, ReplicaId
from paceline_broker.replication.handshake import ConnectionId
from paceline_broker.replication.master.events import (
    GroupCommitted,
    MemberRefused,
    Ran,
    ReplicaLeft,
)
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.replication.master.progress import Progress, Rate, Row
from paceline_broker.replication.master.waits import waits_of

SENT = {ReplicaId(2): PhysicalOffset(0), ReplicaId(3): PhysicalOffset(0)}


def rows_of(master: MasterReplication, progress: Progress, now_ms: int = 0) -> dict[object, Row]:
    live = {replica: SENT[replica] for replica in master.facts().peers}
    return {row["replica"]: row for row in progress.rows(master.facts(), now_ms, sent=live)}


def waits(master: MasterReplication, *, is_draining: bool = False) -> list[str]:
    return waits_of(master.facts(), is_draining=is_draining)


# -- rows ------------------------------------------------------------------------------------------


def test_row_shows_how_far_a_replica_is_behind() -> None:
    master = an_open_master()
    progress = Progress(master.facts())
    write(master, START_END + 4096)
    master.step(acked(2, START_END + 1024))
    master.step(Ran(100))

    row = rows_of(master, progress)[2]

    assert (row["appended"], row["lag_bytes"], row["lag_ms"]) == (START_END + 1024, 3072, 100)
    assert (row["in_set"], row["connected"], row["joined"]) == (True, True, True)


def test_lag_of_a_dead_replica_stays_and_grows() -> None:
    """An alert must not end with the process that it is about."""
    master = an_open_master()
    progress = Progress(master.facts())
    write(master, START_END + 1024)
    master.step(acked(3, START_END + 1024))
    progress.sample(master.facts(), 0)
    master.step(ReplicaLeft(ConnectionId(3)))
    write(master, START_END + 5120)
    for _ in range(5):
        master.step(Ran(100))

    row = rows_of(master, progress, 500)[3]

    assert (row["connected"], row["joined"], row["sent"]) == (False, False, None)
    assert (row["appended"], row["lag_bytes"], row["lag_ms"]) == (START_END + 1024, 4096, 500)
    assert row["bytes_per_second"] == 0


def test_member_that_never_connected_has_what_was_confirmed_when_the_epoch_began() -> None:
    """INV-1: it acknowledged that; of others nothing is known."""
    of_two = a_master(a_view(sync_state_set=frozenset({1, 2})))
    progress = Progress(of_two.facts())
    write(of_two, START_END + 96)

    rows = rows_of(of_two, progress)

    assert rows[2]["appended"] == of_two.confirm
    assert rows[2]["lag_bytes"] == START_END + 96 - of_two.confirm
    assert (rows[3]["appended"], rows[3]["lag_bytes"], rows[3]["lag_ms"]) == (None, None, None)


def test_replica_that_was_removed_is_shown_no_more_and_comes_back_as_a_new_one() -> None:
    """Its lag would grow until the epoch ends, and raise an alert that nobody can still."""
    master = an_open_master()
    progress = Progress(master.facts())
    master.step(ReplicaLeft(ConnectionId(3)))
    master.step(Ran(100))
    view = a_view(sync_state_set=frozenset({1, 2}), set_epoch=6)
    left = {replica: known for replica, known in view.replicas.items() if replica != 3}

    master.step(GroupCommitted(replace(view, replicas=left)))

    assert set(rows_of(master, progress)) == {2}
    assert master.facts().paces.lag_ms(ReplicaId(3)) is None
    refused = master.step(introduced(9, an_introduction(3))).refuse
    assert refused is not None
    assert refused[1].code == "UNKNOWN_REPLICA"
    master.step(GroupCommitted(view))
    row = rows_of(master, progress)[3]
    assert (row["appended"], row["lag_ms"], row["in_set"]) == (None, None, False)


def test_rate_is_of_the_last_whole_second_and_falls_to_zero() -> None:
    rate = Rate(0, 0)
    rate.sample(600, 500)
    assert rate.per_second == 0

    rate.sample(2_200, 1_100)
    assert rate.per_second == 2_000

    rate.sample(2_200, 2_100)
    assert rate.per_second == 0


def test_rate_survives_a_truncation() -> None:
    rate = Rate(1_000, 0)
    rate.sample(400, 0)
    rate.sample(1_400, 1_000)

    assert rate.per_second == 1_000


# -- words -----------------------------------------------------------------------------------------


def test_master_with_nothing_to_do_waits_for_nothing() -> None:
    assert waits(an_open_master()) == []


def test_member_without_a_connection_is_named_with_what_ends_the_wait() -> None:
    """R10, R12."""
    master = an_open_master()
    master.step(ReplicaLeft(ConnectionId(3)))
    write(master, START_END + 96)
    master.step(acked(2, START_END + 96))
    for _ in range(3):
        master.step(Ran(100))

    [sentence] = waits(master)

    assert sentence == (
        "replica 3, a member without a connection for 300 ms; it leaves the set when its port "
        "refuses, or after 2000 ms"
    )


def test_member_that_must_stay_is_named_so() -> None:
    """R8: with one of two away the set cannot shrink below min."""
    master = a_master(a_view(sync_state_set=frozenset({1, 2})))
    join(master, 2, connection=2)
    write(master, START_END)
    master.step(acked(2, START_END))
    master.step(ReplicaLeft(ConnectionId(2)))
    write(master, START_END + 96)

    sentences = waits(master)

    assert "members that acknowledge: 1 do, 2 are required" in sentences[0]
    assert "it stays a member, or fewer than 2 would be left" in sentences[1]


def test_slow_member_and_the_answer_of_the_controllers_are_named() -> None:
    """R7."""
    master = an_open_master()
    write(master, START_END + 96)
    master.step(ReplicaLeft(ConnectionId(3)))
    master.step(MemberRefused(ReplicaId(3), master.facts().replicas[ReplicaId(3)].incarnation))

    sentences = waits(master)

    assert sentences[0].startswith("the controllers' answer to a change of the set to [1, 2]")
    assert "replica 2: 96 bytes and 0 ms behind" in sentences
    assert any(sentence.startswith("replica 3, a member without") for sentence in sentences)


def test_own_disk_the_epoch_and_a_hand_over_are_named() -> None:
    """R3, R11, R20."""
    master = a_master()

    sentences = waits(master, is_draining=True)

    assert sentences[0].startswith("its successor")
    assert sentences[1].startswith("the confirmation of its epoch's start record")
