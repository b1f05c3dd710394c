"""What excuses a checker, and what is none: damage, short logs, elections, early answers.

As in cases.py: each maker is called twice, and what stands behind `is_bad` is all that differs.
"""

from tests.support.chaos.hand import SECOND, SIZE, Hand
from tests.unit.chaos.checkers.more_cases import CASES, case

from paceline_chaos.history.model import ReplicaDump, Send, StoredBatch

__all__ = ["CASES"]


@case("R23")
def damage_of_nobody(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.dump(1, ["a"])
    if not is_bad:
        hand.fault("disk_flip", "b2", 10)
    hand.dump(2, ["a"], damage="the segment at 300 follows position 100")
    return hand


@case("R23 on a disk that replaced the flipped one")
def damage_after_the_flip_is_gone(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.dump(1, ["a"])
    hand.fault("disk_flip", "b2", 20)
    if is_bad:
        hand.fault("disk_lost", "b2", 30)
    hand.probe(2, SIZE, 40)
    hand.dump(2, ["a"], damage="at 100: another batch")
    return hand


@case("R23 at a torn end")
def torn_end(is_bad: bool) -> Hand:
    """Who came back from a power loss has cut it."""
    hand = Hand()
    hand.unknown("a")
    hand.fault("power", "b2", 100)
    if is_bad:
        hand.probe(2, SIZE, 200, incarnation=2)
    hand.dump(1, ["a"])
    hand.dump(2, ["a"], damage="at 100: payload CRC differs")
    return hand


@case("R23 below confirm")
def torn_below_confirm(is_bad: bool) -> Hand:
    hand = Hand(durability="memory")
    hand.unknown("a")
    hand.unknown("b")
    hand.fault("power", "b2", 100)
    hand.dump(1, ["a", "b"], confirm=0)
    confirm = 2 * SIZE if is_bad else SIZE
    hand.dump(2, ["a"], confirm=confirm, damage="at 100: payload CRC differs")
    return hand


@case("INV-2 of a log that is too short")
def confirm_beyond_the_damage(is_bad: bool) -> Hand:
    """A fault may cost what was confirmed; a damaged log by itself may not."""
    hand = Hand()
    hand.unknown("a")
    hand.fault("disk_stall" if is_bad else "disk_flip", "b1", 10)
    hand.dump(1, ["a"], confirm=2 * SIZE)
    return hand


@case("S16 in the end")
def last_member_lacks_what_was_acknowledged(is_bad: bool) -> Hand:
    """The master has it, and so had whoever is in the set when all is over."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.probe(2, 0, 5)
    hand.send("a", 0)
    hand.dump(1, ["a"])
    hand.dump(2, [] if is_bad else ["a"], is_known=False)
    return hand


@case("S28 of a log")
def log_begins_late(is_bad: bool) -> Hand:
    """Nothing is ever deleted yet, so no log lacks its beginning."""
    hand = Hand()
    hand.unknown("a")
    hand.dump(1, ["a"])
    hand.probe(2, SIZE, 50, start=1 if is_bad else 0)
    return hand


@case("S28 of a confirmed retention record")
def log_begins_where_it_may(is_bad: bool) -> Hand:
    """R26: what a record gives up is deleted once the record is confirmed, and no further."""
    hand = Hand()
    dump_cut(hand, kept_from=2, log_start=2 * SIZE, is_confirmed=not is_bad)
    return hand


@case("S28 of a log that begins above the record")
def log_begins_above_what_was_given_up(is_bad: bool) -> Hand:
    hand = Hand()
    dump_cut(hand, kept_from=2, log_start=(1 if is_bad else 2) * SIZE)
    return hand


@case("S1 of what was given up")
def deleted_is_not_lost(is_bad: bool) -> Hand:
    """Acknowledged in a batch below a confirmed record; what lies above it must be there."""
    hand = Hand()
    hand.send("0", 0)
    hand.send("2", 2)
    if is_bad:
        hand.send("x", 5)
    dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


@case("S25 of a loss where messages are deleted")
def never_delivered_and_not_deleted(is_bad: bool) -> Hand:
    """What was due after the first message that is kept was stored is in what is kept."""
    hand = Hand()
    hand.send("2", 2, at=(0, 100))
    hand.delayed("a" if is_bad else "3", 500, at=(0, 1000))
    hand.send("4", 4, at=(4 * SECOND, 4 * SECOND + 1))
    dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


@case("S25 of what may be deleted")
def delivered_before_what_is_kept(is_bad: bool) -> Hand:
    """It was due before anything that is kept is known to have been stored."""
    hand = Hand()
    hand.delayed("a", 500, at=(0, 1000))
    hand.delayed("3", 2000, at=(0, 1000))
    hand.send("2", 2, at=(0, 100) if is_bad else (SECOND, SECOND + 1))
    hand.send("4", 4, at=(6 * SECOND, 6 * SECOND + 1))
    dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


def dump_cut(hand: Hand, *, kept_from: int, log_start: int, is_confirmed: bool = True) -> None:
    """The log of five messages of which those before `kept_from` are gone, and a record."""
    values = [str(number) for number in range(5)]
    sent = {entry.value for entry in hand.history.entries if isinstance(entry, Send)}
    for value in values:
        if value not in sent:
            hand.unknown(value)
    hand.dump(1, values)
    dump = hand.history.entries.pop()
    assert isinstance(dump, ReplicaDump)
    record = StoredBatch(
        position=dump.end, size=SIZE, epoch=1, kind="RETENTION", crc=1, log_start=log_start
    )
    end = dump.end + SIZE
    hand.add(
        ReplicaDump,
        node=dump.node,
        group=dump.group,
        replica=dump.replica,
        start=kept_from * SIZE,
        confirm=end if is_confirmed else dump.end,
        end=end,
        batches=(*dump.batches[kept_from:], record),
    )


@case("S15 of an unclean election")
def unclean_without_an_order(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, set_epoch=1)
    hand.order(3, (50, 300), **{"is_unclean": False} if is_bad else {})
    hand.elect(3, 2, [3], at=100, set_epoch=2, is_unclean=True, reason="unclean")
    return hand


@case("S15 of a second unclean election")
def one_order_is_for_one_election(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, set_epoch=1)
    hand.order(3, (50, 300))
    hand.elect(3, 2, [3], at=100, set_epoch=2, is_unclean=True, reason="unclean")
    if is_bad:
        hand.elect(2, 3, [2], at=200, set_epoch=3, is_unclean=True, reason="unclean")
    return hand


@case("S15 of an unclean election by the setting")
def unclean_by_a_setting_that_was_put(is_bad: bool) -> Hand:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, set_epoch=1)
    wanted = {"enable_elect_unclean_master": True}
    hand.decide("settings_set", 50, settings=wanted)
    if is_bad:
        hand.decide("settings_set", 60, settings={"enable_elect_unclean_master": False})
    hand.elect(3, 2, [3], at=100, set_epoch=2, is_unclean=True, reason="unclean")
    return hand


@case("S13 of what was given up")
def given_up_and_stored_by_an_older_master(is_bad: bool) -> Hand:
    """The copy that leads now has the message as its first master stored it."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, set_epoch=1)
    hand.elect(1, 2, [1, 2], at=100, set_epoch=2, reason="transfer")
    hand.send("a", 0, (150, 160), epoch=2)
    if not is_bad:
        hand.order(3, (200, 300))
        hand.elect(3, 3, [3], at=250, set_epoch=3, is_unclean=True, reason="unclean")
        hand.dump(3, ["a"])
    hand.dump(1, ["a"])
    return hand


@case("L8")
def damaged_in_the_end(is_bad: bool) -> Hand:
    hand = Hand(scrub_ms=4_000)
    hand.unknown("a")
    hand.fault("disk_flip", "b2", 10)
    hand.phase("heal", 1_000_000)
    hand.phase("end", 40_000_000)
    hand.dump(1, ["a"])
    hand.dump(2, ["a"], damage="at 100: payload CRC differs" if is_bad else None)
    return hand


@case("R37")
def answered_early(is_bad: bool) -> Hand:
    hand = Hand(all_ack_in_sync_state_set=is_bad)
    hand.send("a", 0, is_confirmed=False)
    return hand


@case("R37 before the switch")
def answered_before_the_switch(is_bad: bool) -> Hand:
    hand = Hand()
    hand.decide("settings_set", 100, settings={"all_ack_in_sync_state_set": False})
    hand.send("a", 0, (10, 20) if is_bad else (110, 120), is_confirmed=False)
    return hand
