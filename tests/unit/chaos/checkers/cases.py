"""For each property the least history that keeps it and, with one thing changed, breaks it.

Each maker is called twice; what stands behind `is_bad` is all that differs.
"""

from collections.abc import Callable
from dataclasses import replace

from tests.support.chaos.hand import SECOND, SIZE, Hand

from paceline_chaos.history.model import History, Outcome, ReplicaDump

CASES: dict[str, Callable[[bool], Hand]] = {}


def case(prop: str) -> Callable[[Callable[[bool], Hand]], Callable[[bool], Hand]]:
    """Register the maker of a property."""

    def register(make: Callable[[bool], Hand]) -> Callable[[bool], Hand]:
        CASES[prop] = make
        return make

    return register


def history_of(prop: str, *, is_bad: bool) -> History:
    return CASES[prop](is_bad).history


# -- messages -------------------------------------------------------------------------------------


@case("S1")
def lost(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0)
    hand.send("b", 1)
    hand.dump(1, ["a"] if is_bad else ["a", "b"])
    return hand


@case("S2")
def two_messages_at_one_offset(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.pull(0, ["a"])
    hand.pull(0, ["b" if is_bad else "a"])
    return hand


@case("S3")
def changed_body(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, crc=7 if is_bad else sum(b"a"))
    hand.pull(0, ["a"])
    return hand


@case("S4")
def failed_and_stored(is_bad: bool) -> Hand:
    hand = Hand()
    if is_bad:
        hand.failed("a")
    else:
        hand.unknown("a")
        hand.failed("b")
    hand.pull(0, ["a"])
    return hand


@case("S5")
def stored_twice(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.dump(1, ["a", "a" if is_bad else "b"])
    return hand


@case("S6")
def hole_in_a_queue(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.dump(1, ["a", "b"])
    if is_bad:
        dump = hand.history.entries.pop()
        assert isinstance(dump, ReplicaDump)
        first, second = dump.batches
        batches = (first, replace(second, base_offset=2))
        hand.history.entries.append(replace(dump, batches=batches))
    return hand


# -- order ----------------------------------------------------------------------------------------


@case("S7")
def later_message_at_lower_offset(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 1, (10, 20))
    hand.send("b", 0, (30, 40) if is_bad else (15, 40))
    hand.send("c", 2, (50, 60))
    return hand


@case("S8")
def session_out_of_order(is_bad: bool) -> Hand:
    hand = Hand()
    first, second = (1, 0) if is_bad else (0, 1)
    hand.send("a", first, (10, 40), session="s", key="k")
    hand.send("b", second, (20, 30), session="s", key="k")
    hand.send("x", 7, (25, 30), session="s", key="other")
    return hand


@case("S9")
def skipped_while_reading(is_bad: bool) -> Hand:
    hand = Hand()
    for value in "abc":
        hand.unknown(value)
    hand.pull(0, ["a"], assignment="one")
    if is_bad:
        hand.pull(2, ["c"], assignment="one")
    else:
        hand.pull(1, ["b", "c"], assignment="one")
        hand.pull(1, [], assignment="another")
    return hand


# -- what readers see -----------------------------------------------------------------------------


@case("S10")
def read_and_gone(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.pull(0, ["a"])
    hand.dump(1, [] if is_bad else ["a"])
    return hand


@case("S19")
def end_before_acknowledged(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0)
    hand.range(0, 0 if is_bad else 1)
    hand.range(0, 0, maybe_stale=True)
    return hand


@case("S20")
def master_forgets_what_it_acknowledged(is_bad: bool) -> Hand:
    hand = Hand()
    hand.master(1, 0)
    hand.send("a", 0)
    hand.pull(0, [], node="b1", end=0 if is_bad else 1)
    hand.pull(0, [], node="b2", end=0)
    hand.master(1, SIZE)
    return hand


@case("INV-8")
def served_above_confirm(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.probe(2, 0)
    hand.pull(0, ["a"], node="b2")
    hand.probe(2, 0, role="fenced")  # damage was found: until it is repaired, what is whole counts
    hand.probe(2, SIZE, confirm=0 if is_bad else SIZE)
    hand.dump(1, ["a"])
    return hand


# -- replicas -------------------------------------------------------------------------------------


@case("S11")
def confirm_falls_over_masters(is_bad: bool) -> Hand:
    hand = Hand()
    hand.master(1, 2 * SIZE, epoch=1)
    hand.master(2, SIZE if is_bad else 2 * SIZE, epoch=2)
    hand.master(1, 2 * SIZE, epoch=1)
    return hand


@case("S12")
def replicas_differ(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.dump(1, ["a"])
    hand.dump(2, ["a"])
    if is_bad:
        dump = hand.history.entries.pop()
        assert isinstance(dump, ReplicaDump)
        batches = (replace(dump.batches[0], crc=1),)
        hand.history.entries.append(replace(dump, batches=batches))
    return hand


@case("S16")
def acknowledged_without_a_member(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2])
    hand.send("a", 0)
    hand.probe(2, SIZE, flushed=0 if is_bad else SIZE, confirm=0)
    hand.dump(1, ["a"])
    return hand


@case("S17")
def shrunk_before_the_commit(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2, 3], at=0)
    hand.send("a", 0, (20, 30))
    hand.probe(3, 0, 50)
    hand.probe(1, SIZE, 51)
    hand.probe(2, SIZE, 51)
    hand.change([1, 2], 60 if is_bad else 15)
    hand.dump(1, ["a"])
    if not is_bad:  # rulings come in order of index
        entries = hand.history.entries
        entries.sort(key=lambda entry: getattr(entry, "at_us", 40))
    return hand


@case("INV-2")
def confirmed_and_not_flushed(is_bad: bool) -> Hand:
    hand = Hand()
    hand.probe(1, SIZE, flushed=0, confirm=SIZE if is_bad else 0)
    return hand


@case("INV-12")
def later_master_without_the_record(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0)
    hand.master(2, 0 if is_bad else SIZE, epoch=2, confirm=0)
    hand.dump(1, ["a"])
    return hand


# -- masters and sets -----------------------------------------------------------------------------


@case("S13")
def two_masters_in_one_epoch(is_bad: bool) -> Hand:
    hand = Hand()
    hand.master(1, 0, epoch=1)
    hand.master(2, 0, epoch=1 if is_bad else 2)
    return hand


@case("R1")
def master_again_after_a_restart(is_bad: bool) -> Hand:
    hand = Hand()
    hand.master(1, 0, epoch=1)
    hand.master(1, 0, epoch=1 if is_bad else 2, incarnation=2)
    return hand


@case("S14")
def old_master_acknowledges(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, (10, 20), epoch=2)
    hand.send("b", 1, (30, 40) if is_bad else (15, 40), epoch=1)
    hand.send("c", 2, (50, 60), epoch=2)
    return hand


@case("S15")
def elected_from_outside(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2], reason="first", set_epoch=1)
    hand.elect(3 if is_bad else 2, 2, [1, 2], reason="operator", set_epoch=2)
    return hand


@case("R8")
def set_below_the_minimum(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2, 3], set_epoch=1)
    hand.change([1] if is_bad else [1, 2])
    return hand


@case("S30")
def joined_too_early(is_bad: bool) -> Hand:
    hand = Hand()
    hand.decide("replica_registered", replica=3, incarnation=1)
    hand.elect(1, 1, [1, 2], set_epoch=1)
    hand.master(1, SIZE, 50)
    hand.change([1, 2, 3], 60)
    hand.probe(3, SIZE, 70, flushed=0 if is_bad else SIZE, confirm=0)
    if is_bad:  # it is a member from here on only: what it owes from before is S30's
        hand.history.world = {**hand.history.world, "min_in_sync_replicas": 1}
    return hand


@case("S30 of its own probe")
def joined_before_another_took_its_node(is_bad: bool) -> Hand:
    """Later the node has lost its disk and is another replica: that says nothing of the first."""
    hand = Hand()
    for incarnation in (1, 2):
        hand.decide("replica_registered", replica=9, incarnation=incarnation)
    hand.decide("replica_registered", replica=3, incarnation=1)
    hand.elect(1, 1, [1, 2], set_epoch=1)
    hand.probe(3, SIZE, 40, confirm=0)
    hand.master(1, SIZE, 50)
    hand.change([1, 2, 3], 60)
    hand.probe(3 if is_bad else 4, 0, 70, node="b3")
    if is_bad:
        hand.history.world = {**hand.history.world, "min_in_sync_replicas": 1}
    return hand


# -- controllers ----------------------------------------------------------------------------------


@case("S18")
def topic_that_was_there_is_gone(is_bad: bool) -> Hand:
    hand = Hand()
    hand.create("x", 1, (10, 20))
    hand.describe("x", None, (30, 40) if is_bad else (15, 40))
    return hand


@case("S32")
def controllers_differ(is_bad: bool) -> Hand:
    hand = Hand()
    hand.controller("c1", 9, "aa", "aa")
    hand.controller("c2", 9, "bb" if is_bad else "aa")
    return hand


# -- consumer groups ------------------------------------------------------------------------------


@case("S21")
def committed_unprocessed(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.deliver(1, "b")
    hand.deliver(0, "a", outcome=Outcome.UNKNOWN)
    if not is_bad:
        hand.deliver(0, "a")
    hand.commit(2)
    return hand


@case("S22")
def committed_offset_falls(is_bad: bool) -> Hand:
    hand = Hand()
    hand.commit(5)
    hand.committed(4 if is_bad else 5)
    hand.commit(3, is_reset=True)
    hand.committed(3)
    return hand


@case("S26")
def two_holders(is_bad: bool) -> Hand:
    hand = Hand()
    hand.lock("m1", 1, (10, 20))
    if not is_bad:
        hand.unlock("m1", 1, (30, 40))
    hand.lock("m2", 2, (35, 50))
    return hand


@case("S26 of the work")
def begun_under_an_old_token(is_bad: bool) -> Hand:
    """A member of the library's ordered consumer did not notice that its lease was over."""
    hand = Hand()
    for offset, value in enumerate("abc"):
        hand.unknown(value, (2 * offset, 2 * offset + 1))
    hand.deliver(0, "a", (10, 20), token=1)
    hand.deliver(0, "a", (30, 40), token=2, member="m2")
    hand.deliver(1, "b", (50, 60), token=1 if is_bad else 3)
    return hand


@case("S27")
def next_begun_before_the_last_ended(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a", (1, 2))
    hand.unknown("b", (3, 4))
    hand.deliver(0, "a", (10, 30), token=1)
    hand.deliver(1, "b", (20, 40) if is_bad else (31, 40), token=1)
    return hand


@case("INV-11")
def token_falls(is_bad: bool) -> Hand:
    hand = Hand()
    hand.lock("m1", 2, (10, 20), lease_ms=1)
    hand.lock("m2", 1 if is_bad else 3, (30, 40), lease_ms=1)
    return hand


@case("S25")
def read_before_its_time(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 500, at=(SECOND, SECOND + 1000))
    early = SECOND + 500_000 - 3_000
    hand.pull(0, ["a"], at=(SECOND, early if is_bad else early + 1_000))
    hand.dump(1, ["a"])
    return hand


@case("S28")
def start_falls(is_bad: bool) -> Hand:
    hand = Hand()
    hand.range(4, 9)
    hand.range(3 if is_bad else 4, 9)
    return hand


# -- liveness -------------------------------------------------------------------------------------


@case("L1")
def nothing_works_after_healing(is_bad: bool) -> Hand:
    return _healed(is_bad=is_bad, broken=())


@case("L3")
def nothing_works_without_a_minority(is_bad: bool) -> Hand:
    return _healed(is_bad=is_bad, broken=("b3",))


def _healed(*, is_bad: bool, broken: tuple[str, ...]) -> Hand:
    """Groups of three; the master opens in time or too late."""
    hand = Hand()
    hand.elect(1, 1, [1, 2, 3], at=0)
    hand.phase("heal", SECOND, *broken)
    for replica in (2, 3):
        hand.probe(replica, 0, SECOND)
    for at_s in (2, 5, 8):
        hand.master(1, 0, at_s * SECOND, is_open=not is_bad)
    hand.master(1, 0, 12 * SECOND)
    return hand


@case("L2")
def silence_without_a_cause(is_bad: bool) -> Hand:
    hand = Hand()
    hand.fault("pause", "b1", 1, 2)
    hand.send("a", 0, (20 * SECOND, 20 * SECOND + 9))
    hand.send("b", 1, (30 * SECOND, 33 * SECOND))
    if not is_bad:
        hand.send("c", 2, (31 * SECOND, 31 * SECOND + 500_000), client="d")
    return hand


@case("L4")
def waits_for_ever(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a", (0, (60 if is_bad else 30) * SECOND))
    return hand


@case("L5")
def group_stands_still(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0)
    hand.send("b", 1)
    hand.deliver(0, "a")
    hand.phase("heal", SECOND)
    if not is_bad:
        hand.deliver(1, "b", (10 * SECOND, 10 * SECOND + 9))
    hand.dump(1, ["a", "b"])
    hand.phase("end", 30 * SECOND)
    return hand


@case("L9")
def processed_messages_stay_uncommitted(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0)
    hand.send("b", 1)
    hand.deliver(0, "a", (SECOND, SECOND + 9))
    hand.deliver(1, "b", (2 * SECOND, 2 * SECOND + 9))
    hand.committed(1, (6 * SECOND, 6 * SECOND + 9))  # "b" may be under way for so long
    hand.committed(1 if is_bad else 2, (8 * SECOND, 8 * SECOND + 9))
    hand.dump(1, ["a", "b"])
    hand.phase("end", 30 * SECOND)
    return hand


@case("L6")
def elections_without_faults(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, reason="first")
    if not is_bad:
        hand.fault("kill", "b1", 5)
    hand.elect(2, 2, [1, 2], at=20, reason="dead")
    return hand
