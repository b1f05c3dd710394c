"""Pre-vote, stickiness, transfer, and the gate."""

from tests.unit.raft.single import C2, C3, Single, commands, no_op

from paceline_controller.raft.frames import Message
from paceline_controller.raft.library import PeerNode


def vote_request(*, term: int, transfer: bool = False, index: int = 99) -> Message:
    return {
        "type": "request_vote",
        "term": term,
        "last_log_index": index,
        "last_log_term": term,
        "transfer": transfer,
    }


def pre_vote(*, term: int, index: int = 99) -> Message:
    return {
        "type": "pre_vote",
        "term": term,
        "last_log_index": index,
        "last_log_term": term - 1,
        "round": 5,
    }


def kinds(messages: list[Message]) -> list[str]:
    return [message["type"] for message in messages]


def follower() -> Single:
    """Hears leader c2 of term 3."""
    single = Single()
    single.append([no_op(2, 3)], term=3, previous=(1, 0))
    return single


def test_a_cut_off_node_keeps_its_term() -> None:
    single = Single()

    for _ in range(50):
        single.clock.advance(200)
        single.tick()

    assert single.core.term == 0
    assert "pre_vote" in single.kinds()
    assert "request_vote" not in single.kinds()


def test_a_node_campaigns_after_a_majority_of_pre_votes() -> None:
    single = Single()

    single.become_leader()

    assert single.core.term == 1
    assert single.core.leader == "c1"


def test_a_pre_vote_of_an_old_round_does_not_count() -> None:
    single = Single()
    single.clock.advance(2_000)
    single.tick()
    old = single.last("pre_vote")
    single.clock.advance(2_000)
    single.tick()

    single.receive(C2, {"type": "pre_vote_granted", "term": old["term"], "round": old["round"]})

    assert single.core.term == 0


def test_one_voter_counts_once() -> None:
    single = Single()
    node = single.core._node

    assert not node.is_repeated_vote(PeerNode(C2), {"term": 4})
    assert node.is_repeated_vote(PeerNode(C2), {"term": 4})
    assert not node.is_repeated_vote(PeerNode(C3), {"term": 4})
    assert not node.is_repeated_vote(PeerNode(C2), {"term": 5})


def test_a_follower_that_hears_its_leader_grants_nothing() -> None:
    single = follower()

    assert kinds(single.receive(C3, pre_vote(term=4))) == []
    assert kinds(single.receive(C3, vote_request(term=4))) == []
    assert single.core.term == 3


def test_a_follower_votes_in_a_transfer_although_it_hears_its_leader() -> None:
    single = follower()

    assert kinds(single.receive(C3, vote_request(term=4, transfer=True))) == ["response_vote"]


def test_a_follower_votes_when_the_link_to_its_leader_is_down() -> None:
    single = follower()
    single.core.disconnected(C2)

    assert kinds(single.receive(C3, pre_vote(term=4))) == ["pre_vote_granted"]
    assert kinds(single.receive(C3, vote_request(term=4))) == ["response_vote"]


def test_a_follower_misses_a_leader_whose_link_closed_at_once() -> None:
    single = follower()

    single.core.disconnected(C2)
    single.clock.advance(151)
    single.tick()

    assert "pre_vote" in single.kinds()


def test_a_shorter_log_gets_no_pre_vote() -> None:
    single = follower()
    single.append(commands(3, 9, term=3), term=3, previous=(2, 3))
    single.clock.advance(500)

    behind = pre_vote(term=4, index=8)
    assert "pre_vote_granted" not in kinds(single.receive(C3, behind))
    assert "pre_vote_granted" in kinds(single.receive(C3, behind | {"last_log_index": 9}))


def test_a_node_behind_in_terms_is_told() -> None:
    single = follower()

    assert single.receive(C3, pre_vote(term=2)) == [{"type": "newer_term", "term": 3}]
    assert single.append([], term=2, previous=(1, 0)) == [{"type": "newer_term", "term": 3}]


def test_a_leader_that_learns_of_a_newer_term_steps_down() -> None:
    single = Single()
    single.become_leader()

    single.receive(C3, {"type": "newer_term", "term": 9})

    assert not single.core.is_leading
    assert single.core.term == 9


def test_a_transfer_of_the_leader_starts_a_campaign_at_once() -> None:
    single = follower()

    answers = single.receive(C2, {"type": "timeout_now", "term": 3})

    assert [(m["type"], m["term"], m["transfer"]) for m in answers] == [
        ("request_vote", 4, True),
        ("request_vote", 4, True),
    ]


def test_a_transfer_of_anybody_else_is_ignored() -> None:
    single = follower()

    assert single.receive(C3, {"type": "timeout_now", "term": 3}) == []


def test_a_node_that_may_not_vote_neither_grants_nor_campaigns() -> None:
    single = Single(may_vote=False)

    assert single.receive(C3, pre_vote(term=4)) == []
    assert single.receive(C3, vote_request(term=4)) == []
    for _ in range(20):
        single.clock.advance(200)
        single.tick()

    assert single.sent == []
    assert single.core.term == 0


def test_a_new_member_votes_after_it_has_applied_an_entry_of_its_leaders_term() -> None:
    single = Single(may_vote=False)

    single.append([no_op(2, 1), *commands(3, 5, term=1)], term=3, previous=(1, 0), commit=5)
    single.append([], term=3, previous=(5, 1), commit=5)
    assert not single.gate.may_vote
    single.append([no_op(6, 3)], term=3, previous=(5, 1), commit=6)
    single.append([], term=3, previous=(6, 3), commit=6)

    assert single.gate.may_vote
