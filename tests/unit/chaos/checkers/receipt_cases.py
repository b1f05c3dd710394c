"""Messages given by receipt; as in cases.py."""

from tests.support.chaos.hand import SECOND, SIZE, Hand, crc_of
from tests.unit.chaos.checkers.excuse_cases import dump_cut
from tests.unit.chaos.checkers.more_cases import case
from tests.unit.chaos.checkers.retry_cases import CASES, DEAD_Q, RetryLog

from paceline_chaos.history.model import Outcome, Queue, Seen

__all__ = ["CASES"]


@case("S23")
def given_to_two_at_one_time(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    second = 10 if is_bad else 11
    hand.pop("m2", (9 * SECOND, second * SECOND), 10_000)
    return hand


@case("S23 of a message that was given back")
def given_again_before_it_was_given_back(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    back = 6 if is_bad else 3
    hand.ack("m1", (back * SECOND, (back + 1) * SECOND), is_back=True)
    hand.pop("m2", (4 * SECOND, 5 * SECOND), 10_000)
    return hand


@case("S23 of an acknowledgement")
def given_after_it_was_acknowledged(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    hand.ack("m1", (13 * SECOND, 15 * SECOND))
    asked = 16 if is_bad else 14
    hand.pop("m2", (asked * SECOND, 20 * SECOND), 10_000)
    return hand


@case("S23 of a message that was forgotten")
def passed_over(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    if not is_bad:
        hand.ack("m1", (3 * SECOND, 4 * SECOND), outcome=Outcome.UNKNOWN)
    hand.committed(1, (5 * SECOND, 6 * SECOND))
    return hand


@case("S23 of a commit without receipts")
def committed_while_invisible(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    at = (9 * SECOND, 10 * SECOND) if is_bad else (10 * SECOND, 12 * SECOND)
    hand.commit(1, at)
    hand.committed(1, (13 * SECOND, 14 * SECOND))
    return hand


@case("S23 of what an acting master took")
def passed_over_by_a_provisional_commit(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    hand.commit(0 if is_bad else 1, (3 * SECOND, 4 * SECOND), is_provisional=True)
    hand.committed(1, (5 * SECOND, 6 * SECOND))
    return hand


@case("S23 of a commit over what retention has taken")
def committed_over_what_is_deleted(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    hand.commit(1, (3 * SECOND, 4 * SECOND))
    hand.committed(1, (5 * SECOND, 6 * SECOND))
    if not is_bad:
        dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


@case("S23 of what was committed without receipts")
def given_after_the_commit(is_bad: bool) -> Hand:
    hand = Hand()
    hand.commit(1, (SECOND, 3 * SECOND))
    asked = 4 if is_bad else 2
    hand.pop("m1", (asked * SECOND, 5 * SECOND), 10_000)
    return hand


@case("S23 of a group that receives in order")
def given_while_another_is_out(is_bad: bool) -> Hand:
    hand = Hand()
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000, is_ordered=True)
    if not is_bad:
        hand.ack("m1", (3 * SECOND, 4 * SECOND), outcome=Outcome.UNKNOWN)
    second = Seen(1, "b", crc_of("b"))
    hand.pop("m2", (5 * SECOND, 6 * SECOND), 10_000, is_ordered=True, message=second)
    return hand


@case("S29 of a receiver's dead letter")
def acknowledged_and_a_dead_letter(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    hand.unknown("a")
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    hand.ack("m1", (3 * SECOND, 4 * SECOND), outcome=Outcome.OK if is_bad else Outcome.FAIL)
    log.put("a", DEAD_Q, cause="DEAD", source=log.put("a"))
    log.dump(hand)
    return hand


@case("S29 of two dead letters of a receiver's message")
def two_dead_letters_of_one_message(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    hand.unknown("a")
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    source = log.put("a")
    log.put("a", DEAD_Q, cause="DEAD", source=source)
    other = DEAD_Q if is_bad else Queue("%DLQ%H", "g", 0)  # of another group: its own
    log.put("a", other, cause="DEAD", source=source)
    log.dump(hand)
    return hand


@case("S23 of another group's dead letter")
def passed_over_for_another_groups_dead_letter(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    hand.unknown("a")
    hand.pop("m1", (SECOND, 2 * SECOND), 10_000)
    letters = Queue("%DLQ%H", "g", 0) if is_bad else DEAD_Q
    log.put("a", letters, cause="DEAD", source=log.put("a"))
    hand.committed(1, (20 * SECOND, 21 * SECOND))
    log.dump(hand)
    return hand
