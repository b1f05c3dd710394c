"""Who may count and lead at all, and what machines that come and go excuse; as in cases.py."""

from dataclasses import replace

from tests.support.chaos.hand import Q2, SECOND, SIZE, Hand, Q
from tests.unit.chaos.checkers.excuse_cases import CASES, dump_cut
from tests.unit.chaos.checkers.more_cases import case

from paceline_chaos.history.model import LogicalQueueDump, Queue, ReplicaDump

__all__ = ["CASES"]


@case("S33")
def learner_grows_into_the_set(is_bad: bool) -> Hand:
    hand = Hand(learners=["b3"])
    hand.elect(1, 1, [1, 2], reason="first")
    hand.probe(3, 0)
    hand.change([1, 2, 3] if is_bad else [1, 2])
    return hand


@case("S33 of an appointment")
def learner_acts_as_master(is_bad: bool) -> Hand:
    hand = Hand(learners=["b3"])
    hand.elect(1, 1, [1, 2], reason="first")
    hand.probe(3, 0)
    hand.probe(4, 0)
    hand.decide("acting_master_appointed", acting=3 if is_bad else 4, master_epoch=2)
    return hand


@case("S33 of what it says itself")
def learner_says_that_it_acts(is_bad: bool) -> Hand:
    hand = Hand(learners=["b3"])
    hand.probe(3, 0, role="acting_master" if is_bad else "replica")
    return hand


@case("S36")
def message_goes_where_nobody_reads(is_bad: bool) -> Hand:
    hand = Hand()
    second = Queue("t", "g", 1)
    hand.alter(1)
    hand.send("a", 0, **({"queue": second} if is_bad else {}))
    hand.alter(2)
    hand.send("b", 1, queue=second)
    return hand


@case("S37")
def batch_overtakes_another_over_a_move(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, (10, 60), key="k", session="s", queue=Q if not is_bad else Q2)
    hand.send("b", 0, (20, 50), key="k", session="s", queue=Q2 if not is_bad else Q)
    hand.logical_queue(1)
    return hand


@case("S37 of any two messages")
def acknowledged_first_and_stands_behind(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, queue=Q2 if is_bad else Q)
    hand.send("b", 0, queue=Q if is_bad else Q2)
    hand.logical_queue(1)
    return hand


@case("S37 of the seal")
def message_is_stored_behind_the_seal(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.dump(1, ["a", "b"] if is_bad else ["a"])
    hand.logical_queue(1)
    return hand


@case("S37 of offsets")
def segment_begins_elsewhere(is_bad: bool) -> Hand:
    hand = Hand()
    hand.logical_queue(1, starts=(0, 2 if is_bad else 1))
    return hand


@case("S37 of keys")
def key_is_in_two_logical_queues(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, key="k", queue=Q)
    hand.send("b", 0, key="k", queue=Queue("t", "g", 2) if is_bad else Q2)
    hand.logical_queue(1)
    found = {"queues": (Queue("t", "g", 2),), "starts": (0,), "ends": ()}
    hand.add(LogicalQueueDump, node="c1", logical_queue=1, **found)
    return hand


@case("S37 of consumers")
def next_segment_is_begun_early(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.deliver(0, "a", (10, 40 if is_bad else 20), token=1)
    hand.deliver(0, "b", (30, 50), token=2, queue=Q2)
    hand.logical_queue(1)
    return hand


def _acting(hand: Hand) -> None:
    hand.probe(3, 0)
    hand.elect(1, 1, [1, 2], reason="first")
    hand.decide("acting_master_appointed", acting=3, master_epoch=2)


@case("S34")
def provisional_offset_is_gone(is_bad: bool) -> Hand:
    hand = Hand()
    _acting(hand)
    hand.commit(7, is_provisional=True)
    hand.committed(3, maybe_stale=True)
    hand.phase("drain", SECOND)
    hand.committed(6 if is_bad else 7, (SECOND + 10, SECOND + 20))
    return hand


@case("INV-11 of what an acting master took")
def taken_under_an_old_token(is_bad: bool) -> Hand:
    hand = Hand()
    hand.lock("m1", 1, (10, 20), lease_ms=1)
    hand.lock("m2", 2, (30, 40), lease_ms=1)
    hand.commit(0, (50, 60), token=1, is_provisional=not is_bad)
    return hand


@case("S34 of a reset")
def provisional_offset_was_reset(is_bad: bool) -> Hand:
    """Before it or after it: an acting master may not know of a reset."""
    hand = Hand()
    _acting(hand)
    hand.commit(2, is_reset=True, consumer_group="I" if is_bad else "G")
    hand.commit(7, is_provisional=True)
    hand.commit(3)
    hand.phase("drain", SECOND)
    hand.committed(3, (SECOND + 10, SECOND + 20))
    hand.commit(1, (SECOND - 90, SECOND - 80), is_provisional=True, consumer_group="H")
    hand.committed(1, (SECOND + 30, SECOND + 40), consumer_group="H")
    return hand


@case("S34 of a disk that was thrown away")
def provisional_offset_went_with_its_disk(is_bad: bool) -> Hand:
    hand = Hand()
    _acting(hand)
    if is_bad:
        hand.fault("replace", "b3", 1, 2)
    hand.commit(7, at=(1_000, 1_010), is_provisional=True)
    if not is_bad:
        hand.fault("replace", "b3", 2_000, 3_000)
    hand.commit(1, at=(4_000, 4_010), is_provisional=True, consumer_group="H")
    hand.phase("drain", SECOND)
    hand.committed(None, (SECOND + 10, SECOND + 20))
    hand.committed(1, (SECOND + 30, SECOND + 40), consumer_group="H")
    return hand


@case("S1 of a log whose first file is gone")
def master_lost_its_first_file(is_bad: bool) -> Hand:
    """Whose log begins late by a fault is not asked what there was; the others are."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.send("a", 0)
    hand.send("b", 1)
    hand.fault("disk_missing", "b1", 50)
    hand.dump(1, ["a", "b"])
    dump = hand.history.entries.pop()
    assert isinstance(dump, ReplicaDump)
    hand.history.entries.append(replace(dump, start=SIZE, batches=dump.batches[1:]))
    hand.dump(2, ["a"] if is_bad else ["a", "b"])
    return hand


@case("L8 of a lost file")
def lost_file_is_not_mended(is_bad: bool) -> Hand:
    hand = Hand(scrub_ms=100)
    hand.unknown("a")
    hand.fault("disk_missing", "b2", 50)
    hand.phase("heal", SECOND)
    hand.phase("end", 40 * SECOND)
    hand.dump(1, ["a"])
    hand.dump(2, [] if is_bad else ["a"], confirm=SIZE)
    return hand


@case("S30 of a wiped log")
def wiped_log_stays_a_member(is_bad: bool) -> Hand:
    hand = Hand()
    hand.decide("replica_registered", replica=2, incarnation=1, index=1)
    hand.elect(1, 1, [1, 2], index=2)
    hand.probe(2, SIZE, 15)
    hand.fault("disk_wiped", "b2", 20)
    hand.decide("replica_registered", 30, replica=2, incarnation=2, index=3)
    if not is_bad:
        members = {"set_epoch": 2, "sync_state_set": [1]}
        hand.decide("member_removed", 30, replica=2, index=3, **members)
    return hand


@case("S27 of a skip over what was deleted")
def skipped_what_retention_took(is_bad: bool) -> Hand:
    """R26: under one lock, too, somebody may find that the next messages are gone."""
    hand = Hand()
    for number in range(5):
        hand.unknown(str(number))
    hand.deliver(0, "0", token=1)
    hand.deliver(3 if is_bad else 2, "3" if is_bad else "2", token=1)
    dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


@case("L10")
def processed_messages_come_again_and_again(is_bad: bool) -> Hand:
    """A reset and a change of members are each good for one more time."""
    hand = Hand()
    hand.send("a", 0)
    hand.commit(0, (SECOND // 2, SECOND // 2 + 9), is_reset=True)
    for number in range(4 if is_bad else 3):
        hand.deliver(0, "a", ((number + 1) * SECOND, (number + 1) * SECOND + 9))
    hand.dump(1, ["a"])
    hand.phase("end", 30 * SECOND)
    return hand


@case("L11")
def a_range_is_waited_for(is_bad: bool) -> Hand:
    """What was under way at a fault may take longer."""
    hand = Hand()
    hand.send("a", 0)
    hand.range(0, 1, (SECOND, (7 if is_bad else 5) * SECOND))
    hand.range(0, 1, (9 * SECOND, 17 * SECOND))
    hand.fault("kill", "b1", 11 * SECOND)
    hand.dump(1, ["a"])
    hand.phase("end", 30 * SECOND)
    return hand
