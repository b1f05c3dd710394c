"""Cases of hooks around sending and consuming, and of what they refuse (S41)."""

from typing import Any

from tests.support.chaos.hand import Hand, Q, crc_of
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.filter_cases import CASES as CASES

from paceline_chaos.history.hooked import (
    AFTER_CONSUME,
    AFTER_SEND,
    BEFORE_CONSUME,
    BEFORE_SEND,
    BEGIN,
    END,
    REFUSED,
    HookCall,
)
from paceline_chaos.history.model import Outcome, Seen


def _told(hand: Hand, what: str, at: int, **members: Any) -> None:
    hand.add(HookCall, at_us=at, client="c", name="s", what=what, **members)


def _stored(hand: Hand, at: int, *values: str, **members: Any) -> None:
    found: dict[str, Any] = {"call": 1, "values": values, "queue": Q, "offset": 0, **members}
    _told(hand, AFTER_SEND, at, **found)


def _sent() -> Hand:
    """Two messages of one batch; the second joined before a retry."""
    hand = Hand()
    _told(hand, BEGIN, 0)
    _told(hand, BEFORE_SEND, 15, call=1, values=("a",))
    return hand


def _acknowledged(hand: Hand) -> Hand:
    hand.send("a", 0, at=(10, 30), session="s")
    hand.send("b", 1, at=(11, 31), session="s")
    return hand


@case("S41 of a send that no hook was told of")
def sent_and_not_told(is_bad: bool) -> Hand:
    hand = _sent()
    _stored(hand, 20, *(("a",) if is_bad else ("a", "b")))
    return _acknowledged(hand)


@case("S41")
def sent_and_told_twice(is_bad: bool) -> Hand:
    hand = _sent()
    _stored(hand, 20, "a", "b")
    if is_bad:
        _stored(hand, 21, "a", "b")
    return _acknowledged(hand)


@case("S41 of another place")
def told_another_place(is_bad: bool) -> Hand:
    hand = _sent()
    _stored(hand, 20, "a", "b", offset=1 if is_bad else 0)
    return _acknowledged(hand)


@case("S41 of a hook that is told too late")
def told_after_the_application(is_bad: bool) -> Hand:
    hand = _sent()
    _stored(hand, 40 if is_bad else 20, "a", "b")
    return _acknowledged(hand)


@case("S41 of an end without a beginning")
def told_of_an_end_alone(is_bad: bool) -> Hand:
    hand = _sent()
    _stored(hand, 20, "a", "b", call=2 if is_bad else 1)
    return _acknowledged(hand)


@case("S41 of a failure")
def told_as_stored_though_it_failed(is_bad: bool) -> Hand:
    hand = _sent()
    _stored(hand, 20, "a", "b")
    hand.send("a", 0, at=(10, 30), session="s")
    if is_bad:
        hand.send("b", at=(11, 31), session="s", outcome=Outcome.FAIL, error="NOT_MASTER")
    else:
        hand.unknown("b", at=(11, 31), session="s")
    return hand


@case("S41 of a session that closed")
def closed_and_never_told(is_bad: bool) -> Hand:
    """Of a client that died nobody knows."""
    hand = _sent()
    hand.unknown("a", at=(10, 30), session="s")
    if is_bad:
        _told(hand, END, 50)
    return hand


@case("S41 of what is consumed")
def consumed_and_not_told(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, at=(1, 2))
    hand.send("b", 1, at=(3, 4))
    _told(hand, BEGIN, 5)
    values = ("a",) if is_bad else ("a", "b")
    messages = tuple(Seen(offset, value, crc_of(value)) for offset, value in enumerate(values))
    _told(hand, BEFORE_CONSUME, 6, call=1, queue=Q, messages=messages)
    hand.deliver(0, "a", at=(10, 11), member="s")
    hand.deliver(1, "b", at=(12, 13), member="s")
    _told(hand, AFTER_CONSUME, 14, call=1)
    return hand


@case("S41 of what was not handed out")
def told_and_not_consumed(is_bad: bool) -> Hand:
    """A listener that failed may never have been called."""
    hand = Hand()
    hand.send("a", 0, at=(1, 2))
    _told(hand, BEGIN, 5)
    messages = (Seen(0, "a", crc_of("a")),)
    for number in (1, 2):
        _told(hand, BEFORE_CONSUME, 10 * number, call=number, queue=Q, messages=messages)
        error = None if is_bad or number == 2 else "CancelledError"
        _told(hand, AFTER_CONSUME, 10 * number + 1, call=number, error=error)
    hand.deliver(0, "a", at=(22, 23), member="s")
    return hand


@case("S41 of what is received")
def received_and_not_told(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, at=(1, 2))
    _told(hand, BEGIN, 5)
    at = 40 if is_bad else 20
    _told(hand, BEFORE_CONSUME, at, call=1, queue=Q, messages=(Seen(0, "a", crc_of("a")),))
    hand.pop("s", at=(10, 30))
    return hand


@case("S41 of what is refused")
def refused_and_stored(is_bad: bool) -> Hand:
    """It is not known that it failed: S4 has nothing to say."""
    hand = Hand()
    hand.send("a", 0)
    hand.unknown("b", properties={REFUSED: "broker"})
    hand.dump(1, ["a", "b"] if is_bad else ["a"])
    return hand
