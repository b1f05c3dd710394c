"""What goes ahead of a sync, and what never does (INV-10)."""

from tests.support.raft.single import C2, C3, Single, command, commands, no_op

from paceline_controller.raft.peers.frames import Message

PRE_VOTE: Message = {
    "type": "pre_vote",
    "term": 9,
    "last_log_index": 99,
    "last_log_term": 8,
    "round": 5,
}


def leader_with_unsynced_entry() -> Single:
    """Of term 1; c2 holds all up to entry 2, entry 3 waits for this leader's disk."""
    single = Single()
    single.become_leader()
    single.acknowledge(C2, 2)
    single.auto_sync = False
    single.core.append(b'"mine"')
    return single


def follower_with_unsynced_entry() -> Single:
    """Of leader c2 of term 1; entries up to 4 are on its disk, entry 5 is not."""
    single = Single()
    single.append([no_op(2, 1), *commands(3, 4, term=1)], term=1, previous=(1, 0))
    single.auto_sync = False
    single.append([command("x5", 5, 1)], term=1, previous=(4, 1))
    del single.sent[:]
    return single


def test_appends_of_a_leader_wait_for_no_disk() -> None:
    single = leader_with_unsynced_entry()

    for _ in range(5):
        single.clock.advance(101)
        single.tick()

    appends = [message for peer, message in single.sent if peer == C2 and "entries" in message]
    assert appends[-6]["entries"] == [command("mine", 3, 1)]
    assert [message["entries"] for message in appends[-5:]] == [[]] * 5


def test_a_leader_whose_followers_answer_heartbeats_stays_during_a_long_sync() -> None:
    single = leader_with_unsynced_entry()

    for _ in range(50):
        single.clock.advance(101)
        single.acknowledge(C2, 2)

    assert single.core.is_leading


def test_a_follower_answers_heartbeats_during_a_sync() -> None:
    single = follower_with_unsynced_entry()

    answers = single.append([], term=1, previous=(4, 1))

    assert [(m["type"], m["next_node_idx"]) for m in answers] == [("next_node_idx", 5)]


def test_a_follower_acknowledges_no_entry_before_it_is_durable() -> None:
    single = follower_with_unsynced_entry()

    answers = single.append([], term=1, previous=(5, 1))
    assert [m["next_node_idx"] for m in answers] == [5]  # a sign of life: up to entry 4
    del single.sent[:]
    single.sync()

    assert {m["next_node_idx"] for _, m in single.sent} == {6}


def test_an_entry_in_place_of_a_durable_one_is_acknowledged_only_when_it_is_durable() -> None:
    single = follower_with_unsynced_entry()
    single.sync()
    single.append([command("other", 4, 2)], term=2, previous=(3, 1))
    single.sync()
    single.append([command("third", 4, 3)], term=3, previous=(3, 1))
    del single.sent[:]

    assert single.append([], term=3, previous=(4, 3)) == []
    single.sync()

    assert [m["next_node_idx"] for _, m in single.sent][-1] == 5


def test_a_sync_does_not_count_for_entries_that_were_replaced_while_it_ran() -> None:
    single = follower_with_unsynced_entry()
    ticket = single.core.journal.begin_sync()
    assert ticket is not None
    single.core.journal.deleteEntriesFrom(-1)
    single.core.journal.add(command("new", 5, 1)[0], 5, 1)

    single.core.synced(ticket)

    assert single.core.journal.durable_index == 4


def test_nothing_of_a_new_term_leaves_before_the_term_is_durable() -> None:
    single = follower_with_unsynced_entry()

    assert single.append([], term=2, previous=(4, 1)) == []
    assert single.append([], term=1, previous=(4, 1)) == []
    single.sync()

    assert {m["term"] for _, m in single.sent} == {1, 2}
    assert single.sent[-1][1]["type"] == "newer_term"


def test_pre_votes_wait_for_no_disk() -> None:
    single = follower_with_unsynced_entry()
    single.pass_time(420)

    assert "pre_vote_granted" in [m["type"] for m in single.receive(C3, PRE_VOTE)]
    single.pass_time(500)

    assert "pre_vote" in single.kinds()
    assert single.core.term == 1
