"""Cases of what users do over some time: transactions, receipts, consumers, locks (S31, L13)."""

from typing import Any

from tests.support.chaos.hand import SECOND, Hand
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.rights_cases import CASES as CASES
from tests.unit.chaos.checkers.rights_cases import HERE, applied, entry_of
from tests.unit.chaos.checkers.transaction_cases import TransactingHand

from paceline_chaos.history.model import CheckTransaction, Lock, Outcome, Phase, Queue

_PUB, _SUB = entry_of("Topic:t", "Pub"), entry_of("Topic:t", "Sub")
_OF_GROUP = entry_of("Group:G", "Sub")
_ANN: dict[str, Any] = {"access_key": "k-ann", "source": HERE}
_UNKNOWN: dict[str, Any] = {"outcome": Outcome.UNKNOWN, "error": "OUTCOME_UNKNOWN"}


@case("S31 of the end of a transaction")
def ended_without_the_right(is_bad: bool) -> Hand:
    hand = TransactingHand()
    applied(hand, 5, _PUB)
    hand.begin("a", (10, 12), **_ANN)
    applied(hand, 15 if is_bad else 25, version=2)
    hand.end("a", (20, 30), **_ANN)
    return hand


@case("S31 of a commit that a check brought about")
def committed_by_who_may_not(is_bad: bool) -> Hand:
    hand = TransactingHand()
    applied(hand, 5, *([] if is_bad else [_PUB]))
    hand.begin("a", (10, 12))
    outcome = _UNKNOWN if is_bad else {"outcome": Outcome.OK}
    hand.end("a", (20, 30), **outcome, **_ANN)
    hand.dump(1, ["a"])
    return hand


@case("S31 of an acknowledgement by receipt")
def acknowledged_without_the_right(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, (1, 2))
    hand.pop("m", (10, 12), invisible_ms=10_000)
    applied(hand, 15, *([] if is_bad else [_OF_GROUP]))
    hand.ack("m", (20, 30), **_ANN)
    return hand


@case("S31 of a message of later than the right")
def given_what_was_sent_afterwards(is_bad: bool) -> Hand:
    hand = Hand()
    applied(hand, 5, _SUB, _OF_GROUP)
    if not is_bad:
        hand.send("a", 0, (10, 12))
    applied(hand, 20, version=2)
    if is_bad:
        hand.send("a", 0, (30, 32))
    hand.deliver(0, "a", (40, 50), **_ANN)
    return hand


@case("S31 of a check-back")
def asked_about_halves_of_others(is_bad: bool) -> Hand:
    hand = TransactingHand()
    applied(hand, 5, entry_of("Group:others" if is_bad else "Group:payers", "Sub"))
    hand.begin("a", (10, 12), producer_group="payers")
    hand.add(
        CheckTransaction,
        client="c",
        asked_us=20,
        answered_us=20,
        outcome=Outcome.OK,
        value="a",
        **_ANN,
    )
    return hand


@case("S31 of a namespace")
def sent_to_another_namespace(is_bad: bool) -> Hand:
    hand = Hand()
    topic = "shops%t" if is_bad else "shop%t"
    applied(hand, 5, entry_of("Namespace:shop", "Pub"))
    hand.send("a", 0, (20, 30), topic=topic, queue=Queue(topic, "g", 0), **_ANN)
    return hand


@case("S31 of a denial that is stronger than a namespace")
def sent_although_a_type_denies(is_bad: bool) -> Hand:
    hand = Hand()
    topic = "shop%t"
    denied = entry_of("Topic:s*" if is_bad else "*", "Pub", decision="Deny")
    applied(hand, 5, entry_of("Namespace:shop", "Pub"), denied)
    hand.send("a", 0, (20, 30), topic=topic, queue=Queue(topic, "g", 0), **_ANN)
    return hand


@case("L13 of a lock")
def lock_that_does_not_end(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, (1, 2))
    hand.lock("m", 1, (6 * SECOND, 6 * SECOND + 10), lease_ms=1_000)
    asked = (9 if is_bad else 7) * SECOND
    hand.add(
        Lock,
        client="c2",
        asked_us=asked,
        answered_us=asked + 10,
        outcome=Outcome.FAIL,
        error="LOCK_HELD",
        consumer_group="G",
        member="m2",
        queue=Queue("t", "g", 0),
        lease_ms=1_000,
    )
    hand.add(Phase, at_us=20 * SECOND, name="over")
    return hand


@case("L13 of a half")
def half_that_nobody_is_asked_about(is_bad: bool) -> Hand:
    """Its end was refused; later its group's producers may be asked again, and are at work."""
    hand = TransactingHand()
    applied(hand, 5, _PUB, _OF_PAYERS)
    hand.send("z", 0, (6, 7))
    _begun(hand, "a", SECOND)
    applied(hand, 2 * SECOND, version=2)
    refused: dict[str, Any] = {"outcome": Outcome.FAIL, "error": "NOT_AUTHORIZED"}
    hand.end("a", (2 * SECOND + 1, 2 * SECOND + 9), **refused, **_ANN)
    applied(hand, 9 * SECOND, _PUB, _OF_PAYERS, version=3)
    for second in range(10, 20):
        _begun(hand, f"b{second}", second * SECOND)
        hand.end(f"b{second}", **_ANN)
        if second == 12 and not is_bad:
            hand.check("a")
    hand.add(Phase, at_us=20 * SECOND, name="over")
    return hand


_OF_PAYERS = entry_of("Group:payers", "Sub")


def _begun(hand: TransactingHand, value: str, at: int) -> None:
    hand.begin(value, (at, at + 9), producer_group="payers", **_ANN)
