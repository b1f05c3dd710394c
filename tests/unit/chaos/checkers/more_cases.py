"""The other ways to break properties that are decided in several ways; as in cases.py."""

from dataclasses import replace

from tests.support.chaos.hand import Q2, SECOND, SIZE, Hand, Q
from tests.unit.chaos.checkers.cases import CASES, case

from paceline_chaos.history.model import Outcome, Pull, ReplicaDump, Send

__all__ = ["CASES", "case"]


@case("S1 of a late duplicate")
def duplicate_that_is_nowhere(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", -1, is_duplicate=True, queue=Q2)
    hand.unknown("b")
    hand.dump(1, ["b" if is_bad else "a"])
    return hand


@case("S1 of a queue that was chosen")
def stored_in_another_queue(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, wanted=Q2 if is_bad else Q)
    hand.dump(1, ["a"])
    return hand


@case("S1 of a group without a whole log")
def nothing_is_whole(is_bad: bool) -> Hand:
    """Damage is no excuse for a loss, unless no member had a copy that was left alone."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.send("a", 0)
    hand.fault("disk_flip", "b1", 50)
    if not is_bad:
        hand.fault("disk_flip", "b2", 50)
    hand.dump(1, [], end=SIZE, damage="at 0: a flipped bit")
    if not is_bad:
        hand.dump(2, [], end=SIZE, damage="at 0: a flipped bit")
    return hand


@case("S1 before an order")
def acknowledged_after_the_order(is_bad: bool) -> Hand:
    """The order costs what was there before it, and nothing that comes after it."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, set_epoch=1)
    hand.send("lost", 1, (500, 510) if is_bad else (10, 20))
    hand.order(2, (90, 110))
    hand.elect(2, 2, [2], at=100, set_epoch=2, is_unclean=True, reason="unclean")
    hand.send("kept", 0, (400, 410))
    hand.dump(2, ["kept"])
    return hand


@case("S2 of a replica's log")
def other_message_below_the_confirm_of_a_replica(is_bad: bool) -> Hand:
    """Bytes that a checker of bytes would not see: the crc of the batch is the same."""
    hand = Hand()
    hand.unknown("ab")
    hand.unknown("ba")
    hand.dump(1, ["ab"])
    hand.dump(2, ["ba" if is_bad else "ab"], confirm=SIZE)
    hand.elect(1, 1, [1, 2])
    return hand


@case("S25 of a recall")
def recalled_and_delivered(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 500)
    hand.delayed("b", 500)
    hand.recalled("a")
    hand.recalled("b", outcome=Outcome.FAIL if is_bad else Outcome.UNKNOWN, error="CONFLICT")
    hand.dump(1, ["a"] if is_bad else ["b"])
    return hand


@case("S25 of a reader of what was recalled")
def recalled_and_read(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 1)
    hand.unknown("b")
    hand.recalled("a")
    hand.pull(0, ["a" if is_bad else "b"])
    return hand


@case("S25 of a loss")
def never_delivered(is_bad: bool) -> Hand:
    """Three seconds after it was due the group acknowledges, so it has a master that delivers."""
    hand = Hand()
    hand.delayed("a", 500, at=(0, 1000))
    hand.send("b", 0, at=(4 * SECOND, 4 * SECOND + 1))
    hand.dump(1, ["b"] if is_bad else ["b", "a"])
    return hand


@case("S3 of an invention")
def never_sent(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0)
    hand.pull(0, ["a"])
    hand.dump(1, ["a", "x"] if is_bad else ["a"])
    return hand


@case("S3 of time")
def read_before_it_was_sent(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pull(0, ["a"], (10, 20))
    hand.unknown("a", (30, 40) if is_bad else (15, 40))
    return hand


@case("S4 in an unconfirmed tail")
def failed_in_a_tail(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.failed("b")
    hand.dump(1, ["a"])
    hand.dump(2, ["a", "b"] if is_bad else ["a"], confirm=SIZE)
    hand.elect(1, 1, [1, 2])
    return hand


@case("S6 of bytes")
def hole_in_a_log(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.dump(1, ["a", "b"])
    if is_bad:
        dump = hand.history.entries.pop()
        assert isinstance(dump, ReplicaDump)
        first, second = dump.batches
        moved = (first, replace(second, position=SIZE + 1))
        hand.history.entries.append(replace(dump, batches=moved, end=2 * SIZE + 1))
    return hand


@case("S9 in one pull")
def gap_in_one_pull(is_bad: bool) -> Hand:
    hand = Hand()
    for value in "abc":
        hand.unknown(value)
    hand.pull(0, ["a", "b", "c"])
    if is_bad:
        pull = hand.history.entries.pop()
        assert isinstance(pull, Pull)
        first, _, last = pull.messages
        hand.history.entries.append(replace(pull, messages=(first, last)))
    return hand


@case("S9 backwards")
def reader_goes_back(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.pull(0, ["a"], assignment="one")
    hand.pull(0 if is_bad else 1, [], assignment="one")
    return hand


@case("S11 in one process")
def own_confirm_falls(is_bad: bool) -> Hand:
    hand = Hand()
    hand.probe(2, SIZE)
    hand.probe(2, SIZE, confirm=0, incarnation=1 if is_bad else 2)
    return hand


@case("S11 of a member")
def confirmed_beyond_a_member(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2])
    hand.master(1, SIZE)
    hand.probe(2, 0 if is_bad else SIZE)
    hand.probe(3, 0)
    return hand


@case("S12 of length")
def replica_lacks_what_it_confirms(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.dump(1, ["a", "b"])
    hand.dump(2, ["a"] if is_bad else ["a", "b"], confirm=2 * SIZE, end=2 * SIZE)
    hand.elect(1, 1, [1, 2])
    return hand


@case("S13 of an acknowledgement")
def acknowledged_under_another_epoch(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, epoch=2 if is_bad else 1)
    hand.send("b", 1, epoch=2, is_duplicate=True)
    hand.dump(1, ["a", "b"])
    return hand


@case("S14 of a node")
def node_falls_back(is_bad: bool) -> Hand:
    hand = Hand()
    hand.probe(2, 0, epoch=3)
    hand.probe(2, 0, epoch=2 if is_bad else 3, incarnation=2)
    return hand


@case("S14 of a log")
def epoch_falls_in_a_log(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.dump(1, ["a", "b"])
    dump = hand.history.entries.pop()
    assert isinstance(dump, ReplicaDump)
    first, second = dump.batches
    batches = (replace(first, epoch=2 if is_bad else 1), second)
    hand.history.entries.append(replace(dump, batches=batches))
    return hand


@case("S15 of the set")
def election_adds_a_member(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2], set_epoch=1, reason="first")
    hand.elect(2, 2, [2, 3] if is_bad else [1, 2], set_epoch=2, reason="operator")
    return hand


@case("S16 of the master")
def acknowledged_above_confirm(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2])
    hand.send("a", 0)
    hand.master(1, SIZE, confirm=0 if is_bad else SIZE)
    hand.dump(1, ["a"])
    return hand


@case("S18 of a lost answer")
def unknown_creation_shows_late(is_bad: bool) -> Hand:
    """It may show at any time, but not vanish again."""
    hand = Hand()
    hand.create("x", None, (10, 20), outcome=Outcome.UNKNOWN)
    hand.describe("x", None, (30, 40))
    hand.describe("x", 4, (50, 60))
    hand.describe("x", None if is_bad else 4, (70, 80))
    return hand


@case("S18 of ids")
def two_names_with_one_id(is_bad: bool) -> Hand:
    hand = Hand()
    hand.create("x", 1)
    hand.create("y", 1 if is_bad else 2)
    return hand


@case("S21 of a query")
def query_shows_it_passed_over(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.deliver(0, "a")
    hand.committed(2 if is_bad else 1)
    return hand


@case("S22 between queries")
def answer_falls(is_bad: bool) -> Hand:
    hand = Hand()
    hand.committed(2)
    if not is_bad:
        hand.commit(1, is_reset=True)
    hand.committed(1)
    return hand


@case("S27 of a skip")
def skipped_under_a_lock(is_bad: bool) -> Hand:
    """By members that take their locks themselves, and may be careless with them."""
    hand = Hand()
    hand.lock("m", 1, lease_ms=1)
    for value in "abc":
        hand.unknown(value)
    hand.deliver(0, "a", token=1)
    hand.deliver(1, "b", token=2)
    hand.deliver(2 if is_bad else 1, "c" if is_bad else "b", token=1)
    return hand


@case("S35")
def broadcast_skips(is_bad: bool) -> Hand:
    hand = Hand()
    for value in "abcd":
        hand.unknown(value)
    hand.deliver(0, "a", is_broadcast=True)
    hand.deliver(1, "b", is_broadcast=True)
    if not is_bad:
        hand.deliver(1, "b", is_broadcast=True)  # its file was older
        hand.deliver(2, "c", is_broadcast=True)
    hand.deliver(3, "d", is_broadcast=True)
    return hand


@case("S35 of the start")
def broadcast_begins_late(is_bad: bool) -> Hand:
    hand = Hand()
    for value in "ab":
        hand.unknown(value)
    if not is_bad:
        hand.deliver(0, "a", is_broadcast=True)
    hand.deliver(1, "b", is_broadcast=True)
    return hand


@case("INV-11 of a commit")
def commits_under_an_old_token(is_bad: bool) -> Hand:
    hand = Hand()
    hand.lock("m1", 1, (10, 20), lease_ms=1)
    hand.lock("m2", 2, (30, 40), lease_ms=1)
    hand.commit(0, (50, 60) if is_bad else (35, 60), token=1)
    return hand


@case("INV-11 of two members")
def one_token_for_two(is_bad: bool) -> Hand:
    hand = Hand()
    hand.lock("m1", 1, lease_ms=1)
    hand.lock("m2" if is_bad else "m1", 1, lease_ms=1)
    return hand


@case("S30 of an incarnation")
def incarnation_is_used_again(is_bad: bool) -> Hand:
    hand = Hand()
    hand.decide("replica_registered", replica=2, incarnation=3)
    hand.decide("replica_registered", replica=2, incarnation=3 if is_bad else 4)
    return hand


@case("S30 of a lost disk")
def empty_disk_counts(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2, 3], at=0, set_epoch=1)
    hand.probe(3, 0, 10)
    hand.fault("disk_lost", "b3", 20)
    if not is_bad:
        hand.decide("member_removed", 30, replica=3, set_epoch=2, sync_state_set=[1, 2], index=7)
    hand.decide("replica_registered", 30, replica=3, incarnation=2, index=7)
    return hand


@case("S32 of an index")
def index_means_two_things(is_bad: bool) -> Hand:
    hand = Hand()
    hand.decide("replica_registered", replica=2, incarnation=1, index=5)
    incarnation = 2 if is_bad else 1
    for_other = {"replica": 2, "incarnation": incarnation, "index": 5, "controller": "c2"}
    hand.decide("replica_registered", **for_other)
    if is_bad:
        hand.history.entries.pop()
        hand.decide("epoch_opened", index=5, controller="c2", master_epoch=1)
    return hand


@case("S32 of files")
def files_give_another_state(is_bad: bool) -> Hand:
    hand = Hand()
    hand.controller("c1", 9, "aa", "bb" if is_bad else "aa")
    return hand


@case("L1 of acknowledgements")
def first_acknowledgement_is_late(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1], at=0)
    hand.phase("heal", SECOND)
    hand.master(1, 0, SECOND)
    hand.send("a", 0, (SECOND, (5 if is_bad else 2) * SECOND))
    hand.history.world = {"min_in_sync_replicas": 1}
    hand.fault("pause", "b1", 0, SECOND)
    return hand


@case("L1 of acknowledgements below min")
def first_acknowledgement_waits_for_a_member(is_bad: bool) -> Hand:
    """A replica that lost its disk has to fetch the log first: that may take as long as joining."""
    hand = Hand()
    hand.elect(1, 1, [1], at=0)
    hand.phase("heal", SECOND)
    hand.probe(2, 0, SECOND)
    hand.master(1, 0, SECOND)
    hand.send("a", 0, (SECOND, (15 if is_bad else 8) * SECOND))
    hand.change([1, 2], 7 * SECOND)
    hand.history.world = {"min_in_sync_replicas": 2}
    hand.fault("pause", "b1", 0, SECOND)
    return hand


@case("L1 of the set")
def set_stays_small(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.phase("heal", SECOND)
    hand.probe(2, 0, SECOND)
    hand.probe(3, 0, SECOND)
    hand.master(1, 0, SECOND)
    hand.change([1, 2, 3], (30 if is_bad else 5) * SECOND)
    hand.probe(3, 0, 31 * SECOND)
    return hand


@case("L1 of the drain")
def drain_lacks_a_message(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0)
    hand.send("b", 1)
    hand.elect(1, 1, [1], at=30)
    hand.master(1, 0, 40)
    hand.phase("heal", SECOND)
    hand.phase("drain", 2 * SECOND)
    hand.pull(0, ["a"] if is_bad else ["a", "b"], (2 * SECOND, 2 * SECOND + 1))
    hand.history.world = {"min_in_sync_replicas": 1}
    return hand


@case("S8 with a burst")
def burst_out_of_order(is_bad: bool) -> Hand:
    hand = Hand()
    for place, value in enumerate("abcd"):
        hand.send(value, place, (10 + place, 100), session="s", key="k")
    if is_bad:
        first, second, *rest = hand.history.entries
        assert isinstance(first, Send)
        assert isinstance(second, Send)
        hand.history.entries[:] = [replace(first, offset=1), replace(second, offset=0), *rest]
    return hand


@case("S16 after a lost disk")
def member_with_a_new_disk_owes_what_it_did_not_before(is_bad: bool) -> Hand:
    """It lacks what it had until it is back in the set; from then on it is held to everything."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.send("a", 0, (20, 30))
    hand.fault("disk_lost", "b2", 40, 41)
    hand.probe(2, 0, 45, incarnation=2)
    hand.decide("replica_registered", 50, replica=2, incarnation=2)
    hand.change([1], 51)
    hand.change([1, 2], 60)
    hand.send("b", 1, (70, 80))
    end = SIZE if is_bad else 2 * SIZE
    hand.probe(2, end, 90, incarnation=2)
    hand.dump(1, ["a", "b"])
    hand.history.world = {"min_in_sync_replicas": 1}
    return hand


@case("L6 beside a flapping link")
def elections_long_after_a_flap(is_bad: bool) -> Hand:
    """While a link flaps there may be any number of elections, and later no more than elsewhere."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, reason="first")
    hand.fault("flap", "b1>b2", SECOND, 2 * SECOND)
    for epoch in (2, 3, 4, 5):
        hand.elect(epoch % 2 + 1, epoch, [1, 2], at=SECOND + epoch, reason="dead")
    for epoch in (6, 7, 8) if is_bad else (6, 7):
        hand.elect(epoch % 2 + 1, epoch, [1, 2], at=(10 + epoch) * SECOND, reason="dead")
    return hand


@case("L2 until clients are told to end")
def silence_after_the_end_of_work(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, (SECOND, SECOND + 9))
    hand.send("b", 1, (10 * SECOND, 10 * SECOND + 9))
    hand.unknown("c", (10 * SECOND, 14 * SECOND))
    if not is_bad:
        hand.phase("over", 11 * SECOND)
    hand.phase("drain", 15 * SECOND)
    return hand


@case("L4 of a client that was hit")
def waits_for_ever_long_after_a_pause(is_bad: bool) -> Hand:
    """What was under way while it slept may be late, what it asks afterwards may not."""
    hand = Hand()
    hand.fault("pause", "c", SECOND, 2 * SECOND)
    hand.unknown("a", ((3 if is_bad else 1) * SECOND, 60 * SECOND))
    return hand
