"""Generations of the controllers' member list: one voter at a time, and who counts (R18)."""

import asyncio
from typing import Any

import pytest
from tests.support.raft.single import (
    C1,
    C2,
    C3,
    Single,
    command,
    commands,
    no_op,
    snapshot_chunk,
)

from paceline.errors import CommandRefusedError, PeerError
from paceline.platform.disk_memory import MemoryDisk
from paceline.types import ControllerId
from paceline_controller.raft.library import RaftInvariantError
from paceline_controller.raft.log.entries import MEMBERS_ENTRY
from paceline_controller.raft.log.snapshot import Snapshot, encode_snapshot
from paceline_controller.raft.member_steps import Progress, next_step
from paceline_controller.raft.members import (
    Member,
    MemberLog,
    Members,
    configured,
    encode_change,
    is_one_step,
    read_change,
    read_members,
    wished_members,
)
from paceline_controller.raft.peers.directory import Directory

C4, C5 = ControllerId("c4"), ControllerId("c5")
STORE = "ab" * 16
FIRST = configured([C1, C2, C3])
AT: dict[str, Any] = {"raft": "127.0.0.1:7704", "client": "127.0.0.1:7804"}


def adding(members: Members, new: ControllerId, *, remove: ControllerId | None = None) -> Members:
    return wished_members(members, add=new, remove=remove, **AT)


def progress(**changes: Any) -> Progress:
    fields: dict[str, Any] = {
        "last_index": 1000,
        "changed_at": 900,
        "matched": {C2: 1000, C3: 1000, C4: 950},
        "fresh": {C2, C3, C4},
        "stores": {C4: STORE},
    }
    return Progress(**(fields | changes))


def test_a_replacement_is_a_learner_then_a_voter_then_one_voter_less() -> None:
    wished = adding(FIRST, C4, remove=C1)
    promoted = next_step(wished, C2, progress()).members
    assert promoted is not None
    final = next_step(promoted, C2, progress()).members

    assert sorted(wished.voters) == [C1, C2, C3]
    assert promoted.voters[C4].store == STORE
    assert final is not None
    assert (sorted(final.voters), final.leaving, final.generation) == ([C2, C3, C4], None, 3)
    assert is_one_step(FIRST, wished)
    assert is_one_step(wished, promoted)
    assert is_one_step(promoted, final)


def test_two_voters_at_once_are_no_step() -> None:
    two = Members(generation=1, voters={C1: Member(), C2: Member(), C4: Member()})

    assert not is_one_step(FIRST, two)


def test_a_voter_cannot_change_its_store_in_a_step() -> None:
    before = Members(generation=4, voters={C1: Member(store=STORE), C2: Member()})
    after = Members(generation=5, voters={C1: Member(store="cd" * 16), C2: Member()})

    assert not is_one_step(before, after)


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"add": C3, **AT}, "c3 is a member already"),
        ({"remove": C5}, "c5 is no member"),
        ({"add": C4, "remove": C5, **AT}, "c5 is no voter"),
        ({}, "neither"),
        ({"add": "c 4", **AT}, "must be 1 to 64"),
        ({"add": C4, "raft": "127.0.0.1:7704", "client": "nowhere"}, "client address"),
        ({"add": C4, "raft": "127.0.0.1:0", "client": "127.0.0.1:1"}, "raft address"),
        ({"add": C4, "raft": "127.0.0.1:1", "client": "127.0.0.1:1"}, "two addresses"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(wish: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommandRefusedError, match=sentence):
        wished_members(FIRST, **wish)


def test_one_change_at_a_time() -> None:
    busy = adding(FIRST, C4)

    with pytest.raises(CommandRefusedError, match="c4 is still catching up"):
        wished_members(busy, add=C5, raft="h:1", client="h:2")
    with pytest.raises(CommandRefusedError, match="one change at a time"):
        wished_members(busy, remove=C1)
    assert wished_members(busy, remove=C4).learners == {}  # it may be given up


def test_a_wish_that_is_repeated_after_it_was_taken_up_finds_its_own_list() -> None:
    first = FIRST.generation
    wished = adding(FIRST, C4, remove=C1)
    promoted = next_step(wished, C2, progress()).members
    assert promoted is not None
    done = promoted.without_leaving()

    for members in (wished, promoted, done):
        assert wished_members(members, add=C4, remove=C1, generation=first, **AT) is members
    removing = wished_members(done, remove=C2, generation=done.generation)
    for members in (removing, removing.without_leaving()):
        assert wished_members(members, remove=C2, generation=done.generation) is members


@pytest.mark.parametrize(
    "wish",
    [
        {"add": C4, "generation": 0, "raft": "127.0.0.1:1", "client": "127.0.0.1:2"},
        {"add": C4, "generation": 0, "remove": C2, **AT},
        {"add": C5, "generation": 0, **AT},
        {"remove": C1, "generation": 0},
        {"remove": C5, "generation": 7},
    ],
)
def test_a_wish_of_another_list_that_has_come_to_something_else_is_refused(
    wish: dict[str, Any],
) -> None:
    """A late repetition neither adds again what was given up, nor removes who came since (R38)."""
    later = adding(FIRST, C4)

    with pytest.raises(CommandRefusedError, match="the member list is generation 1") as refusal:
        wished_members(later, **wish)

    assert refusal.value.details["reason"] == "STALE_GENERATION"


def test_a_wish_of_the_list_in_force_is_judged_as_ever() -> None:
    """Also where the list already says so: who lost a disk must not take the same id again."""
    members = adding(FIRST, C4).promoted(C4, STORE)
    given_up = wished_members(adding(FIRST, C4), remove=C4)

    with pytest.raises(CommandRefusedError, match="c4 is a member already"):
        wished_members(members, add=C4, generation=members.generation, **AT)
    with pytest.raises(CommandRefusedError, match="c5 is no member"):
        wished_members(members, remove=C5, generation=members.generation)
    with pytest.raises(CommandRefusedError, match="generation 2, not 1"):
        wished_members(given_up, add=C4, generation=1, **AT)


def test_the_only_voter_is_not_removed() -> None:
    with pytest.raises(CommandRefusedError, match="only voter"):
        wished_members(configured([C1]), remove=C1)


@pytest.mark.parametrize(
    ("changes", "waits_for"),
    [
        ({"fresh": {C2, C3}}, "c4 does not answer"),
        ({"stores": {}}, "c4 does not answer"),
        ({"matched": {C4: 10}}, "990 entries to go"),
        ({"last_index": 910, "matched": {C4: 899}}, "11 entries to go"),  # not its own entry
    ],
)
def test_a_learner_that_lacks_something_does_not_vote_yet(
    changes: dict[str, Any], waits_for: str
) -> None:
    step = next_step(FIRST.added(C4, Member(**AT)), C1, progress(**changes))

    assert step.members is None
    assert waits_for in step.waits_for


def test_a_leader_that_is_to_leave_hands_over_first() -> None:
    assert next_step(FIRST.removing(C1), C1, progress()).is_hand_over


def test_nobody_is_removed_without_whom_there_is_no_majority() -> None:
    step = next_step(FIRST.removing(C3), C1, progress(fresh={C3}))

    assert step.members is None
    assert "c2 does not answer" in step.waits_for


def test_a_truncated_generation_is_in_force_no_more() -> None:
    log = MemberLog(FIRST)
    wished = FIRST.removing(C3)
    assert log.add(7, wished)
    assert not log.add(8, FIRST)

    assert log.latest is wished
    assert (log.at(6), log.at(7)) == (FIRST, wished)
    log.forget_from(7)
    assert log.latest is FIRST


def test_a_list_survives_its_json_and_nothing_else_is_one() -> None:
    members = adding(FIRST, C4, remove=C1)

    assert read_members(members.to_json()) == members
    assert read_change(encode_change(members, "p-1")) == (members, "p-1")
    broken: list[object] = [
        {},
        {**members.to_json(), "more": 1},
        {**members.to_json(), "generation": True},
        {**members.to_json(), "voters": {}},
        {**members.to_json(), "leaving": "c9"},
        {**members.to_json(), "learners": {"c1": ["", "", ""]}},
        {**members.to_json(), "learners": {"c4": ["", ""]}},
        {**members.to_json(), "learners": {"c4": ["", "", "store"]}},
    ]
    for document in broken:
        with pytest.raises(PeerError):
            read_members(document)


# -- in a node -------------------------------------------------------------------------------------


def change_entry(members: Members, index: int, term: int) -> tuple[bytes, int, int]:
    return (MEMBERS_ENTRY + encode_change(members, ""), index, term)


def test_a_leader_waits_for_an_entry_of_its_own_term() -> None:
    """Without it two leaders could change the same list into two that do not meet."""
    single = Single()
    single.become_leader()

    with pytest.raises(CommandRefusedError, match="does not lead yet"):
        single.core.change_members(FIRST.removing(C3))

    single.acknowledge(C2, single.core.journal.last_index)
    single.core.change_members(FIRST.removing(C3))


def test_the_next_generation_waits_for_the_last() -> None:
    single = Single()
    single.become_leader()
    single.acknowledge(C2, single.core.journal.last_index)
    single.core.change_members(FIRST.added(C4, Member(**AT)))

    with pytest.raises(CommandRefusedError, match="under way"):
        single.core.change_members(single.core.members.removing(C4))


def test_what_a_learner_holds_does_not_commit() -> None:
    single = Single()
    single.become_leader()
    single.acknowledge(C2, single.core.journal.last_index)
    index = single.core.change_members(FIRST.added(C4, Member(**AT)))

    single.acknowledge(C4, index)
    assert single.core.commit_index < index
    single.acknowledge(C3, index)

    assert single.core.commit_index == index
    assert single.generations == [(1, "", index)]


def test_a_removed_voter_and_a_stranger_count_for_nothing() -> None:
    """From the append on, before the removal is committed."""
    single = Single()
    single.append([change_entry(FIRST.removing(C3), 2, 1)], term=1, previous=(1, 0))
    without = FIRST.removing(C3).without_leaving()
    single.append([change_entry(without, 3, 1)], term=1, previous=(2, 1))
    single.pass_time(2_000)
    asked = single.last("pre_vote")
    granted = {"type": "pre_vote_granted", "term": asked["term"], "round": asked["round"]}

    single.receive(C3, granted)
    single.receive(C5, granted)
    assert "request_vote" not in single.kinds()
    single.receive(C2, granted)
    single.receive(C3, {"type": "response_vote", "term": single.core.term})

    assert not single.core.is_leading
    single.receive(C2, {"type": "response_vote", "term": single.core.term})
    assert single.core.is_leading


def test_a_new_store_votes_once_its_log_names_it() -> None:
    """Else a leader that dies right after the promotion leaves a quorum that cannot elect."""
    single = Single(may_vote=False)
    learner = Members(generation=1, voters={C2: Member(), C3: Member()}, learners={C1: Member()})

    single.append([change_entry(learner, 2, 1)], term=1, previous=(1, 0))

    assert single.gate.may_vote
    single.pass_time(2_000)
    assert "pre_vote" not in single.kinds()  # a learner does not campaign
    ask = {"type": "request_vote", "term": 2, "last_log_index": 3, "last_log_term": 1}
    assert [m["type"] for m in single.receive(C2, ask | {"transfer": False})] == ["response_vote"]


def test_another_store_under_the_own_id_neither_votes_nor_campaigns() -> None:
    single = Single(may_vote=False)
    other = Members(generation=1, voters={C1: Member(store=STORE), C2: Member(), C3: Member()})

    single.append([change_entry(other, 2, 1)], term=1, previous=(1, 0))
    single.pass_time(2_000)

    assert not single.gate.may_vote
    assert "pre_vote" not in single.kinds()


def test_a_generation_that_skips_one_stops_the_node() -> None:
    single = Single()
    single.append([change_entry(FIRST.removing(C3), 2, 1)], term=1, previous=(1, 0))
    skipped = Members(generation=3, voters={C1: Member(), C2: Member()})

    with pytest.raises(RaftInvariantError, match="generation 3 is no step from 1"):
        single.append([change_entry(skipped, 3, 1)], term=1, previous=(2, 1))


def test_generations_survive_a_restart_and_a_snapshot() -> None:
    disk = MemoryDisk()
    single = Single(disk)
    change = change_entry(FIRST.removing(C3), 2, 1)
    rest = [no_op(index, 1) for index in range(3, 9)]
    single.append([change, *rest], term=1, previous=(1, 0), commit=8)

    assert Single(disk).core.members.leaving == C3
    asyncio.run(single.core.compact())
    again = Single(disk).core

    assert again.members.leaving == C3
    assert again.committed_members.leaving == C3


# -- who is talked to ------------------------------------------------------------------------------


def test_entries_of_before_a_snapshot_change_no_members() -> None:
    """A leader that sent a snapshot goes on with what it retains, and that reaches back behind it.

    The changes in there are history: the snapshot has the list that they led to.
    """
    single = Single()
    joining = adding(FIRST, C4)
    joined = joining.promoted(C4, STORE)
    snapshot = Snapshot(
        last=command("x40", 40, 2),
        previous=command("x39", 39, 2),
        machine=b"[]",
        members=joined,
    )
    content = encode_snapshot(snapshot)
    single.receive(C2, snapshot_chunk(content, 0, len(content), term=2, commit=40))
    retained = [
        *commands(31, 34, term=2),
        change_entry(joining, 35, 2),
        *commands(36, 37, term=2),
        change_entry(joined, 38, 2),
        *commands(39, 40, term=2),
    ]

    single.append(retained, term=2, previous=(30, 2), commit=40)

    assert single.core.members == joined
    single.append([change_entry(joined.removing(C2), 41, 2)], term=2, previous=(40, 2))
    assert single.core.members.leaving == C2


def test_a_stale_list_is_replaced_by_what_a_known_peer_proves_to_know() -> None:
    directory = Directory(C1, {C2: ("h", 2), C3: ("h", 3)})
    newer = Members(generation=5, voters={C1: Member(), C4: Member(raft="h:4")})

    directory.hear(C2, newer)

    assert directory.knows(C4)
    assert str(directory.addresses()[C4]) == "h:4"
    assert not directory.is_removed


def test_only_a_peer_of_ours_can_say_that_we_were_removed() -> None:
    directory = Directory(C1, {C2: ("h", 2), C3: ("h", 3)})
    without = Members(generation=5, voters={C2: Member(), C4: Member()})

    directory.hear(C5, without)
    assert not directory.is_removed
    directory.hear(C2, without)

    assert directory.is_removed
