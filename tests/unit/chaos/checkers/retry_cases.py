"""Messages sent back and dead letters: the least histories of S29, and of what it means for S21."""

from tests.support.chaos.hand import SIZE, Hand, Q, crc_of
from tests.unit.chaos.checkers.cases import case
from tests.unit.chaos.checkers.member_cases import CASES

from paceline_chaos.history.model import Outcome, Queue, StoredBatch

__all__ = ["CASES"]
RETRY_Q, DEAD_Q = Queue("%RETRY%G", "g", 0), Queue("%DLQ%G", "g", 0)


class RetryLog:
    """The log of a group, batch after batch, of one message each."""

    def __init__(self) -> None:
        self._batches: list[StoredBatch] = []
        self._ends: dict[Queue, int] = {}

    def put(
        self, value: str, queue: Queue = Q, *, cause: str = "", source: int | None = None
    ) -> int:
        """Append; returns the record as `sources` name it."""
        position = SIZE * len(self._batches)
        is_waiting = cause == "RETRIED"
        base = 0 if is_waiting else self._ends.get(queue, 0)
        if not is_waiting:
            self._ends[queue] = base + 1
        self._batches.append(
            StoredBatch(
                position=position,
                size=SIZE,
                epoch=1,
                kind="DELAY" if is_waiting else "NORMAL",
                crc=crc_of(value),
                queue=None if is_waiting else queue,
                base_offset=base,
                messages=() if is_waiting else ((value, crc_of(value)),),
                cause=cause,
                sources=() if source is None else (source,),
                target=queue.topic if cause else "",
            )
        )
        return position << 16

    def retry(self, value: str, source: int) -> int:
        """Sent back and delivered again; the record in the retry topic."""
        waiting = self.put(value, RETRY_Q, cause="RETRIED", source=source)
        return self.put(value, RETRY_Q, cause="DELAYED", source=waiting)

    def dump(self, hand: Hand) -> None:
        hand.log(1, self._batches)


@case("S29")
def processed_and_comes_again(is_bad: bool) -> Hand:
    hand, log = Hand(max_reconsume_times=1), RetryLog()
    hand.unknown("a")
    hand.deliver(0, "a", outcome=Outcome.OK if is_bad else Outcome.FAIL)
    log.retry("a", log.put("a"))
    hand.deliver(0, "a", queue=RETRY_Q)
    log.dump(hand)
    return hand


@case("S29 of a message sent back twice")
def sent_back_twice(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    hand.unknown("a")
    hand.deliver(0, "a", outcome=Outcome.FAIL)
    hand.deliver(0, "a", outcome=Outcome.FAIL)
    if not is_bad:
        hand.commit(0, is_reset=True)
    source = log.put("a")
    log.retry("a", source)
    log.retry("a", source)
    log.dump(hand)
    return hand


@case("S29 of a retry that was delivered twice")
def delivered_twice(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    hand.unknown("a")
    hand.deliver(0, "a", outcome=Outcome.FAIL)
    waiting = log.put("a", RETRY_Q, cause="RETRIED", source=log.put("a"))
    log.put("a", RETRY_Q, cause="DELAYED", source=waiting)
    if is_bad:
        log.put("a", RETRY_Q, cause="DELAYED", source=waiting)
    log.dump(hand)
    return hand


@case("S29 of a dead letter")
def dies_too_soon(is_bad: bool) -> Hand:
    hand, log = Hand(max_reconsume_times=1), RetryLog()
    hand.unknown("a")
    hand.deliver(0, "a", outcome=Outcome.FAIL)
    record = log.put("a")
    if not is_bad:
        record = log.retry("a", record)
        hand.deliver(0, "a", queue=RETRY_Q, outcome=Outcome.FAIL)
    log.put("a", DEAD_Q, cause="DEAD", source=record)
    log.dump(hand)
    return hand


@case("S29 of a message that nobody had")
def never_handed_out(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    hand.unknown("a")
    hand.unknown("b")
    hand.deliver(0, "a", outcome=Outcome.FAIL)
    first, second = log.put("a"), log.put("b")
    log.retry("b" if is_bad else "a", second if is_bad else first)
    log.dump(hand)
    return hand


@case("S29 of a dead letter that was resent twice")
def resent_twice(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    dead = _died(hand, log)
    log.put("a", RETRY_Q, cause="RESENT", source=dead)
    if is_bad:
        log.put("a", RETRY_Q, cause="RESENT", source=dead)
    log.dump(hand)
    return hand


@case("S29 of a dead letter that was not resent")
def not_resent(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    dead = _died(hand, log)
    hand.resend()
    if not is_bad:
        log.put("a", RETRY_Q, cause="RESENT", source=dead)
    log.dump(hand)
    return hand


def _died(hand: Hand, log: RetryLog) -> int:
    """The dead letter of a message that had its one attempt."""
    hand.unknown("a")
    hand.deliver(0, "a", outcome=Outcome.FAIL)
    return log.put("a", DEAD_Q, cause="DEAD", source=log.put("a"))


@case("S21 of a message sent back")
def committed_and_not_sent_back(is_bad: bool) -> Hand:
    hand, log = Hand(), RetryLog()
    hand.unknown("a")
    hand.deliver(0, "a", outcome=Outcome.FAIL)
    source = log.put("a")
    if not is_bad:
        log.retry("a", source)
    hand.commit(1)
    log.dump(hand)
    return hand


@case("S22 of a reset")
def reset_is_undone(is_bad: bool) -> Hand:
    hand = Hand()
    for number, value in enumerate("abc"):
        hand.unknown(value)
        hand.deliver(number, value)
    hand.commit(1, is_reset=True)
    if not is_bad:
        hand.deliver(1, "b")
        hand.deliver(2, "c")
    hand.committed(3)
    return hand


@case("S22 of a reset of which nobody heard")
def reset_of_unknown_outcome(is_bad: bool) -> Hand:
    hand = Hand()
    hand.unknown("a")
    hand.deliver(0, "a")
    hand.committed(1)
    hand.committed(1)
    hand.commit(0, is_reset=True, outcome=Outcome.OK if is_bad else Outcome.UNKNOWN)
    hand.committed(1)
    return hand
