"""Messages that came through a gateway, which names no queue; as in cases.py."""

from tests.support.chaos.hand import Q2, SIZE, Hand, Q, crc_of
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.left_behind_cases import CASES as CASES
from tests.unit.chaos.checkers.retry_cases import RetryLog
from tests.unit.chaos.checkers.transaction_cases import GIVEN_UP, TransactingHand

from paceline_chaos.history.model import Outcome, Queue, StoredBatch


def stored_in(hand: Hand, *rows: tuple[Queue, int, str]) -> Hand:
    """A log with these messages."""
    hand.log(
        1,
        [
            StoredBatch(
                position=SIZE * place,
                size=SIZE,
                epoch=1,
                kind="NORMAL",
                crc=place,
                queue=queue,
                base_offset=offset,
                messages=((value, crc_of(value)),),
            )
            for place, (queue, offset, value) in enumerate(rows)
        ],
    )
    return hand


@case("S1 without a queue")
def acknowledged_by_a_gateway_and_nowhere(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", -1, queue=None)
    hand.unknown("b")
    hand.dump(1, ["b" if is_bad else "a"])
    return hand


@case("S1 at an offset without a queue")
def acknowledged_by_a_gateway_at_another_offset(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, queue=None)
    hand.send("b", 2 if is_bad else 1, queue=None)
    hand.dump(1, ["a", "b"])
    return hand


@case("S7 without a queue")
def stored_before_what_was_acknowledged_to_a_gateway(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", -1, (10, 20), queue=None)
    hand.send("b", -1, (30, 40), queue=None)
    hand.dump(1, ["b", "a"] if is_bad else ["a", "b"])
    return hand


@case("S8 of a message group")
def message_group_in_two_queues(is_bad: bool) -> Hand:
    hand = Hand()
    for place, value in enumerate("ab"):
        hand.send(value, -1, (10 * place, 10 * place + 5), key="k", session="s", queue=None)
    return stored_in(hand, (Q, 0, "a"), (Q2, 0, "b") if is_bad else (Q, 1, "b"))


@case("S24 of a half that was repeated over an unclean epoch")
def repeated_half_is_given_up_once(is_bad: bool) -> Hand:
    """What producers had stored is not known there any more: theirs are two halves."""
    hand = TransactingHand()
    hand.elect(1, 1, [1, 2], at=0, set_epoch=1)
    if not is_bad:
        hand.order(2, (90, 110))
        hand.elect(2, 2, [2], at=100, set_epoch=2, is_unclean=True, reason="unclean")
    hand.begin("a", (10, 400), outcome=Outcome.UNKNOWN, error="DEADLINE", group=None)
    hand.end("a", (500, 510))
    log = RetryLog()
    log.put("a")
    log.put("a", GIVEN_UP)
    log.dump(hand)
    return hand
