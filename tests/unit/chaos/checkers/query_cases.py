"""Cases of queries: S40 and L7."""

from typing import Any

from tests.support.chaos.hand import SECOND, SIZE, Hand, crc_of
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.hook_cases import CASES as CASES

from paceline_chaos.checkers.messages.queries import DENIED
from paceline_chaos.history.basis import Found
from paceline_chaos.history.model import Outcome


def _row(value: str, offset: int, **members: Any) -> Found:
    found: dict[str, Any] = {
        "group": "g",
        "queue": 0,
        "offset": offset,
        "value": value,
        "crc": crc_of(value),
        "key": "k",
        "message_id": f"g:{offset * SIZE:x}:0",
        "unique_key": f"p:{offset}",
        "store_unix_ms": 100 + offset,
    }
    return Found(**found | members)


def _three() -> Hand:
    """Stored and kept: a and c with key k, b with another; nobody was told of c."""
    hand = Hand()
    hand.send("a", 0, key="k")
    hand.send("b", 1, key="l")
    hand.unknown("c", key="k")
    return hand


_FIRST = (SECOND + 1, SECOND + 2)
"""The first moment of the drain; what is entered afterwards follows it."""


@case("S40")
def found_what_nobody_sent(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("key", "k", _row("z" if is_bad else "a", 0))
    return hand


@case("S40 of bodies")
def found_another_body(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("key", "k", _row("a", 0, crc=7 if is_bad else crc_of("a")))
    return hand


@case("S40 of what is cut")
def found_what_is_nowhere(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("key", "k", _row("a", 0), _row("c", 2))
    hand.dump(1, ["a", "b"] if is_bad else ["a", "b", "c"])
    return hand


@case("S40 of keys")
def found_another_key(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("key", "k", _row("a", 0), *([_row("b", 1)] if is_bad else []))
    return hand


@case("S40 of times")
def found_outside_of_the_time(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("time", "99-100", _row("a", 0), *([_row("b", 1)] if is_bad else []))
    return hand


@case("S40 of doubles")
def found_twice(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("key", "k", *[_row("a", 0)] * (2 if is_bad else 1))
    return hand


@case("S40 of names")
def one_name_of_two_messages(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("unique_key", "p:0", _row("a", 0))
    hand.find("time", "0-200", _row("b", 1, unique_key="p:0" if is_bad else "p:1"))
    return hand


@case("S40 of ids")
def one_id_of_two_places(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("id", "g:0:0", _row("a", 0))
    hand.find("time", "0-200", _row("b", 1, message_id="g:0:0" if is_bad else "g:64:0"))
    return hand


@case("S40 of denials")
def denied_what_is_there(is_bad: bool) -> Hand:
    hand = _three()
    hand.find("key", "k", _row("a", 0))
    wanted = "g:0:0" if is_bad else "g:7:0"
    hand.find("id", wanted, outcome=Outcome.FAIL, error=DENIED)
    hand.dump(1, ["a", "b", "c"])
    return hand


@case("L7")
def stored_and_not_found(is_bad: bool) -> Hand:
    """Before the drain a query may know less."""
    hand = _three()
    hand.find("key", "k")
    hand.phase("drain", SECOND)
    rows = [_row("a", 0)] if is_bad else [_row("a", 0), _row("c", 2)]
    hand.find("key", "k", *rows, at=_FIRST)
    hand.dump(1, ["a", "b", "c"])
    return hand


@case("L7 of unique keys")
def found_by_key_and_not_by_unique_key(is_bad: bool) -> Hand:
    hand = _three()
    hand.phase("drain", SECOND)
    hand.find("key", "k", _row("a", 0), _row("c", 2), at=_FIRST)
    hand.find("unique_key", "p:2", *([] if is_bad else [_row("c", 2)]))
    hand.dump(1, ["a", "b", "c"])
    return hand


@case("L7 of times")
def found_by_key_and_not_by_time(is_bad: bool) -> Hand:
    hand = _three()
    hand.phase("drain", SECOND)
    hand.find("key", "k", _row("a", 0), _row("c", 2), at=_FIRST)
    hand.find("time", "101-102", _row("b", 1), *([] if is_bad else [_row("c", 2)]))
    hand.dump(1, ["a", "b", "c"])
    return hand
