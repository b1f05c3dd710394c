"""Raft core by hand: when a node that starts knows what was committed before."""

from tests.support.raft.single import C2, Single, commands, no_op


def test_a_node_that_starts_has_caught_up_with_the_first_leader_it_hears() -> None:
    """Also one whose journal is lost: what it heard first says how far it must come."""
    single = Single()
    assert not single.core.has_caught_up, "nobody has said anything"

    single.append(commands(2, 4, term=3), term=3, previous=(1, 0), commit=9)
    assert single.core.applied_index == 4
    assert not single.core.has_caught_up, "the leader has committed more"
    single.append(commands(5, 9, term=3), term=3, previous=(4, 3), commit=12)
    assert single.core.has_caught_up

    single.append(commands(10, 10, term=3), term=3, previous=(9, 3), commit=12)
    assert single.core.has_caught_up, "it stays so"


def test_what_a_new_leader_says_first_may_be_less_than_was_committed() -> None:
    """After a restart of all: nobody knows of the last commits, but their entries are there."""
    single = Single()
    single.append(commands(2, 9, term=3), term=5, previous=(1, 0), commit=4)
    assert single.core.applied_index == 4
    assert not single.core.has_caught_up

    single.append([no_op(10, 5)], term=5, previous=(9, 3), commit=4)
    assert not single.core.has_caught_up, "its first entry is not committed yet"
    single.append([], term=5, previous=(10, 5), commit=10)
    assert single.core.has_caught_up


def test_a_leader_has_caught_up_once_its_first_entry_is_applied() -> None:
    single = Single()

    single.become_leader()
    assert not single.core.has_caught_up
    single.acknowledge(C2, single.core.journal.last_index)

    assert single.core.has_caught_up
