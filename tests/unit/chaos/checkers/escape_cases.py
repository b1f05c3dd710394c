"""Cases of what acting masters send to other groups (S38), and what it means for S5 and S25."""

from tests.support.chaos.hand import SIZE, Hand, Q, crc_of
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.transaction_cases import CASES as CASES

from paceline_chaos.history.model import SKIPPED, Queue, StoredBatch

OTHER = Queue("t", "g2", 0)
PLACE = "g:5:0"


def _batch(
    value: str | None, queue: Queue = Q, *, mark: str = "", skipped: int = -1
) -> StoredBatch:
    """The one batch of a log."""
    return StoredBatch(
        position=0,
        size=SIZE,
        epoch=1,
        kind="OPERATION" if value is None else "NORMAL",
        crc=7,
        queue=None if value is None else queue,
        messages=() if value is None else ((value, crc_of(value)),),
        cause=SKIPPED if skipped >= 0 else "ESCAPED" if mark else "",
        sources=() if skipped < 0 else (skipped,),
        marks=(mark,) if mark else (),
    )


def _log(hand: Hand, group: str, *batches: StoredBatch) -> None:
    hand.log(1, batches, node=f"{group}-b1", group=group)


@case("S38")
def escaped_and_marked(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 1, queue=Q)
    _log(hand, "g")
    _log(hand, "g2", _batch("a", OTHER, mark="g2:5:0" if is_bad else PLACE))
    return hand


@case("S38 of the group where it waited")
def marked_as_another_group_s(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 1, queue=Q)
    _log(hand, "g")
    _log(hand, "g2", _batch("a", OTHER, mark="g3:5:0" if is_bad else PLACE))
    return hand


@case("S38 of what is skipped")
def skipped_though_nobody_has_it(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 1, queue=Q)
    _log(hand, "g", _batch(None, skipped=(6 if is_bad else 5) << 16))
    _log(hand, "g2", _batch("a", OTHER, mark=PLACE))
    return hand


@case("S5 of an escaped message")
def twice_without_a_mark(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 1, queue=Q)
    _log(hand, "g", _batch("a"))
    _log(hand, "g2", _batch("a", OTHER, mark="" if is_bad else PLACE))
    return hand


@case("S25 of an escaped message")
def recalled_and_escaped(is_bad: bool) -> Hand:
    hand = Hand()
    hand.delayed("a", 1, queue=Q)
    hand.recalled("a")
    _log(hand, "g")
    _log(hand, "g2", _batch("a", OTHER, mark="" if is_bad else PLACE))
    return hand
