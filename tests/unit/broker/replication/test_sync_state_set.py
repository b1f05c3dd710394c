"""Shrink and grow: the sync state set as the master proposes it."""

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

from paceline.types import Incarnation, PhysicalOffset, ReplicaId, SetEpoch
from paceline_broker.replication.handshake import ConnectionId
from paceline_broker.replication.master.events import (
    NOTHING,
    AlterSyncStateSet,
    Appended,
    Flushed,
    GroupCommitted,
    MemberRefused,
    ProposalRefused,
    ProposalUnknown,
    Ran,
    ReplicaLeft,
)
from paceline_broker.replication.master.master import MasterReplication

OF_TWO = frozenset({1, 2})


def run(master: MasterReplication, milliseconds: int) -> AlterSyncStateSet | None:
    """Let running time pass in ticks; members 2 and 3 stay silent. The proposal it leads to."""
    for _ in range(milliseconds // 100):
        ready = master.step(Ran(100))
        if ready.propose is not None:
            return ready.propose
    return None


def ticks_to_proposal(master: MasterReplication) -> int | None:
    """Ticks of 100 ms in which only member 2 acknowledges, until the master proposes a set."""
    for tick in range(1, 200):
        master.step(acked(2, 96))
        if master.step(Ran(100)).propose is not None:
            return tick
    return None


def a_master_of_two() -> MasterReplication:
    """Set {1, 2}; replica 3 is connected and has nothing yet."""
    master = a_master(a_view(sync_state_set=OF_TWO))
    join(master, 2, connection=2)
    join(master, 3, connection=3)
    write(master, 96)
    master.step(acked(2, 96))
    assert master.confirm == START_END
    return master


def test_member_that_ends_is_probed_and_leaves_at_once_if_its_port_refuses() -> None:
    """R12."""
    master = an_open_master()

    ready = master.step(ReplicaLeft(ConnectionId(3)))
    assert ready.probe == ((3, 1),)
    ready = master.step(MemberRefused(ReplicaId(3), Incarnation(1)))

    assert ready.propose is not None
    assert ready.propose.sync_state_set == {1, 2}
    assert ready.propose.incarnations == {1: 1, 2: 1}
    assert ready.propose.set_epoch == 5


def test_refusal_of_an_older_start_or_of_a_replica_that_is_back_is_ignored() -> None:
    master = an_open_master()

    assert master.step(MemberRefused(ReplicaId(3), Incarnation(1))) == NOTHING
    master.step(ReplicaLeft(ConnectionId(3)))
    assert master.step(MemberRefused(ReplicaId(3), Incarnation(0))) == NOTHING


def test_silent_member_leaves_after_the_lag_in_running_time() -> None:
    """R12."""
    master = an_open_master()
    assert ticks_to_proposal(master) == 21  # the first tick beyond 2000 ms


def test_gap_of_the_masters_own_loop_restarts_the_clocks() -> None:
    """R12: it was the master that was away."""
    master = an_open_master()
    assert run(master, 1900) is None

    assert master.step(Ran(5000)) == NOTHING
    assert run(master, 1900) is None


def test_member_that_acknowledges_but_stays_behind_leaves() -> None:
    master = an_open_master()

    proposal = None
    for step in range(1, 60):
        write(master, 96 + step * 100)
        master.step(acked(2, 96 + step * 100))
        master.step(acked(3, 96 + step))
        proposal = proposal or master.step(Ran(100)).propose

    assert proposal is not None
    assert proposal.sync_state_set == {1, 2}


def test_member_that_is_needed_and_behind_is_slow_and_a_silent_one_is_not() -> None:
    """R8: neither is counted on, but only the slow one will do if it is waited for."""
    master = an_open_master(a_view(minimum=3))

    for step in range(1, 40):
        write(master, 96 + step * 100)
        master.step(acked(2, 96 + step))
        assert master.step(Ran(100)).propose is None

    assert not master.can_accept()
    assert master.facts().is_slow(ReplicaId(2))
    assert not master.facts().is_slow(ReplicaId(3))


def test_member_waits_for_no_sync_that_the_master_itself_has_yet_to_end() -> None:
    """Where all disks take a second for a sync, none is behind because of that (R12)."""
    master = an_open_master()

    end = own = theirs = 96
    for step in range(1, 100):
        end += 100
        master.step(Appended(PhysicalOffset(end)))
        if step % 25 == 0:  # every 2.5 s a sync ends, and a second later those of the members do
            own = end
            master.step(Flushed(PhysicalOffset(own)))
        if step % 25 == 10:
            theirs = own
        for connection in (2, 3):
            master.step(acked(connection, theirs, appended=end))
        assert master.step(Ran(100)).propose is None
        assert master.can_accept()


def test_member_that_follows_a_steady_load_closely_stays() -> None:
    master = an_open_master()

    for step in range(1, 60):
        write(master, 96 + step * 100)
        for connection in (2, 3):  # half a second behind, always
            master.step(acked(connection, max(96, 96 + (step - 5) * 100)))
        assert master.step(Ran(100)).propose is None


def test_set_never_shrinks_below_min() -> None:
    """R8: dead members stay members until another replica has joined."""
    master = an_open_master()
    master.step(ReplicaLeft(ConnectionId(2)))
    assert master.step(MemberRefused(ReplicaId(2), Incarnation(1))).propose is not None

    master = an_open_master(a_view(minimum=3))
    master.step(ReplicaLeft(ConnectionId(3)))
    assert master.step(MemberRefused(ReplicaId(3), Incarnation(1))) == NOTHING
    assert run(master, 5000) is None


def test_smaller_set_counts_only_when_committed() -> None:
    """INV-6."""
    master = an_open_master()
    write(master, 1000)
    master.step(acked(2, 1000))
    master.step(ReplicaLeft(ConnectionId(3)))
    master.step(MemberRefused(ReplicaId(3), Incarnation(1)))
    assert master.confirm == START_END

    ready = master.step(GroupCommitted(a_view(sync_state_set=OF_TWO, set_epoch=6)))

    assert ready.confirm == 1000


def test_replica_that_reached_confirm_is_proposed_as_a_member() -> None:
    """R10."""
    master = a_master_of_two()
    write(master, 1000)

    assert master.step(acked(3, 50)) == NOTHING
    ready = master.step(acked(3, 96))

    assert ready.propose is not None
    assert ready.propose.sync_state_set == {1, 2, 3}


def test_grow_needs_flushed_bytes_and_projections() -> None:
    """R10, R11."""
    master = a_master_of_two()

    assert master.step(acked(3, 50, appended=96)) == NOTHING
    assert master.step(acked(3, 96, is_ready=False)) == NOTHING
    assert master.step(acked(3, 96)).propose is not None


def test_grow_needs_the_start_of_the_epoch() -> None:
    """R10."""
    master = a_master(a_view(sync_state_set=OF_TWO))
    join(master, 3, connection=3)

    assert master.confirm == 0
    assert master.step(acked(3, 95, appended=96)) == NOTHING
    assert master.step(acked(3, 96)).propose is not None


def test_learner_never_becomes_a_member() -> None:
    """R18."""
    master = a_master(a_view(sync_state_set=OF_TWO, learners=frozenset({3})))
    join(master, 3, connection=3)

    assert master.step(acked(3, 96)) == NOTHING


def test_proposed_member_must_acknowledge_at_once() -> None:
    """R7, R10: from the step of the proposal both sets count."""
    master = a_master_of_two()
    master.step(acked(3, 96))
    write(master, 1000)

    assert master.step(acked(2, 1000)) == NOTHING
    assert master.step(acked(3, 1000)).confirm == 1000


def test_unknown_outcome_keeps_both_sets_and_is_proposed_again_unchanged() -> None:
    """R7."""
    master = a_master_of_two()
    proposal = master.step(acked(3, 96)).propose
    assert proposal is not None
    write(master, 1000)

    master.step(ProposalUnknown(proposal.sequence))
    # A read that shows the old set epoch resolves nothing.
    master.step(GroupCommitted(a_view(sync_state_set=OF_TWO, set_epoch=5)))

    assert master.step(acked(2, 1000)) == NOTHING
    assert master.step(Ran(100)).propose is proposal
    assert master.step(Ran(100)).propose is None  # one attempt at a time


def test_definite_refusal_ends_the_proposal() -> None:
    master = a_master_of_two()
    proposal = master.step(acked(3, 96)).propose
    assert proposal is not None
    write(master, 1000)
    master.step(acked(2, 1000))

    ready = master.step(ProposalRefused(proposal.sequence, SetEpoch(5)))

    assert ready.confirm == 1000


def test_refusal_that_shows_a_moved_set_waits_for_the_news() -> None:
    """R7: an earlier attempt of the same proposal may have moved it."""
    master = a_master_of_two()
    proposal = master.step(acked(3, 96)).propose
    assert proposal is not None
    write(master, 1000)
    master.step(acked(2, 1000))

    assert master.step(ProposalRefused(proposal.sequence, SetEpoch(6))) == NOTHING
    master.step(GroupCommitted(a_view(set_epoch=6)))

    assert master.confirm == START_END  # replica 3 is a member and has not acknowledged
    assert master.step(acked(3, 1000)).confirm == 1000


def test_replica_that_lagged_waits_longer_each_time_before_it_joins_again() -> None:
    """R12."""
    master = an_open_master()
    waits = []
    for round_number in range(3):
        set_epoch = 6 + 2 * round_number
        assert ticks_to_proposal(master) is not None
        master.step(GroupCommitted(a_view(sync_state_set=OF_TWO, set_epoch=set_epoch)))
        master.step(acked(3, 96))
        waits.append(ticks_to_proposal(master))
        master.step(GroupCommitted(a_view(set_epoch=set_epoch + 1)))

    assert waits == [20, 40, 80]


def test_replica_that_was_restarted_may_join_again_at_once() -> None:
    master = an_open_master()
    master.step(ReplicaLeft(ConnectionId(3)))
    master.step(MemberRefused(ReplicaId(3), Incarnation(1)))
    master.step(GroupCommitted(a_view(sync_state_set=OF_TWO, set_epoch=6)))
    master.step(GroupCommitted(a_view(sync_state_set=OF_TWO, set_epoch=6, incarnations={3: 2})))
    master.step(introduced(8, an_introduction(3, incarnation=2, end=96)))

    ready = master.step(acked(8, 96))
    assert ready.joined == 8

    assert master.step(Ran(100)).propose is not None


def test_member_that_the_controllers_removed_must_come_back_by_a_handshake() -> None:
    """R9: an old copy registered as replica 3; its former process still acknowledges."""
    master = an_open_master()

    ready = master.step(GroupCommitted(a_view(sync_state_set=OF_TWO, set_epoch=6)))

    assert ready.close == (3,)
    assert master.step(acked(3, 96)) == NOTHING
    assert join(master, 3, connection=8).joined == 8


def test_member_that_left_by_our_own_proposal_keeps_its_connection() -> None:
    master = an_open_master()
    assert ticks_to_proposal(master) is not None

    ready = master.step(GroupCommitted(a_view(sync_state_set=OF_TWO, set_epoch=6)))

    assert ready.close == ()


def test_member_that_never_connected_in_this_epoch_is_probed_until_its_port_is_known() -> None:
    """R12: it died before the election that kept it for want of members (R8)."""
    master = a_master()
    join(master, 2, connection=2)

    probes = [master.step(Ran(100)).probe for _ in range(11)]

    assert [number for number, probe in enumerate(probes) if probe] == [0, 5, 10]
    assert probes[0] == ((3, 1),)
    ready = master.step(MemberRefused(ReplicaId(3), Incarnation(1)))
    assert ready.propose is not None
    assert ready.propose.sync_state_set == {1, 2}
    assert not any(master.step(Ran(100)).probe for _ in range(11))


def steady_load(master: MasterReplication, *, steps: int, behind: int) -> AlterSyncStateSet | None:
    """Ten batches a tick; member 2 keeps up, replica 3 has each of them `behind` batches later."""
    facts = master.facts()
    base, had = facts.end, facts.peers[ReplicaId(3)].flushed
    for step in range(1, steps):
        end = base + step * 100
        write(master, end)
        master.step(acked(2, end))
        flushed = max(had, end - behind * 100)
        ready = master.step(acked(3, flushed, appended=end))
        if step % 10 == 0 and ready.propose is None:
            ready = master.step(Ran(100))
        if ready.propose is not None:
            return ready.propose
    return None


def test_replica_that_is_always_a_flush_late_joins_under_a_steady_load() -> None:
    """R10: confirm waits for it, as it will when it is a member."""
    master = a_master_of_two()

    proposal = steady_load(master, steps=200, behind=3)

    assert proposal is not None
    assert proposal.sync_state_set == {1, 2, 3}
    assert proposal.confirm == master.confirm
    # What it has is above confirm in that step, and what confirm moved by, it has too.
    assert master.facts().peers[ReplicaId(3)].position >= master.confirm


def test_whoever_was_waited_for_joins_with_its_last_acknowledgement_too() -> None:
    """The load ends while confirm waits: nothing else may be needed to move it."""
    master = a_master_of_two()
    while master.facts().others == (2,):
        assert steady_load(master, steps=11, behind=3) is None
        assert master.facts().end < 100_000
    end = 100_000
    write(master, end)
    master.step(acked(2, end))
    assert master.confirm < end

    ready = master.step(acked(3, end))

    assert ready.propose is not None
    assert ready.confirm == end


def test_nobody_is_waited_for_who_is_far_from_the_end() -> None:
    master = a_master_of_two()

    assert steady_load(master, steps=400, behind=30) is None
    assert master.confirm == 96 + 399 * 100


def test_confirm_waits_only_so_long_for_whom_it_need_not() -> None:
    master = a_master_of_two()
    while master.facts().others == (2,):
        assert steady_load(master, steps=11, behind=3) is None
        assert master.facts().end < 100_000
    write(master, 100_000)
    master.step(acked(2, 100_000))
    assert master.confirm < 100_000  # it waits for 3, which falls silent

    for _ in range(4):
        master.step(Ran(100))

    assert master.confirm == 100_000
    assert master.facts().others == (2,)


def test_a_learner_is_never_waited_for() -> None:
    """R18."""
    master = a_master(a_view(sync_state_set=OF_TWO, learners=frozenset({3})))
    join(master, 2, connection=2)
    join(master, 3, connection=3)

    assert steady_load(master, steps=400, behind=3) is None
    assert master.confirm == 96 + 399 * 100
