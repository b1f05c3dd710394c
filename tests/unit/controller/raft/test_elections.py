"""Pre-vote, stickiness, transfer, and the gate."""

from tests.support.raft.single import C2, C3, Single, commands, no_op

from paceline_controller.raft.library import PeerNode
from paceline_controller.raft.peers.frames import Message


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
    single.pass_time(500)

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


# -- a busy machine --------------------------------------------------------------------------------


def test_time_in_which_the_own_loop_stood_is_nobodys_silence() -> None:
    single = follower()

    single.clock.advance(5_000)
    single.tick()

    assert "pre_vote" not in single.kinds()
    assert kinds(single.receive(C3, pre_vote(term=4))) == []
    single.pass_time(900)
    assert "pre_vote" in single.kinds()


def test_a_leader_whose_loop_stood_for_a_moment_waits_for_answers() -> None:
    single = Single()
    single.become_leader()
    single.pass_time(300)

    single.clock.advance(700)
    single.tick()

    assert single.core.is_leading
    single.pass_time(900)
    assert not single.core.is_leading


def test_a_leader_whose_loop_stood_for_long_steps_down() -> None:
    single = Single()
    single.become_leader()

    single.clock.advance(5_000)
    single.tick()

    assert not single.core.is_leading


def heard_every(single: Single, milliseconds: int) -> None:
    for _ in range(6):
        single.pass_time(milliseconds)
        single.append([], term=3, previous=(2, 3))


def is_missed_within(single: Single, milliseconds: int) -> bool:
    before = single.kinds().count("pre_vote")
    single.pass_time(milliseconds)
    return single.kinds().count("pre_vote") > before


def test_a_leader_whose_heartbeats_come_late_is_missed_later() -> None:
    single = follower()
    heard_every(single, 350)

    assert not is_missed_within(single, 1_040)
    assert is_missed_within(single, 1_100)


def test_however_late_heartbeats_come_the_wait_is_bounded() -> None:
    single = follower()
    single.core._node.pace.note(1.6, 10.0)

    heard_every(single, 300)

    assert single.core._node.pace.stretch(10.0) == 4
    assert is_missed_within(single, 3_210)


def test_an_absence_says_nothing_about_pace() -> None:
    single = follower()

    single.core._node.pace.note(1.7, 10.0)

    assert single.core._node.pace.stretch(10.0) == 1


def test_what_was_late_is_forgotten_after_a_while() -> None:
    single = follower()
    single.core._node.pace.note(0.4, 10.0)

    assert round(single.core._node.pace.stretch(39.0)) == 3
    assert single.core._node.pace.stretch(41.0) == 1


def test_a_candidate_does_not_campaign_again_before_its_vote_is_durable() -> None:
    single = Single()
    single.clock.advance(2_000)
    single.tick()
    asked = single.last("pre_vote")
    single.auto_sync = False
    single.receive(C2, {"type": "pre_vote_granted", "term": asked["term"], "round": asked["round"]})
    rounds = single.kinds().count("pre_vote")

    single.pass_time(1_500)
    assert single.kinds().count("pre_vote") == rounds
    single.sync()
    single.pass_time(1_500)
    assert single.kinds().count("pre_vote") == rounds
    single.pass_time(2_000)

    assert single.core.term == 1
    assert single.kinds().count("pre_vote") > rounds


def test_who_has_voted_helps_nobody_else_before_its_vote_is_durable() -> None:
    single = follower()
    single.core.disconnected(C2)
    single.auto_sync = False
    single.receive(C3, vote_request(term=4))

    single.pass_time(500)
    assert kinds(single.receive(C3, pre_vote(term=5))) == []
    single.sync()
    assert kinds(single.receive(C3, pre_vote(term=5))) == []
    single.pass_time(1_010)

    assert "pre_vote_granted" in kinds(single.receive(C3, pre_vote(term=5)))
