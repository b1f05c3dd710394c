"""Cases of transactions (S24): each with the one change that breaks it."""

from typing import Any

from tests.support.chaos.hand import SECOND, SIZE, Hand, crc_of
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.excuse_cases import dump_cut
from tests.unit.chaos.checkers.receipt_cases import CASES as CASES
from tests.unit.chaos.checkers.retry_cases import RetryLog

from paceline_chaos.history.model import (
    BeginTransaction,
    CheckTransaction,
    EndTransaction,
    Outcome,
    Queue,
)

GIVEN_UP = Queue("TRANS_CHECK_MAX_TIME_TOPIC", "g", 0)


class TransactingHand(Hand):
    """Transactions, too."""

    def begin(self, value: str, at: Any = None, **members: Any) -> None:
        found: dict[str, Any] = {"topic": "t", "crc": crc_of(value), "group": "g"}
        self._ask(BeginTransaction, "c", at, value=value, **found | members)

    def end(self, value: str, at: Any = None, *, is_commit: bool = True, **members: Any) -> None:
        self._ask(EndTransaction, "c", at, value=value, is_commit=is_commit, **members)

    def check(self, value: str, at: Any = None) -> None:
        self._ask(CheckTransaction, "c", at, value=value)


@case("S24")
def half_shows_before_its_commit(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a", (10, 20))
    hand.end("a", (30, 60))
    hand.pull(0, ["a"], (22, 28) if is_bad else (22, 40))
    return hand


@case("S24 of a half that nobody ends")
def half_shows_without_a_commit(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a")
    if not is_bad:
        hand.check("a")
        hand.end("a", outcome=Outcome.UNKNOWN, error="CHECK")
    hand.deliver(0, "a")
    return hand


@case("S24 of a refused commit")
def refused_commit_shows(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a")
    hand.end("a", outcome=Outcome.FAIL if is_bad else Outcome.UNKNOWN, error="X")
    hand.pull(0, ["a"])
    return hand


@case("S24 both ways")
def committed_and_rolled_back(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a")
    hand.end("a")
    hand.end("a", is_commit=False, outcome=Outcome.OK if is_bad else Outcome.FAIL)
    return hand


@case("S24 of a rollback")
def rolled_back_message_is_stored(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a")
    hand.end("a", outcome=Outcome.UNKNOWN)
    hand.end("a", is_commit=False, outcome=Outcome.OK if is_bad else Outcome.FAIL)
    hand.dump(1, ["a"])
    return hand


@case("S24 of a commit")
def committed_message_is_lost(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a")
    hand.end("a")
    hand.dump(1, [] if is_bad else ["a"])
    return hand


@case("S24 of a commit where messages are deleted")
def committed_message_is_lost_and_not_deleted(is_bad: bool) -> Hand:
    """What was committed after the first message that is kept was stored is in what is kept."""
    hand = TransactingHand()
    value = "a" if is_bad else "3"
    hand.send("2", 2)
    hand.begin(value)
    hand.end(value)
    dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


@case("S24 of a commit that was repeated where messages are deleted")
def committed_before_anybody_was_told(is_bad: bool) -> Hand:
    """What an answer to a check has committed may be deleted before the same end is answered."""
    hand = TransactingHand()
    hand.begin("a")
    if not is_bad:
        hand.end("a", outcome=Outcome.UNKNOWN, error="CHECK")
    hand.send("2", 2)
    hand.end("a")
    dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


@case("S24 of a half that is forgotten where messages are deleted")
def open_half_is_not_known(is_bad: bool) -> Hand:
    """An ended one may be forgotten with its messages; an open one is stored again."""
    hand = TransactingHand()
    hand.begin("0")
    if not is_bad:
        hand.end("0")
    hand.end("0", outcome=Outcome.FAIL, error="TRANSACTION_NOT_FOUND")
    dump_cut(hand, kept_from=2, log_start=2 * SIZE)
    return hand


@case("S24 of a check")
def open_half_is_not_asked_about(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a", (10, 20))
    hand.phase("heal", 30)
    if not is_bad:
        hand.check("a", (40, 50))
    hand.phase("over", 20 * SECOND)
    return hand


@case("S24 of a group without a master")
def nobody_could_ask(is_bad: bool) -> Hand:
    """Who waits for an operator asks nobody: that is no fault of transactions."""
    hand = TransactingHand()
    hand.begin("a", (10, 20))
    hand.phase("heal", 30)
    hand.probe(1, 0, SECOND, role="master" if is_bad else "replica", is_open=is_bad)
    hand.phase("over", 20 * SECOND)
    return hand


@case("S24 of a half that is forgotten")
def half_is_not_known(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a")
    code = "TRANSACTION_NOT_FOUND" if is_bad else "TRANSACTION_ENDED"
    hand.end("a", outcome=Outcome.FAIL, error=code)
    hand.dump(1, [])
    return hand


@case("S24 of what was given up")
def given_up_and_shows(is_bad: bool) -> Hand:
    hand = TransactingHand()
    hand.begin("a")
    hand.end("a", outcome=Outcome.UNKNOWN, error="CHECK")
    log = RetryLog()
    log.put("a", GIVEN_UP)
    if is_bad:
        log.put("a")
    log.dump(hand)
    return hand


@case("S24 of too many checks")
def asked_too_often(is_bad: bool) -> Hand:
    hand = TransactingHand(transaction_check_max=2)
    hand.begin("a")
    for _ in range(3 if is_bad else 2):
        hand.check("a")
    return hand
