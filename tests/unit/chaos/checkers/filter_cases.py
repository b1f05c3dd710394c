"""Cases of groups with filters (S39), and what filters mean for S21 and L5."""

from tests.support.chaos.hand import SECOND, Hand
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.escape_cases import CASES as CASES

from paceline_chaos.checkers.evidence.wanting import SQL, TAGS


def _tagged(hand: Hand) -> None:
    """Three acknowledged messages; the one in the middle is not wanted."""
    for offset, (value, tag) in enumerate((("a", "red"), ("b", ""), ("c", "box"))):
        hand.send(value, offset, tag=tag)
    hand.dump(1, ["a", "b", "c"])


@case("S39 of what is not wanted")
def given_what_it_does_not_want(is_bad: bool) -> Hand:
    hand = Hand()
    _tagged(hand)
    hand.deliver(0, "a", wanted=TAGS)
    if is_bad:
        hand.deliver(1, "b", wanted=TAGS)
    return hand


@case("S39")
def passed_over_what_it_wants(is_bad: bool) -> Hand:
    """The group stands behind the message that it does not want, too: that is no loss."""
    hand = Hand()
    _tagged(hand)
    hand.deliver(0, "a", wanted=TAGS)
    if not is_bad:
        hand.deliver(2, "c", wanted=TAGS)
    hand.committed(3)
    return hand


@case("S39 of rows")
def given_a_row_that_is_unknown(is_bad: bool) -> Hand:
    """Without a rank it is unknown whether the rank is above 3, and so is the opposite."""
    hand = Hand()
    rank = {} if is_bad else {"rank": "2"}
    hand.send("a", 0, properties={"grams": "250", **rank})
    hand.deliver(0, "a", wanted=SQL)
    return hand


@case("S39 of rows that are passed over")
def passed_over_a_row(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, properties={"colour": "red", "rank": "3"})
    hand.send("b", 1, properties={"colour": "red", "rank": "3" if is_bad else "4"})
    hand.dump(1, ["a", "b"])
    hand.deliver(0, "a", wanted=SQL)
    hand.committed(2)
    return hand


@case("L5 of a group with a filter")
def stands_still_though_wanted(is_bad: bool) -> Hand:
    hand = Hand()
    hand.send("a", 0, tag="red")
    hand.send("b", 1, tag="box" if is_bad else "letter")
    hand.deliver(0, "a", wanted=TAGS)
    hand.phase("heal", SECOND)
    hand.dump(1, ["a", "b"])
    hand.phase("end", 30 * SECOND)
    return hand
